"""A fault of a device, and its form in the Device's spec.

An unhealthy device carries the condition `Healthy=False` as a summary, and one condition for each fault. The
condition's type is the kind of the fault. Its reason is what ends the fault. So after a restart, an agent needs only
the object on the server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from berth_agent.conditions import HEALTHY, Finding, unhealthy
from berth_agent.health import catalogue
from berth_api.device import DeviceInfo

MAX_FAULTS: Final = 7
"""A device has room for eight conditions. One of them summarizes the others."""
MAX_MESSAGE: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One reason not to allocate a device."""

    kind: str
    """`GpuIsLost`; the type of its condition."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultEvent:
    """A fault that an event reports between two readings; it triggers a reading."""

    node: str
    card: str = ""
    """UUID of the GPU; empty if all GPUs may be affected."""
    faults: tuple[Fault, ...] = ()


def mark(device: DeviceInfo, faults: Iterable[Fault]) -> DeviceInfo:
    """Return the device with these faults and no others, the most severe first. Excess faults are left out."""
    ordered = sorted(faults, key=lambda fault: (-catalogue.of(fault.kind), fault.kind))[:MAX_FAULTS]
    if not ordered:
        return device.model_copy(update={"health": True, "conditions": []})
    message = "; ".join(fault.message[:MAX_MESSAGE] or fault.kind for fault in ordered)
    summed = unhealthy(device, reason=ordered[0].kind, message=message)
    details = []
    for fault in ordered:
        remedy = catalogue.WORDS[catalogue.of(fault.kind)]
        finding = Finding(type=fault.kind, ok=True, reason=remedy, message=fault.message[:MAX_MESSAGE])
        details.append(finding.condition())
    return summed.model_copy(update={"conditions": [*summed.conditions, *details]})


def faults_of(device: DeviceInfo) -> tuple[Fault, ...]:
    """Return the faults of a device."""
    if device.health:
        return ()
    faults = tuple(
        Fault(kind=condition.type, message=condition.message)
        for condition in device.conditions
        if condition.status == "True"
    )
    return faults or tuple(
        Fault(kind=condition.reason, message=condition.message)
        for condition in device.conditions
        if condition.type == HEALTHY
    )


def with_more(device: DeviceInfo, faults: Sequence[Fault]) -> DeviceInfo:
    """Return the device with these faults added to its existing faults."""
    return mark(device, [*faults_of(device), *faults]) if faults else device
