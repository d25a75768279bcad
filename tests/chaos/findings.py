"""The findings that the auditor of a history may report."""

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """The kinds of findings."""

    REVISION_MISSING = "revision missing"
    OVERBOOKED = "overbooked"
    TWO_NODES = "card on two nodes"
    NOT_AT_ONCE = "allocation and node not in one revision"
    CHANGED = "changed after the bind"
    ENDED_TERM = "bound by an ended term"
    UNKNOWN_TERM = "bound by a term that never was"
    GANG_STARTED_EARLY = "gang bound before it was complete"
    GANG_IN_PART = "gang bound in part"
    PRIORITY = "preempted without a higher priority"
    WRONG_EVENT = "Event contradicts the history"
    NO_EVENT = "no Event"
    LOST = "lost"
    UNKNOWN_CARD = "card that no Device or ResourceSlice has listed"
    NO_CLAIM = "bound without what its claims hold"
    NOT_KEPT_AWAY = "another scheduler's claim in a pool of Berth that is tainted"
    NOT_STOPPED = "given from a pool that another scheduler uses"
    LEFT_OVER = "left over"
    WRONG_LIMIT = "wrong limit"
    HARMED = "a pod that ran was deleted without a true reason"
    EVICTED_AGAIN = "evicted again for the same pod and node without a pause"
    IDLE = "a card is idle, and a pod that fits waits"
    RESERVED_IN_VAIN = "a node is reserved for a pod that its own rollout keeps from it"
    UNTRUE = "the reason of a waiting pod is not true"
    NOT_STARTING = "NodeStarting without a node that is starting"
    STARVED = "a pod or gang that fits waits"
    NOT_REPLACED = "a new member of a formed gang does not start"
    UNREPORTED = "the use of a card by a pod that does not hold it is not reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding."""

    kind: FindingKind
    revision: int
    """Where it was found."""
    about: str
    """The pod, the card or the gang."""
    text: str

    def __str__(self) -> str:
        return f"revision {self.revision}: {self.about}: {self.kind}: {self.text}"
