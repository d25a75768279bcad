"""The faults that the audit finds."""

import enum
from dataclasses import dataclass


class FaultKind(enum.StrEnum):
    """The kinds of faults."""

    UNREADABLE = "unreadable"
    """A Device, Node or request that is invalid."""
    UNKNOWN_NODE = "unknown node"
    MISSING_EPOCH = "missing epoch"
    MISSING_ALLOCATION = "missing allocation"
    MALFORMED_ALLOCATION = "malformed allocation"
    NOT_BOUND = "not bound"
    UNKNOWN_CARD = "unknown card"
    WRONG_ID = "wrong id"
    WRONG_COUNT = "wrong count"
    WRONG_FORM = "wrong form"
    """A card, slice or instance, but the Device offers, or the pod requests, another of these."""
    WRONG_AMOUNT = "wrong amount"
    WRONG_MODEL = "wrong model"
    WRONG_VISIBLE = "wrong visible"
    BOOKED_TWICE = "booked twice"
    MIXED = "mixed"
    """A card that is held in several forms at the same time."""
    OVERBOOKED = "overbooked"
    NODE_FULL = "node overfull"
    FOREIGN_POD = "foreign pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    kind: FaultKind
    object: str
    """`pod default/half`, `card node-0/gpu 3`, `node node-0`."""
    text: str
    """What is wrong, in plain words."""

    def __str__(self) -> str:
        return f"{self.object}: {self.kind}: {self.text}"
