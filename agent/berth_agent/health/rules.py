"""How faults of a device begin and end. Pure functions of what was observed, and when.

An answer of the library never proves that a device is healthy, because the library still answers after most Xids. Only
the remedy of its class (`catalogue`) ends a fault.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from berth_agent.health import catalogue
from berth_agent.health.catalogue import Remedy
from berth_agent.health.checks import Checks
from berth_agent.health.faults import Fault

MAX_RETIRED: Final = 60
"""Number of retired pages at which NVIDIA replaces a card. At 64, no more pages can be retired."""
ANY_INSTANCE: Final = 0xFFFFFFFF
"""The placeholder for the instance in events that concern the whole card."""

# Values of NVML's nvmlDeviceGpuRecoveryAction_t.
_ACTIONS: Final = {
    1: Fault(kind=catalogue.RESET_NEEDED, message="the driver says that the GPU needs a reset"),
    2: Fault(kind=catalogue.REBOOT_NEEDED, message="the driver says that the node needs a reboot"),
    3: Fault(kind=catalogue.DRAIN_NEEDED, message="the driver says that peer-to-peer traffic must be drained"),
    4: Fault(kind=catalogue.RESET_NEEDED, message="the driver says that the GPU must be drained and reset"),
    5: Fault(kind=catalogue.DRAIN_NEEDED, message="the driver says that the IMEX domain must be recovered"),
    6: Fault(kind=catalogue.RESET_NEEDED, message="the driver says that the GPU needs a reset of its bus"),
    7: Fault(kind=catalogue.REBOOT_NEEDED, message="the driver says that the system needs a reboot"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFault:
    """A fault, and when it was seen last."""

    fault: Fault
    at: float
    """Seconds of a clock that only goes forward."""

    @property
    def remedy(self) -> Remedy:
        """What ends it."""
        return catalogue.of(self.fault.kind)


Faults = Mapping[str, ObservedFault]
"""The faults of one device, by their kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the driver reports of a card's memory and state."""

    remap_failed: bool = False
    retirement_pending: bool = False
    retired_pages: int = 0
    recovery_action: int = 0
    """0 is none."""


def of_xid(number: int, checks: Checks, *, gpu_instance: int = ANY_INSTANCE) -> Fault | None:
    """Return what an Xid means for its card; none if it does not count.

    An Xid of one MIG instance counts for the whole card, because its instances share the card's memory, links and
    firmware. A reset ends the more severe Xids of all instances.
    """
    if not checks.counts(number):
        return None
    title = f" ({catalogue.TITLES[number]})" if number in catalogue.TITLES else ""
    where = "" if gpu_instance == ANY_INSTANCE else f" on GPU instance {gpu_instance}"
    return Fault(kind=f"{catalogue.XID}{number}", message=f"Xid {number}{title}{where}")


def of_double_bit(checks: Checks) -> Fault | None:
    """Return what a double-bit ECC error is to its card."""
    return Fault(kind=catalogue.DOUBLE_BIT, message="double-bit ECC error") if checks.memory else None


def of_measured(measured: Measured, checks: Checks) -> list[Fault]:
    """Return what the driver's figures mean for their card.

    Rows that wait to be remapped are no fault, because the driver does not use their pages until then. A page that
    waits to be retired is a fault, because applications still get it until the reset.
    """
    if not checks.memory:
        return []
    faults = []
    if measured.remap_failed:
        faults.append(Fault(kind=catalogue.REMAP_FAILED, message="a memory row could not be remapped: replace the GPU"))
    if measured.retirement_pending:
        faults.append(Fault(kind=catalogue.RETIREMENT_PENDING, message="a memory page is retired only after a reset"))
    if measured.retired_pages >= MAX_RETIRED:
        message = f"{measured.retired_pages} memory pages are retired; from {MAX_RETIRED} on the GPU is to be replaced"
        faults.append(Fault(kind=catalogue.PAGES_RETIRED, message=message))
    if measured.recovery_action in _ACTIONS:
        faults.append(_ACTIONS[measured.recovery_action])
    return faults


def with_fault(known: Faults, fault: Fault, *, now: float) -> Faults:
    """Return the faults with one that an event reported added or renewed."""
    return {**known, fault.kind: ObservedFault(fault=fault, at=now)}


def after_reading(known: Faults, faults: Iterable[Fault], *, now: float, quiet: float, reset: bool) -> Faults:
    """Return the faults after a reading that reported some, and whether the card was reset."""
    fresh = {fault.kind: ObservedFault(fault=fault, at=now) for fault in faults}
    # It was reset, too, if the driver asked for a reset before, and now answers for the card and asks for none.
    asks_or_is_silent = any(observed.remedy > Remedy.UNTOLD or kind in _NEEDS for kind, observed in fresh.items())
    was_reset = reset or (catalogue.RESET_NEEDED in known and not asks_or_is_silent)
    lasting = {
        kind: observed
        for kind, observed in known.items()
        if _lasts(observed, quiet_for=now - observed.at, quiet=quiet, reset=was_reset)
    }
    return {**lasting, **fresh}


_NEEDS: Final = {catalogue.RESET_NEEDED, catalogue.REBOOT_NEEDED, catalogue.DRAIN_NEEDED}


def _lasts(observed: ObservedFault, *, quiet_for: float, quiet: float, reset: bool) -> bool:
    """Return whether a fault persists that was not reported again."""
    if observed.remedy is Remedy.QUIET:
        return quiet_for < quiet
    return observed.remedy is Remedy.REBOOT or (observed.remedy is Remedy.RESET and not reset)


def restored(faults: Iterable[Fault], *, now: float) -> Faults:
    """Return the state of a card that an agent knows after its restart.

    Quiet periods start again, because events during the restart are unknown. Measured values are kept until the first
    reading. If the driver requested a reset before, and does not now, there was a reset.
    """
    return {fault.kind: ObservedFault(fault=fault, at=now) for fault in faults}
