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
    entries = [
        HeldByContainer(
            pod_uid=holding.uid,
            namespace=holding.namespace,
            pod=holding.pod,
            container=holding.container,
            devices=devices,
        )
        for holding in sorted(
            holdings, key=lambda holding: (holding.namespace, holding.pod, holding.uid, holding.container)
        )
        if (devices := _devices(holding, units))
    ]
    return tuple(entries[:MAX_HELD])


def gpu_pods(
    holdings: Iterable[Holding], units: Units, *, node: str, uids: Iterable[str]
) -> Mapping[tuple[str, str], GpuPodSpec]:
    """Return the GpuPods of the pods with these UIDs, by namespace and name."""
    existing = frozenset(uids)
    specs: dict[tuple[str, str], GpuPodSpec] = {}
    for holding in holdings:
        devices = _devices(holding, units)
        if holding.uid in existing and devices:
            spec = GpuPodSpec(node_name=node, pod_uid=holding.uid, containers=[])
            spec = specs.setdefault((holding.namespace, holding.pod), spec)
            spec.containers.append(ContainerDevices(name=holding.container, devices=devices))
    return specs


def _devices(holding: Holding, units: Units) -> list[HeldDevice]:
    minors = ((unit, units.minor(unit)) for unit in holding.ids)
    return [HeldDevice(type=GPU, minor=minor, id=unit) for unit, minor in minors if minor is not None]
