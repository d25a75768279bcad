"""The published use of a node, computed from what containers hold. Pure functions."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from berth_agent.conditions import Finding
from berth_agent.kubelet.admission.mirror import Holding, UnmatchedUnit
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.admission.units import Units
from berth_agent.usage.summary import Summaries
from berth_api import names
from berth_api.device import MAX_DEVICES, MAX_HELD, HeldByContainer, HeldDevice, RunningPod
from berth_api.objects.gpupod import MAX_CONTAINERS, ContainerDevices, GpuPodSpec

GPU: Final = "gpu"
MAX_ID: Final = 128
"""Characters of an id; only an invalid allocation has more."""
SHOWN: Final = 8
"""Unmatched ids that a condition names."""


def held(holdings: Iterable[Holding], units: Units, *, uids: Iterable[str]) -> tuple[HeldByContainer, ...]:
    """Return what containers hold, in an order that does not change by itself. A Device lists the first `MAX_HELD`.

    The operator charges what is listed there. So a container with more devices than one entry has room for gets several
    entries: a device that was left out could be given twice. If there are too many entries, those of pods with these
    UIDs are last. These pods exist, and their GpuPods list the devices, too.
    """
    existing = frozenset(uids)
    ordered = sorted(holdings, key=lambda holding: (holding.namespace, holding.pod, holding.uid, holding.container))
    entries = [
        HeldByContainer(
            pod_uid=holding.uid,
            namespace=holding.namespace,
            pod=holding.pod,
            container=holding.container,
            devices=devices,
        )
        for holding in ordered
        for devices in _devices(holding, units)
    ]
    if len(entries) > MAX_HELD:
        entries.sort(key=lambda entry: entry.pod_uid in existing)
    return tuple(entries)


def running(
    before: Iterable[RunningPod], pods: Iterable[Pod], units: Units, with_processes: Callable[[], Collection[str]]
) -> tuple[RunningPod, ...]:
    """Return the pods with GPUs that kubelet does not know; one that has gone or ended, until it has no process.

    Args:
        before: what was returned before.
        pods: the node's pods.
        units: the node's cards.
        with_processes: returns the UIDs of the pods that have a process.
    """
    current = [
        RunningPod(pod_uid=pod.uid, namespace=pod.namespace, pod=pod.name, devices=_allocated(pod, units))
        for pod in pods
        if pod.grants and not pod.uses_plugin and not pod.ended
    ]
    uids = {pod.pod_uid for pod in current}
    gone = [pod for pod in before if pod.pod_uid not in uids]
    alive = with_processes() if gone else ()
    left = [pod for pod in gone if pod.pod_uid in alive]
    # In an order that does not change by itself. If there are too many, some that exist are left out: they are known.
    return tuple(sorted([*left, *current], key=lambda pod: (pod.pod_uid in uids, pod.pod_uid))[:MAX_HELD])


def gpu_pods(
    holdings: Iterable[Holding], units: Units, summaries: Summaries, *, node: str, uids: Iterable[str]
) -> tuple[Mapping[tuple[str, str], GpuPodSpec], frozenset[tuple[str, str]]]:
    """Return the GpuPods of the pods with these UIDs that kubelet gave devices, and the pods with too many containers.

    Both are by namespace and name. A pod with more containers than a GpuPod has room for gets none: the operator
    prefers the GpuPod to what the node's Device lists as held, and would not charge what was left out.
    """
    existing = frozenset(uids)
    containers: defaultdict[tuple[str, str, str], list[ContainerDevices]] = defaultdict(list)
    for holding in holdings:
        if holding.uid in existing:
            key = holding.namespace, holding.pod, holding.uid
            listed = _devices(holding, units)
            containers[key] += [ContainerDevices(name=holding.container, devices=devices) for devices in listed]
    specs, too_large = {}, set()
    for (namespace, pod, uid), entries in containers.items():
        if len(entries) > MAX_CONTAINERS:
            too_large.add((namespace, pod))
        elif entries:
            shown = summaries.of_devices(device for entry in entries for device in entry.devices)
            specs[namespace, pod] = GpuPodSpec(node_name=node, pod_uid=uid, containers=entries, **shown)
    return specs, frozenset(too_large)


def allocated_pods(
    pods: Iterable[Pod], units: Units, summaries: Summaries, *, node: str
) -> Mapping[tuple[str, str], GpuPodSpec]:
    """Return the GpuPods of the pods whose GPUs kubelet does not know, by namespace and name, until they end."""
    return {
        (pod.namespace, pod.name): GpuPodSpec(
            node_name=node,
            pod_uid=pod.uid,
            containers=[],
            allocated=_allocated(pod, units),
            **summaries.of_grants(pod.grants),
        )
        for pod in pods
        if pod.grants and not pod.uses_plugin and not pod.ended
    }


def unmatched_finding(unmatched: Sequence[UnmatchedUnit], units: Units) -> Finding | None:
    """Return the condition about ids of kubelet that do not show which card it is; None if there are none."""
    if not unmatched:
        return None
    listed = "; ".join(_unmatched_text(unit, units) for unit in unmatched[:SHOWN])
    more = f"; and {len(unmatched) - SHOWN} more" if len(unmatched) > SHOWN else ""
    message = (
        f"kubelet gave containers devices by ids that do not show which GPU it is: {listed}{more}. Berth allocates "
        "none of these GPUs until the containers end. Let the agent offer the GPUs (--device-plugin), or use a device "
        "plug-in whose ids are UUIDs"
    )
    return Finding(type=names.DEVICE_IDS_MATCHED, ok=False, reason="UnknownDeviceIDs", message=message)


def _unmatched_text(unit: UnmatchedUnit, units: Units) -> str:
    named = f"{unit.resource} {unit.id[:MAX_ID]!r} of pod {unit.pod}".lstrip()
    if not unit.is_named:
        return f"{named} is no known id, so it may be any GPU of the node"
    minors = sorted({units.minors[card] for card in unit.cards})
    return f"{named} may be " + " or ".join(f"GPU {minor}" for minor in minors)


def _allocated(pod: Pod, units: Units) -> list[HeldDevice]:
    """Return the GPUs of a pod's allocation, with the minors that the cards have now."""
    return [
        HeldDevice(type=GPU, minor=units.minors.get(grant.visible, grant.minor), id=grant.id[:MAX_ID])
        for grant in pod.grants[:MAX_DEVICES]
    ]


def _devices(holding: Holding, units: Units) -> list[list[HeldDevice]]:
    """Return a container's devices, in lists of up to `MAX_DEVICES`."""
    minors = ((unit, units.minor(unit)) for unit in holding.ids)
    devices = [HeldDevice(type=GPU, minor=minor, id=unit[:MAX_ID]) for unit, minor in minors if minor is not None]
    return [devices[start : start + MAX_DEVICES] for start in range(0, len(devices), MAX_DEVICES)]
