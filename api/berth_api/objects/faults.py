"""Why a device is unhealthy, read from the conditions of its entry in the Device (docs/health.md)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

SUMMARY: Final = "Healthy"
"""The type of the condition that sums the others up, or is the only one."""
CORDONED: Final = "Cordoned"
"""The kind of fault that a person sets by an annotation."""


class Condition(Protocol):
    """A condition, as `device.Condition`."""

    @property
    def type(self) -> str:
        """Return its type, which is unique in its list."""

    @property
    def status(self) -> str:
        """Return `True`, `False` or `Unknown`."""

    @property
    def reason(self) -> str:
        """Return the reason, one word for programs."""

    @property
    def message(self) -> str:
        """Return the message, for people."""

    @property
    def last_transition_time(self) -> str:
        """Return since when the status is this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a device."""

    kind: str
    """`Xid79`."""
    ends: str
    """What ends it: `UntilReboot`. The same as the kind where the agent reports no more."""
    message: str
    since: str
    """When it began."""

    def __str__(self) -> str:
        """Return it for people: `UntilReboot: Xid 79: GPU has fallen off the bus`."""
        return f"{self.ends}: {self.message or self.kind}"


def of_conditions(conditions: Sequence[Condition]) -> tuple[Fault, ...]:
    """Return the faults of an unhealthy device, the most severe first; none where it has no condition."""
    return tuple(_faults(conditions)) or tuple(
        Fault(
            kind=condition.reason,
            ends=condition.reason,
            message=condition.message,
            since=condition.last_transition_time,
        )
        for condition in conditions
        if condition.type == SUMMARY
    )


def _faults(conditions: Iterable[Condition]) -> Iterator[Fault]:
    for condition in conditions:
        if condition.status == "True":
            yield Fault(
                kind=condition.type,
                ends=condition.reason,
                message=condition.message,
                since=condition.last_transition_time,
            )


def text(faults: Iterable[Fault]) -> str:
    """Return faults for people, each once."""
    return "; ".join(dict.fromkeys(map(str, faults)))
