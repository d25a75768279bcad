"""The agents' reports about kubelet, parsed from the API: GpuPods, and the agent's part of a Device's status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from pydantic import ValidationError

from berth_api.allocation import REPLICA_MARK, device_ids
from berth_api.device import ClaimedDevice, DeviceStatus, ExceedingUse, HeldByContainer, HeldDevice, UnheldUse
from berth_api.objects import gpupod
from berth_api.objects.gpupod import GpuPodSpec
from berth_api.values import keys
from berth_api.values.caching import compact
from berth_operator.core.dra.slices import DeviceID
from berth_operator.core.fleet.kubelet_allocation import ActualAllocation, KubeletDevice

Object = Mapping[str, Any]

FIELDS: Final = ("held", "bootID", "withheld", "foreign", "claimed", "exceeding", "unheld")
"""Fields of a Device's status that its agent writes, in addition to conditions."""


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

    def exceeded_by(self, uid: str, pod: str) -> tuple[ExceedingUse, ...]:
        """Return what a pod uses above its shares; `pod` is namespace/name, because a stolen token can forge them."""
        return tuple(use for use in self.exceeding if (use.pod_uid, keys.join(use.namespace, use.pod)) == (uid, pod))

    def unheld_by(self, uid: str, pod: str) -> tuple[UnheldUse, ...]:
        """Return what a pod uses without holding it; `pod` is namespace/name."""
        return tuple(use for use in self.unheld if (use.pod_uid, keys.join(use.namespace, use.pod)) == (uid, pod))


NO_REPORT: Final = AgentReport(held={})


UNREADABLE: Final = "-"
"""The node of a GpuPod whose spec cannot be read; no Node has this name."""

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
    containers = tuple((each.name, _devices(each.devices)) for each in spec.containers)
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
    return compact(orjson.dumps([status.get(name) for name in FIELDS]))


NOTHING: Final = text({})


def agent_report(node: str, status: Object) -> tuple[AgentReport, tuple[str, ...]]:
    """Read the agent's part of a Device's status; return the report, and what cannot be read."""
    try:
        fields = DeviceStatus.model_validate({name: status[name] for name in FIELDS if status.get(name)})
    except ValidationError as error:
        first = error.errors()[0]
        path = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        return NO_REPORT, (f"status{path}: {first['msg']}; the agent's report about kubelet is ignored",)
    foreign = tuple(KubeletDevice(type=each.type, minor=each.minor, id="") for each in fields.foreign)
    return AgentReport(
        boot_id=fields.boot_id,
        held=_held(node, fields.held),
        withheld=tuple(fields.withheld),
        foreign=foreign,
        claimed=_claimed(fields.claimed),
        exceeding=tuple(fields.exceeding),
        unheld=tuple(fields.unheld),
    ), ()


def _held(node: str, entries: Iterable[HeldByContainer]) -> dict[str, ActualAllocation]:
    held: dict[str, ActualAllocation] = {}
    for entry in entries:
        known = held.get(entry.pod_uid)
        containers = (*(known.containers if known else ()), (entry.container, _devices(entry.devices)))
        pod = keys.join(entry.namespace, entry.pod)
        held[entry.pod_uid] = ActualAllocation(uid=entry.pod_uid, pod=pod, node=node, containers=containers)
    return held


def _claimed(entries: Iterable[ClaimedDevice]) -> dict[str, tuple[DeviceID, ...]]:
    claimed: dict[str, tuple[DeviceID, ...]] = {}
    for entry in entries:
        key = keys.join(entry.namespace, entry.claim)
        claimed[key] = (*claimed.get(key, ()), DeviceID(entry.driver, entry.pool, entry.device))
    return claimed


def _devices(devices: Iterable[HeldDevice]) -> tuple[KubeletDevice, ...]:
    """Return the devices whose ids can be those of a card: the others reach no annotation."""
    return tuple(
        KubeletDevice(type=each.type, minor=each.minor, id=each.id)
        for each in devices
        if device_ids.is_valid_unit(each.type, each.id, REPLICA_MARK)
    )
