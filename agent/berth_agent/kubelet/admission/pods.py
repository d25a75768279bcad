"""Pods of the node as the mirror needs them: their containers' requests to kubelet, and their allocations."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from berth_api import allocation, names, request
from berth_api.allocation import Grant, mig
from berth_api.resources import quantity
from berth_api.values import keys

Object = Mapping[str, Any]

PLUGIN: Final = frozenset(filter(request.is_counted_on_node, request.VENDORS))
"""Resources of device plugins of the built-in vendors; MIG instances have one for each profile, too."""
OF_GPUS: Final = ("gpu", "cuda")
"""Parts of the names of resources with which other device plugins may allocate cards. So do the domains of the own
plugin's names."""
CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""Annotation of a static pod: the UID that kubelet knows it by. Its Pod object has another one."""
CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the Pod object of a static pod. Kubelet runs no other pod with this annotation, so a pod with processes
of its own cannot take the UID of another pod by `CONFIG_HASH`."""
NCCL_IB_HCA: Final = "NCCL_IB_HCA"
"""The variable by which NCCL chooses among the NICs of a machine."""
ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The requests of one container."""

    name: str
    wants: Mapping[str, int] = field(default_factory=dict)
    """Resource of the device plugin -> how many."""
    ends: bool = False
    """Whether it ends before the next container begins, so that kubelet gives its devices to later containers, too."""
    visible: tuple[str, ...] = ()
    """Ids of the cards and instances that were annotated for it."""
    by_mps: bool = False
    """Whether it is limited to its shares by MPS."""
    mps_memory: str = ""
    """Its limits of memory, as annotated: `0=4096M,1=…`, for the cards in `visible`."""
    mps_threads: str = ""
    """Its percentage of multiprocessors, as annotated."""
    sets_hca: bool = False
    """Whether its own variables choose NICs for NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the node."""

    uid: str
    namespace: str
    name: str
    created: str = ""
    version: int = 0
    """Its object's resourceVersion."""
    containers: tuple[ContainerSpec, ...] = ()
    """The containers in the order in which kubelet allocates for them."""
    grants: tuple[Grant, ...] = ()
    """The GPUs of its annotation."""
    nics: tuple[Grant, ...] = ()
    """The RDMA NICs of its annotation."""
    started: bool = False
    """Whether kubelet has written a status, which it does after it admitted the pod."""
    ended: bool = False
    deleting: bool = False
    """Whether it is being deleted; a finalizer may keep it after its end."""
    may_hold_any: bool = False
    """Whether it may hold cards that neither its allocation nor the plugin's resources show. ResourceClaims or other
    plugins' resources may give it such cards. So may an allocation that cannot be read, if it requests nothing of the
    plugin."""
    static_uid: str = ""
    """The UID of a static pod in the cgroups of its processes; empty for other pods."""
    container_ids: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Container id of the runtime -> name of the container. Allocations do not depend on these ids, so a changed id
    does not change the pod."""

    started_at: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Name of a container that runs -> since when, in RFC 3339."""

    @property
    def granted(self) -> tuple[str, ...]:
        """Return the ids of its annotation in their order."""
        return tuple(grant.id for grant in self.grants)

    @property
    def cgroup_uid(self) -> str:
        """Return the UID in the cgroups of its processes."""
        return self.static_uid or self.uid

    @property
    def uses_plugin(self) -> bool:
        """Return whether kubelet asks for devices for it."""
        return any(container.wants for container in self.containers)

    @property
    def wanted_of_plugin(self) -> int:
        """Return how many devices kubelet has given it once it is admitted: init containers hand theirs on."""
        init = [sum(container.wants.values()) for container in self.containers if container.ends]
        return max(*init, sum(sum(container.wants.values()) for container in self.containers if not container.ends), 0)

    @property
    def key(self) -> str:
        """Return namespace/name."""
        return keys.join(self.namespace, self.name)


def of_object(raw: Object, plugin: Collection[str] = PLUGIN) -> Pod:
    """Read a pod. An invalid annotation counts as absent, because the operator reports it.

    Args:
        raw: the pod.
        plugin: the device plugin's resources, besides partitions of cards.
    """
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    annotations = metadata.get("annotations") or {}
    first = [_container(container, annotations, plugin, init=True) for container in spec.get("initContainers") or ()]
    last = [_container(container, annotations, plugin, init=False) for container in spec.get("containers") or ()]
    allocated = _allocated(annotations.get(names.ALLOCATED) or "{}")
    gpus = [grant for grant in allocated or () if grant.type == names.GPU]
    grants = tuple(grant for grant in gpus if grant.id)
    # ResourceClaims, also one for an extended resource that a DeviceClass provides.
    has_claims = bool(spec.get("resourceClaims") or status.get("extendedResourceClaimStatus"))
    container_ids, started_at = {}, {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if runtime_id := container.get("containerID"):
            # Without the runtime: `containerd://1f2e…`.
            container_ids[runtime_id.rpartition("/")[2]] = container["name"]
        if since := ((container.get("state") or {}).get("running") or {}).get("startedAt"):
            started_at[container["name"]] = since
    return Pod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        version=int(metadata.get("resourceVersion") or 0),
        containers=(*first, *last),
        grants=grants,
        nics=tuple(grant for grant in allocated or () if grant.type == names.RDMA),
        started=bool(status.get("startTime")),
        ended=status.get("phase") in ENDED,
        deleting=bool(metadata.get("deletionTimestamp")),
        may_hold_any=has_claims
        or (not grants and _uses_other_plugin(spec, plugin))
        or (
            (allocated is None or len(grants) < len(gpus)) and not any(container.wants for container in (*first, *last))
        ),
        static_uid=(annotations.get(CONFIG_HASH) or "") if CONFIG_MIRROR in annotations else "",
        container_ids=container_ids,
        started_at=started_at,
    )


def unreadable(raw: Object) -> Pod:
    """Return a pod that `of_object` cannot read: it may hold any card."""
    metadata = raw["metadata"]
    return Pod(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        created=metadata.get("creationTimestamp") or "",
        version=int(metadata.get("resourceVersion") or 0),
        deleting=bool(metadata.get("deletionTimestamp")),
        may_hold_any=True,
    )


def _container(raw: Object, annotations: Mapping[str, str], plugin: Collection[str], *, init: bool) -> ContainerSpec:
    limits = (raw.get("resources") or {}).get("limits") or {}
    wants = {name: quantity.parse(amount) for name, amount in limits.items() if is_of_plugin(name, plugin)}
    visible = annotations.get(raw["name"] + names.VISIBLE_SUFFIX) or ""
    by_mps = names.MPS_RESOURCE in limits
    return ContainerSpec(
        name=raw["name"],
        wants={name: amount for name, amount in wants.items() if amount},
        ends=init and raw.get("restartPolicy") != "Always",
        visible=tuple(filter(None, visible.split(","))),
        by_mps=by_mps,
        mps_memory=annotations.get(raw["name"] + names.MPS_MEMORY_SUFFIX, "") if by_mps else "",
        mps_threads=annotations.get(raw["name"] + names.MPS_THREADS_SUFFIX, "") if by_mps else "",
        sets_hca=any(variable["name"] == NCCL_IB_HCA for variable in raw.get("env") or ()),
    )


def is_of_plugin(resource: str, plugin: Collection[str] = PLUGIN) -> bool:
    """Return whether the device plugin with these resources offers a resource: one of them, or partitions of cards."""
    return resource in plugin or mig.is_resource(resource)


def _uses_other_plugin(spec: Object, plugin: Collection[str]) -> bool:
    """Return whether a container requests a resource with which another device plugin may allocate cards."""
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    requests = [(container.get("resources") or {}).get("limits") or {} for container in containers]
    wanted = {name for limits in requests for name, amount in limits.items() if quantity.parse(amount)}
    parts = (*OF_GPUS, *{name.partition("/")[0] + "/" for name in plugin})
    return any(not is_of_plugin(name, plugin) and any(part in name for part in parts) for name in wanted)


def _allocated(annotation: str) -> tuple[Grant, ...] | None:
    """Return the devices that an annotation names; None if it cannot be read."""
    try:
        return allocation.parse(annotation)
    except allocation.AllocationError:
        return None
