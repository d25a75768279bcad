"""What is published of a node's use, computed from what containers hold; pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from berth_agent.kubelet.admission.mirror import Holding
from berth_agent.kubelet.admission.units import Units
from berth_api.device import MAX_HELD, HeldByContainer, HeldDevice
from berth_api.gpupod import ContainerDevices, GpuPodSpec

GPU: Final = "gpu"


def held(holdings: Iterable[Holding], units: Units) -> tuple[HeldByContainer, ...]:
    """Return what containers hold, in an order that does not change by itself."""
    found = [
        HeldByContainer(
            pod_uid=each.uid, namespace=each.namespace, pod=each.pod, container=each.container, devices=devices
        )
        for each in sorted(holdings, key=lambda each: (each.namespace, each.pod, each.uid, each.container))
        if (devices := _devices(each, units))
    ]
    return tuple(found[:MAX_HELD])


def gpu_pods(
    holdings: Iterable[Holding], units: Units, *, node: str, uids: Iterable[str]
) -> Mapping[tuple[str, str], GpuPodSpec]:
    """Return the GpuPods of the pods with these UIDs, by namespace and name."""
    there = frozenset(uids)
    found: dict[tuple[str, str], GpuPodSpec] = {}
    for each in holdings:
        devices = _devices(each, units)
        if each.uid in there and devices:
            spec = GpuPodSpec(node_name=node, pod_uid=each.uid, containers=[])
            spec = found.setdefault((each.namespace, each.pod), spec)
            spec.containers.append(ContainerDevices(name=each.container, devices=devices))
    return found


def _devices(holding: Holding, units: Units) -> list[HeldDevice]:
    found = ((unit, units.minor(unit)) for unit in holding.ids)
    return [HeldDevice(type=GPU, minor=minor, id=unit) for unit, minor in found if minor is not None]
