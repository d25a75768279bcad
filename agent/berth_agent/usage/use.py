"""The published use of a node, computed from what containers hold. Pure functions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from berth_agent.kubelet.admission.mirror import Holding
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.units import Units
from berth_agent.usage.summary import Summaries
from berth_api.device import MAX_DEVICES, MAX_HELD, HeldByContainer, HeldDevice
from berth_api.objects.gpupod import ContainerDevices, GpuPodSpec

GPU: Final = "gpu"
MAX_ID: Final = 128
"""Characters of an id; only an invalid allocation has more."""


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
    holdings: Iterable[Holding], units: Units, summaries: Summaries, *, node: str, uids: Iterable[str]
) -> Mapping[tuple[str, str], GpuPodSpec]:
    """Return the GpuPods of the pods with these UIDs that kubelet gave devices, by namespace and name."""
    existing = frozenset(uids)
    containers: defaultdict[tuple[str, str, str], list[ContainerDevices]] = defaultdict(list)
    for holding in holdings:
        devices = _devices(holding, units)
        if holding.uid in existing and devices:
            key = holding.namespace, holding.pod, holding.uid
            containers[key].append(ContainerDevices(name=holding.container, devices=devices))
    return {
        (namespace, pod): GpuPodSpec(
            node_name=node, pod_uid=uid, containers=listed, **summaries.of_devices(d for c in listed for d in c.devices)
        )
        for (namespace, pod, uid), listed in containers.items()
    }


def allocated_pods(
    pods: Iterable[Pod], units: Units, summaries: Summaries, *, node: str
) -> Mapping[tuple[str, str], GpuPodSpec]:
    """Return the GpuPods of the pods whose GPUs kubelet does not know, by namespace and name, until they end."""
    return {
        (pod.namespace, pod.name): GpuPodSpec(
            node_name=node,
            pod_uid=pod.uid,
            containers=[],
            allocated=[
                # With the minor that the card has now.
                HeldDevice(type=GPU, minor=units.minors.get(grant.visible, grant.minor), id=grant.id[:MAX_ID])
                for grant in pod.grants[:MAX_DEVICES]
            ],
            **summaries.of_grants(pod.grants),
        )
        for pod in pods
        if pod.grants and not pod.uses_plugin and not pod.ended
    }


def _devices(holding: Holding, units: Units) -> list[HeldDevice]:
    minors = ((unit, units.minor(unit)) for unit in holding.ids)
    return [HeldDevice(type=GPU, minor=minor, id=unit) for unit, minor in minors if minor is not None]
