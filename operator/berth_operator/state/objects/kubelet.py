"""The agents' reports about kubelet, parsed from the API: GpuPods, and the agent's part of a Device's status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import ValidationError

from berth_api.allocation import REPLICA_MARK, device_ids
from berth_api.device import REPORTED, DeviceStatus, ExceedingUse, HeldDevice, UnheldUse
from berth_api.names import GPU
from berth_api.objects import gpupod
from berth_api.objects.gpupod import GpuPodSpec
from berth_api.values import keys
from berth_api.values.caching import compact
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.fleet.kubelet_allocation import ActualAllocation, KubeletDevice

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReport:
    """What an agent reports about its node."""

    boot_id: str = ""
    held: Mapping[str, ActualAllocation]
    """UID of a pod, also of a deleted one -> what it holds according to kubelet."""
    withheld: tuple[int, ...] = ()
    """Minors of GPUs that are reported to kubelet as unhealthy because pods hold shares of them."""
    foreign: tuple[KubeletDevice, ...] = ()
    """Cards that processes outside Kubernetes use."""
    claimed: Mapping[str, tuple[DeviceID, ...]] = field(default_factory=dict)
    """ResourceClaim (namespace/name), also one that is gone -> its devices that containers have."""
    exceeding: tuple[ExceedingUse, ...] = ()
    """Pods that use more memory of a card than their share."""
    unheld: tuple[UnheldUse, ...] = ()
    """Pods that use cards which they do not hold."""
    uncertain: tuple[KubeletDevice, ...] = ()
    """Cards that containers may have, by ids that do not show which card it is."""
    running: Mapping[str, ActualAllocation] = field(default_factory=dict)
    """UID of a pod with GPUs that kubelet does not know, also of one that has gone and still has processes -> these
    GPUs."""
    stopped: frozenset[str] = frozenset()
    """UIDs of pods that are being deleted, still exist, and have neither processes nor devices of kubelet."""

    def exceeded_by(self, uid: str, pod: str) -> tuple[ExceedingUse, ...]:
        """Return a pod's use above its shares. `pod` is namespace/name, because a stolen token can forge them."""
        return tuple(use for use in self.exceeding if (use.pod_uid, keys.join(use.namespace, use.pod)) == (uid, pod))

    def unheld_by(self, uid: str, pod: str) -> tuple[UnheldUse, ...]:
        """Return the pod's use of cards that it does not hold. `pod` is namespace/name."""
        return tuple(use for use in self.unheld if (use.pod_uid, keys.join(use.namespace, use.pod)) == (uid, pod))


NO_REPORT: Final = AgentReport(held={})


UNREADABLE: Final = "-"
"""The node of a GpuPod with an unreadable spec. No Node has this name."""

Consistency = tuple[str, str, str]
"""Whether a pod holds what it was allocated, as a condition: status, reason, message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPodRecord:
    """A GpuPod as the operator read it."""

    key: str
    """namespace/name of the GpuPod itself."""
    uid: str
    """UID of the GpuPod itself."""
    version: str = field(default="", compare=False)
    """The resourceVersion that was read."""
    actual: ActualAllocation
    conditions: tuple[Object, ...] = ()


def gpu_pod(obj: Object) -> GpuPodRecord:
    """Read a GpuPod; a spec that cannot be read, accepted by another version of the CRD, counts as empty."""
    metadata = obj["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    try:
        spec = GpuPodSpec.model_validate(obj.get("spec") or {})
    except ValidationError:
        spec = GpuPodSpec(node_name=UNREADABLE, pod_uid="")
    containers = tuple((container.name, _devices(container.devices)) for container in spec.containers)
    pod = keys.join(namespace, gpupod.pod_of(name, spec.node_name))
    return GpuPodRecord(
        key=keys.join(namespace, name),
        uid=metadata["uid"],
        version=metadata.get("resourceVersion", ""),
        actual=ActualAllocation(uid=spec.pod_uid, pod=pod, node=spec.node_name, containers=containers),
        conditions=tuple((obj.get("status") or {}).get("conditions") or ()),
    )


def text(status: Object) -> bytes:
    """Return the agent's part of a Device's status as JSON, because comparing text is faster than parsing."""
    return compact(orjson.dumps([status.get(name) for name in REPORTED]))


NOTHING: Final = text({})


def agent_report(node: str, status: Object) -> tuple[AgentReport, tuple[str, ...]]:
    """Read the agent's part of a Device's status; return the report, and the unreadable fields."""
    try:
        fields = DeviceStatus.model_validate({name: status[name] for name in REPORTED if status.get(name)})
    except ValidationError as error:
        first = error.errors()[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        return NO_REPORT, (f"status{path}: {first['msg']}; the agent's report about kubelet is ignored",)
    held: dict[str, ActualAllocation] = {}
    for entry in fields.held:
        before = held[entry.pod_uid].containers if entry.pod_uid in held else ()
        containers = (*before, (entry.container, _devices(entry.devices)))
        pod = keys.join(entry.namespace, entry.pod)
        held[entry.pod_uid] = ActualAllocation(uid=entry.pod_uid, pod=pod, node=node, containers=containers)
    claimed: dict[str, tuple[DeviceID, ...]] = {}
    for device in fields.claimed:
        key = keys.join(device.namespace, device.claim)
        claimed[key] = (*claimed.get(key, ()), DeviceID(device.driver, device.pool, device.device))
    return AgentReport(
        boot_id=fields.boot_id,
        held=held,
        withheld=tuple(fields.withheld),
        foreign=tuple(KubeletDevice(type=card.type, minor=card.minor, id="") for card in fields.foreign),
        claimed=claimed,
        exceeding=tuple(fields.exceeding),
        unheld=tuple(fields.unheld),
        uncertain=tuple(KubeletDevice(type=GPU, minor=minor, id="") for minor in fields.uncertain),
        running={
            pod.pod_uid: ActualAllocation(
                uid=pod.pod_uid,
                pod=keys.join(pod.namespace, pod.pod),
                node=node,
                containers=(("", _devices(pod.devices)),),
            )
            for pod in fields.running
        },
        stopped=frozenset(fields.stopped),
    ), ()


def _devices(devices: Iterable[HeldDevice]) -> tuple[KubeletDevice, ...]:
    """Return the devices whose ids can be a card's id. Other devices reach no annotation."""
    return tuple(
        KubeletDevice(type=device.type, minor=device.minor, id=device.id)
        for device in devices
        if device_ids.is_valid_unit(device.type, device.id, REPLICA_MARK)
    )
