"""The remedies for faults: what must happen before a card with a fault may be allocated again.

Vendors add the faults of their drivers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Remedy(IntEnum):
    """What ends a fault, in order of severity.

    A reboot, or the annotation `berth.dev/recovered-devices`, ends all faults except those with the first two remedies.
    """

    NOTHING = 0
    """Not a fault: the application caused it, or the driver only reports its own action."""
    UNTOLD = 1
    """The fault ends when a reading no longer reports it, because the driver measures it each time."""
    QUIET = 2
    """After a quiet period: the application has to be restarted, the card is healthy unless it happens again."""
    RESET = 3
    """After a reset of the card that was observed."""
    REBOOT = 4
    """After a reboot of the node."""


WORDS: Final = {
    Remedy.UNTOLD: "WhileMeasured",
    Remedy.QUIET: "UntilQuiet",
    Remedy.RESET: "UntilReset",
    Remedy.REBOOT: "UntilReboot",
}
"""The reason of a fault's condition."""

# Kinds of faults. Each is the type of a condition.
DOUBLE_BIT: Final = "DoubleBitEcc"
LOST: Final = "GpuIsLost"
NO_ANSWER: Final = "NoAnswer"
"""The card was listed before, and cannot be read now. Why is not known, so this is no reason to evict its pods."""
RESET_REQUIRED: Final = "ResetRequired"
REMAP_FAILED: Final = "RowRemapFailed"
RETIREMENT_PENDING: Final = "PageRetirementPending"
PAGES_RETIRED: Final = "TooManyPagesRetired"
RESET_NEEDED: Final = "DriverNeedsReset"
REBOOT_NEEDED: Final = "DriverNeedsReboot"
DRAIN_NEEDED: Final = "DriverNeedsDrain"
EVENTS_FAILED: Final = "EventsFailed"
CORDONED: Final = "Cordoned"
LINK_DOWN: Final = "LinkDown"
OFF_THE_BUS: Final = "OffTheBus"
REPORTED: Final = "ReportedByVendor"
"""The vendor's agent reports the fault of its device."""

_MEASURED: Final = {
    *(REMAP_FAILED, RETIREMENT_PENDING, PAGES_RETIRED, RESET_NEEDED, REBOOT_NEEDED, DRAIN_NEEDED),
    *(NO_ANSWER, EVENTS_FAILED, CORDONED, LINK_DOWN, OFF_THE_BUS, "ReadTimedOut", "ReadFailed", "Simulated", REPORTED),
}
_LASTING: Final = {DOUBLE_BIT: Remedy.RESET, LOST: Remedy.RESET, RESET_REQUIRED: Remedy.RESET}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCatalogue:
    """The kinds of faults of a vendor's driver, in addition to those of this module."""

    remedy: Callable[[str], Remedy | None]
    """Returns what ends a kind of fault; None if the kind is not the vendor's."""
    counts: Callable[[int], bool]
    """Returns whether a numbered event of the driver is a fault if the settings do not name the number."""


_catalogues: Final[list[FaultCatalogue]] = []


def add(catalogue: FaultCatalogue) -> None:
    """Add the faults of a vendor, when its module is imported: a Device may list faults of an agent before this one."""
    _catalogues.append(catalogue)


def counts(number: int) -> bool:
    """Return whether a numbered event of a driver is a fault if the settings do not name the number."""
    return any(catalogue.counts(number) for catalogue in _catalogues)


def of(kind: str) -> Remedy:
    """Return the remedy of a kind of fault; unknown kinds, such as errors of a library, end after a quiet period."""
    for catalogue in _catalogues:
        if (remedy := catalogue.remedy(kind)) is not None:
            return remedy
    if kind in _MEASURED:
        return Remedy.UNTOLD
    return _LASTING.get(kind, Remedy.QUIET)
