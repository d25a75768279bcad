"""How faults of a device begin and end. Pure functions of what was observed, and when.

An answer of the library never proves that a device is healthy, because the library still answers after most faults.
Only the remedy of its class (`catalogue`) ends a fault.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from berth_agent.health import catalogue
from berth_agent.health.catalogue import Remedy
from berth_agent.health.faults import Fault


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
