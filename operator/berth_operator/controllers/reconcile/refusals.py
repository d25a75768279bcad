"""Resources of plug-ins that a policy of the API server refuses on Nodes: one setting for all nodes.

These resources are written separately from the built-in ones, so a refusal does not affect the built-in ones. While the
resources of a type are refused, one node after another tries them, at growing intervals. Once one node succeeds, all
nodes write them.
"""

from dataclasses import dataclass, field
from typing import Final

from berth_api.request import Kind
from berth_api.values.backoff import ExponentialBackoff
from berth_operator.core.values import refused

BACKOFF: Final = ExponentialBackoff(first=2.0, longest=60.0)
"""Between two tries."""
MAX_ERROR: Final = 400


@dataclass(slots=True, kw_only=True)
class _Refusal:
    error: str
    pause: float
    waiting: dict[str, None] = field(default_factory=dict)
    """Nodes that lack the resources, the longest waiting first."""
    next: str = ""
    """The node that may try."""


class Refusals:
    """Refused patches, by device type; used by the writer alone."""

    def __init__(self) -> None:
        self._of: dict[str, _Refusal] = {}

    def holds_back(self, kind: Kind, node: str) -> bool:
        """Return whether a node has to wait until another one has tried; its turn is over if it does not."""
        if (refusal := self._of.get(kind.name)) is None:
            return False
        refusal.waiting[node] = None
        is_next, refusal.next = refusal.next == node, "" if refusal.next == node else refusal.next
        return not is_next

    def refused(self, kind: Kind, node: str, error: str) -> bool:
        """Record a refusal; return whether it is the first refusal of the type."""
        known = self._of.get(kind.name)
        pause = BACKOFF.following(0.0 if known is None else known.pause)
        waiting = {} if known is None else known.waiting
        waiting.pop(node, None)
        self._of[kind.name] = _Refusal(error=error, pause=pause, waiting={**waiting, node: None})
        return known is None

    def accepted(self, kind: Kind) -> list[str]:
        """Record that a write succeeded; return the nodes that wait for it."""
        refusal = self._of.pop(kind.name, None)
        return [] if refusal is None else list(refusal.waiting)

    def turn(self, kind: Kind) -> tuple[str, float] | None:
        """Return the node that may try now, and the seconds until another may; None if nothing is refused.

        The node waits again when it tries, so one that is gone is forgotten, and with the last one the refusal.
        """
        if (refusal := self._of.get(kind.name)) is None:
            return None
        if not refusal.waiting:
            del self._of[kind.name]
            return None
        refusal.next = next(iter(refusal.waiting))
        del refusal.waiting[refusal.next]
        return refusal.next, refusal.pause

    def of(self, kind: Kind) -> tuple[str, str] | None:
        """Return reason and message for the condition of Devices; None if nothing is refused."""
        if (refusal := self._of.get(kind.name)) is None:
            return None
        resources = ", ".join(kind.resources)
        by_us = refused.POLICY in refusal.error
        what = (
            f"ValidatingAdmissionPolicy {refused.POLICY} refuses {resources} on Nodes, so no pod gets them: add "
            f"each to {refused.SETTING}"
            if by_us
            else f"the API server refuses {resources} on Nodes, so no pod gets them"
        )
        message = f"{what} (it answered: {refusal.error[:MAX_ERROR]})"
        return refused.REASON if by_us else "Refused", message


NOTHING_REFUSED: Final = Refusals()
"""For readers alone."""
