"""The remedies for Xids, and which of them count.

The classes of Xids follow NVIDIA's catalogue ("resolution bucket, immediate action"). If the catalogue names a workflow
for people, the most severe outcome of this workflow counts.
"""

import re
from typing import Final

from berth_agent.health import catalogue
from berth_agent.health.catalogue import FaultCatalogue, Remedy
from berth_agent.vendor import OTHER_EVENTS

XID: Final = "Xid"
"""How the kinds of these faults begin: `Xid79`."""

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
OTHER: Final = OTHER_EVENTS


def of_xid(number: int) -> Remedy:
    """Return the remedy of an Xid; an unknown Xid requires a reset."""
    if number in _NOTHING:
        return Remedy.NOTHING
    if number in _RESTART_APP:
        return Remedy.QUIET
    return Remedy.REBOOT if number in _REBOOT else Remedy.RESET


def of(kind: str) -> Remedy | None:
    """Return the remedy of a kind of fault; None if it is no Xid."""
    match = re.fullmatch(XID + r"(\d+)", kind)
    # An Xid that is no fault becomes one if DP_ENABLE_HEALTHCHECKS names it.
    return max(of_xid(int(match[1])), Remedy.QUIET) if match else None


def counts(number: int) -> bool:
    """Return whether an Xid makes its card unhealthy, if DP_ENABLE_HEALTHCHECKS and its opposite do not name it."""
    return number not in FAULTS_OF_APPLICATIONS and of_xid(number) is not Remedy.NOTHING


catalogue.add(FaultCatalogue(remedy=of, counts=counts))
