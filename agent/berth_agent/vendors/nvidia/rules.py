"""What events and measurements of NVIDIA's driver mean for the health of their card. Pure functions."""

from dataclasses import dataclass
from typing import Final

from berth_agent.health import catalogue as kinds
from berth_agent.health.checks import Checks
from berth_agent.health.faults import Fault
from berth_agent.vendors.nvidia import catalogue

MAX_RETIRED: Final = 60
"""Number of retired pages at which NVIDIA replaces a card. At 64, no more pages can be retired."""
ANY_INSTANCE: Final = 0xFFFFFFFF
"""The placeholder for the instance in events that concern the whole card."""

# Values of NVML's nvmlDeviceGpuRecoveryAction_t.
_ACTIONS: Final = {
    1: Fault(kind=kinds.RESET_NEEDED, message="the driver says that the GPU needs a reset"),
    2: Fault(kind=kinds.REBOOT_NEEDED, message="the driver says that the node needs a reboot"),
    3: Fault(kind=kinds.DRAIN_NEEDED, message="the driver says that peer-to-peer traffic must be drained"),
    4: Fault(kind=kinds.RESET_NEEDED, message="the driver says that the GPU must be drained and reset"),
    5: Fault(kind=kinds.DRAIN_NEEDED, message="the driver says that the IMEX domain must be recovered"),
    6: Fault(kind=kinds.RESET_NEEDED, message="the driver says that the GPU needs a reset of its bus"),
    7: Fault(kind=kinds.REBOOT_NEEDED, message="the driver says that the system needs a reboot"),
}


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
    return Fault(kind=kinds.DOUBLE_BIT, message="double-bit ECC error") if checks.memory else None


def of_measured(measured: Measured, checks: Checks) -> list[Fault]:
    """Return what the driver's figures mean for their card.

    Rows that wait to be remapped are no fault, because the driver does not use their pages until then. A page that
    waits to be retired is a fault, because applications still get it until the reset.
    """
    if not checks.memory:
        return []
    faults = []
    if measured.remap_failed:
        faults.append(Fault(kind=kinds.REMAP_FAILED, message="a memory row could not be remapped: replace the GPU"))
    if measured.retirement_pending:
        faults.append(Fault(kind=kinds.RETIREMENT_PENDING, message="a memory page is retired only after a reset"))
    if measured.retired_pages >= MAX_RETIRED:
        message = f"{measured.retired_pages} memory pages are retired; from {MAX_RETIRED} on the GPU is to be replaced"
        faults.append(Fault(kind=kinds.PAGES_RETIRED, message=message))
    if measured.recovery_action in _ACTIONS:
        faults.append(_ACTIONS[measured.recovery_action])
    return faults
