"""Which events count: DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, as in NVIDIA's plugin.

`all` disables all checks, `xids` the checks of Xids, and a number a single check. A number that is enabled wins over
everything that is disabled. NVIDIA's plugin promises this too, but ignores enabled numbers if `all` is disabled.
"""

from dataclasses import dataclass
from typing import Final

from berth_agent.health import catalogue

ALL: Final = "all"
XIDS: Final = "xids"
ALLOWED: Final = 'allowed are "all", "xids", or numbers of Xids with commas between them, such as 48,79'


class ChecksError(ValueError):
    """A list of checks cannot be read. The text shows what is wrong with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """Which checks of GPUs are made."""

    disabled: frozenset[int | str] = frozenset()
    """Numbers of Xids, `all`, `xids`."""
    enabled: frozenset[int | str] = frozenset()

    @property
    def memory(self) -> bool:
        """Whether what the driver measures of the card's memory and its own state counts."""
        return ALL not in self.disabled or ALL in self.enabled

    @property
    def events(self) -> bool:
        """Whether any event could count."""
        return self.memory or bool(self.enabled)

    def counts(self, xid: int) -> bool:
        """Return whether an Xid makes its card unhealthy."""
        if self.enabled & {xid, ALL, XIDS}:
            return True
        return not self.disabled & {xid, ALL, XIDS} and catalogue.counts(xid)


def read(*, disabled: str, enabled: str) -> Checks:
    """Read both lists.

    Raises:
        ChecksError: one of them has something else in it.
    """
    return Checks(
        disabled=_listed("DP_DISABLE_HEALTHCHECKS", disabled), enabled=_listed("DP_ENABLE_HEALTHCHECKS", enabled)
    )


def _listed(name: str, text: str) -> frozenset[int | str]:
    listed: set[int | str] = set()
    for entry in filter(None, (part.strip().lower() for part in text.split(","))):
        if entry in {ALL, XIDS}:
            listed.add(entry)
        elif entry.isascii() and entry.isdigit():
            listed.add(int(entry))
        else:
            raise ChecksError(f'{name}: "{entry}" is no Xid; {ALLOWED}')
    return frozenset(listed)
