"""The remedies for Xids: what must happen before a card with a fault may be allocated again.

The classes of Xids follow NVIDIA's catalogue ("resolution bucket, immediate action"). If the catalogue names a workflow
for people, the most severe outcome of this workflow counts.
"""

import re
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

# Kinds of faults that are no Xid. Each is the type of a condition.
DOUBLE_BIT: Final = "DoubleBitEcc"
LOST: Final = "GpuIsLost"
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
XID: Final = "Xid"

_MEASURED: Final = {
    *(REMAP_FAILED, RETIREMENT_PENDING, PAGES_RETIRED, RESET_NEEDED, REBOOT_NEEDED, DRAIN_NEEDED),
    *(EVENTS_FAILED, CORDONED, LINK_DOWN, OFF_THE_BUS, "ReadTimedOut", "ReadFailed", "Simulated"),
}
_LASTING: Final = {DOUBLE_BIT: Remedy.RESET, LOST: Remedy.RESET, RESET_REQUIRED: Remedy.RESET}

# 45 follows another Xid, or an application that was killed; 154 summarizes others, and the driver
# reports its recovery action.
_NOTHING: Final = frozenset(
    (14, 37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 154, 157, *range(160, 166))
)
_RESTART_APP: Final = frozenset(
    (
        *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89, 94),
        *(*range(96, 106), *range(126, 136), 139),
    )
)
# 54 is a power cable, 78 a driver that does not suit its host, 151 a machine whose keys are stale.
_REBOOT: Final = frozenset((54, 78, 79, 151))

FAULTS_OF_APPLICATIONS: Final = frozenset((13, 31, 68))
"""Xids that require a restart of the application and are mostly its own mistakes. NVIDIA's plugin ignores them, too."""

TITLES: Final = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "row remapping or page retirement failed",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    155: "NVLink error found by software",
    156: "resource retirement",
    158: "fatal timeout",
}

NUMBERS: Final = range(1, 173)
"""The Xids of NVIDIA's catalogue. Drivers no longer report most of them."""
OTHER: Final = 0
"""Stands for all others where Xids are counted."""


def of_xid(number: int) -> Remedy:
    """Return the remedy of an Xid; an unknown Xid requires a reset."""
    if number in _NOTHING:
        return Remedy.NOTHING
    if number in _RESTART_APP:
        return Remedy.QUIET
    return Remedy.REBOOT if number in _REBOOT else Remedy.RESET


def of(kind: str) -> Remedy:
    """Return the remedy of a kind of fault; other errors of the library end after a quiet period."""
    if match := re.fullmatch(XID + r"(\d+)", kind):
        # An Xid that is no fault becomes one if DP_ENABLE_HEALTHCHECKS names it.
        return max(of_xid(int(match[1])), Remedy.QUIET)
    if kind in _MEASURED:
        return Remedy.UNTOLD
    return _LASTING.get(kind, Remedy.QUIET)
