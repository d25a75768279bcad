"""A snapshot of the cluster that can be saved, and loaded into the state by the same code as live objects.

A snapshot contains only what scheduling reads. `KEPT` lists every field, so that a file has neither the commands of
containers nor the parameters of storage classes. The only environment variables in a snapshot are the ones that Berth
injects. The only annotations are the ones for scheduling.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from berth_api import names, words
from berth_api.admission import injection
from berth_api.device import REPORTED
from berth_api.request import BUILT_IN, Kinds
from berth_api.values import keys
from berth_client.reflector import GetPage, Source, list_once
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import limits
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.objects import endings, groups, kubernetes_groups
from berth_operator.state.objects.genius_priority import UNLIMITED, PriorityLimits
from berth_operator.state.watches import sinks, sources
from berth_operator.state.watches.pod_watches import ALIVE, ENDED, pods_where
from berth_operator.state.watches.storage import Storage

Object = dict[str, Any]
Tree = Mapping[str, Any]
"""Field -> tree of the kept fields below it, or `...` for everything. It applies to each element of a list.

A function returns the kept part of a whole value.
"""

AT_ONCE: Final = 3
"""Lists under way at the same time: the API server writes some while others are decoded."""
TURN: Final = 50
"""Objects, put in about 10 ms, after which the next page may be asked for."""
PODS: Final = "pods"
ENDED_PODS: Final = "ended pods"
PRIORITY_CLASSES: Final = "priority classes"
RESOURCE_CLAIMS: Final = "resource claims"
CLAIM_TEMPLATES: Final = "resource claim templates"
"""Templates that the pods of a workload may name. The operator reads only the claims made from them."""
VERSION: Final = "version"
"""The API server's version; before all pods."""
OPERATOR: Final = "operator"
"""What is known of the operator: its settings, which nodes the snapshot has, and when it was taken."""

ANNOTATIONS: Final = (
    "berth.dev/",
    "scheduling.koordinator.sh/",
    "nvidia-gpu-scheduler/",
    "volume.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "pv.kubernetes.io/bind-completed",
    "storageclass.kubernetes.io/",
)
"""Prefixes of the annotations that are kept. Annotations of other systems that are read are kept, too, and annotations
from which containers read which cards they see."""


def _injected(env: Sequence[Object]) -> list[Object]:
    """Return the variables that decide which cards a container sees and how much it may use of them."""
    read = {"name": ..., "value": ..., "valueFrom": {"fieldRef": {"fieldPath": ...}}}
    return [_pruned(variable, read) for variable in env if injection.is_variable(variable) or limits.is_limit(variable)]


_METADATA: Final = {
    **dict.fromkeys(("name", "namespace", "uid", "labels", "generation", "resourceVersion"), ...),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp", "annotations"), ...),
    "ownerReferences": dict.fromkeys(("apiVersion", "kind", "name", "uid", "controller"), ...),
}
_SEEING: Final = {"name": ..., "env": _injected, "securityContext": {"privileged": ...}}
_CONTAINER: Final = {
    **_SEEING,
    **dict.fromkeys(("image", "resources", "restartPolicy"), ...),
    "ports": dict.fromkeys(("hostPort", "hostIP", "protocol"), ...),
    "restartPolicyRules": {"action": ...},
}
_DISKS: Final = {
    "awsElasticBlockStore": {"volumeID": ...},
    "azureDisk": {"diskURI": ...},
    "cinder": {"volumeID": ...},
    "gcePersistentDisk": {"pdName": ..., "readOnly": ...},
    "portworxVolume": {"volumeID": ...},
}
_VOLUME: Final = {
    **_DISKS,
    "name": ...,
    "persistentVolumeClaim": {"claimName": ...},
    # Only its presence matters.
    "ephemeral": {},
    "image": {"reference": ...},
    "iscsi": {"iqn": ..., "readOnly": ...},
    "rbd": dict.fromkeys(("monitors", "pool", "image", "readOnly"), ...),
}
_RESIZED: Final = dict.fromkeys(("name", "resources", "allocatedResources"), ...)
_STORAGE: Final = dict.fromkeys(("storageClassName", "accessModes", "volumeMode", "volumeAttributesClassName"), ...)

KEPT: Final[Mapping[str, Tree]] = {
    "nodes": {
        "spec": {"taints": ..., "unschedulable": ...},
        "status": {
            **dict.fromkeys(("allocatable", "capacity", "declaredFeatures", "images"), ...),
            "nodeInfo": {"bootID": ...},
            "conditions": {"type": ..., "status": ...},
        },
    },
    "devices": {"spec": ..., "status": dict.fromkeys(("conditions", *REPORTED), ...)},
    "gpu pods": {"spec": ...},
    "leases": {"spec": {"renewTime": ..., "leaseDurationSeconds": ...}},
    "namespaces": {},
    "services": {"spec": {"selector": ...}},
    "budgets": {"spec": {"selector": ...}, "status": {"disruptionsAllowed": ..., "disruptedPods": ...}},
    "claims": {"spec": {**_STORAGE, "resources": ..., "selector": ..., "volumeName": ...}, "status": {"phase": ...}},
    "volumes": {
        "spec": {
            **_STORAGE,
            **_DISKS,
            "capacity": ...,
            "claimRef": dict.fromkeys(("namespace", "name", "uid"), ...),
            "nodeAffinity": ...,
            "csi": {"driver": ..., "volumeHandle": ...},
        },
        "status": {"phase": ...},
    },
    "storage classes": dict.fromkeys(("provisioner", "volumeBindingMode", "allowedTopologies"), ...),
    "storage capacities": dict.fromkeys(("storageClassName", "capacity", "maximumVolumeSize", "nodeTopology"), ...),
    "storage drivers": {"spec": dict.fromkeys(("storageCapacity", "preventPodSchedulingIfMissing"), ...)},
    "volume limits": {"spec": {"drivers": {"name": ..., "allocatable": ...}}},
    "volume attachments": {
        "spec": {"attacher": ..., "nodeName": ..., "source": {"persistentVolumeName": ...}},
    },
    **{
        # Of the other fields it matters only that they are there.
        sources.name_of(kind): {
            "spec": {**{name: {} for name in kind.lost}, **dict.fromkeys(words.READ_OF_GROUPS, ...)},
            "status": {"phase": ...},
        }
        for kind in words.TABLE.pod_groups
    },
    sources.name_of(words.KUBERNETES_GROUPS): {
        "spec": dict.fromkeys(kubernetes_groups.READ, ...),
        "status": {"conditions": dict.fromkeys(("type", "status"), ...)},
    },
    "resource slices": {"spec": ...},
    "device classes": {"spec": dict.fromkeys(("extendedResourceName", "selectors"), ...)},
    RESOURCE_CLAIMS: {
        "spec": {"devices": dict.fromkeys(("requests", "constraints"), ...)},
        "status": {
            "allocation": {"devices": {"results": ...}, "nodeSelector": ...},
            "reservedFor": dict.fromkeys(("resource", "name", "uid"), ...),
        },
    },
    "device taint rules": {"spec": ...},
    "device taint rules of v1beta2": {"spec": ...},
    PODS: {
        "spec": {
            **dict.fromkeys(("nodeName", "schedulerName", "priority", "priorityClassName", "preemptionPolicy"), ...),
            **dict.fromkeys(("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints"), ...),
            **dict.fromkeys(("schedulingGates", "schedulingGroup", "resourceClaims", "resources", "overhead"), ...),
            **dict.fromkeys(("hostNetwork", "hostUsers", "restartPolicy"), ...),
            **dict.fromkeys(("activeDeadlineSeconds", "terminationGracePeriodSeconds"), ...),
            "containers": _CONTAINER,
            "initContainers": _CONTAINER,
            "ephemeralContainers": _SEEING,
            "volumes": _VOLUME,
        },
        "status": {
            **dict.fromkeys(("phase", "nominatedNodeName", "startTime", "resources", "allocatedResources"), ...),
            **dict.fromkeys(("extendedResourceClaimStatus", "resourceClaimStatuses"), ...),
            "conditions": dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), ...),
            "containerStatuses": _RESIZED,
            "initContainerStatuses": _RESIZED,
        },
    },
    ENDED_PODS: {"spec": dict.fromkeys(("schedulerName", "schedulingGroup"), ...), "status": {"phase": ...}},
    CLAIM_TEMPLATES: {"spec": {"spec": {"devices": dict.fromkeys(("requests", "constraints"), ...)}}},
    PRIORITY_CLASSES: dict.fromkeys(("value", "globalDefault", "preemptionPolicy"), ...),
    VERSION: {"minor": ...},
    OPERATOR: dict.fromkeys(("takenAt", "nodeSelector", "settings"), ...),
}
"""Name of a kind -> the fields kept in addition to the metadata."""


def kept(kind: str, obj: Object) -> Object:
    """Return an object of a kind in `KEPT`, reduced to the fields that are kept."""
    pruned = _pruned(obj, {"metadata": _METADATA, **KEPT[kind]})
    annotations = pruned["metadata"].get("annotations") or {}
    pruned["metadata"]["annotations"] = {
        name: text
        for name, text in annotations.items()
        if name.startswith(ANNOTATIONS)
        or name.endswith((names.VISIBLE_SUFFIX, names.BY_CLASS_SUFFIX))
        or name in words.TABLE.annotations
    }
    return dict(pruned)


def _pruned(value: Any, tree: Any) -> Any:
    if tree is ... or value is None:
        return value
    if callable(tree):
        return tree(value)
    if isinstance(value, list):
        return [_pruned(item, tree) for item in value]
    return {name: _pruned(value[name], below) for name, below in tree.items() if name in value}


async def taken(get_page: GetPage, *, node_selector: str, agent_namespace: str) -> AsyncIterator[tuple[str, Object]]:
    """Read the cluster and yield (name of the kind, object), one kind after the other. A file has the result of `kept`.

    Raises:
        ApiError: the API server refused a list.
        Unreachable: the API server did not answer.
    """
    # Only the sources are used; this state stays empty.
    nowhere = Storage(Cluster(grace=0.0))
    others = sources.except_pods(nowhere, node_selector=node_selector, agent_namespace=agent_namespace)
    by_kind = {
        **{name: source for name, (source, _) in others.items()},
        PRIORITY_CLASSES: Source(path="/apis/scheduling.k8s.io/v1/priorityclasses"),
        CLAIM_TEMPLATES: Source(path="/apis/resource.k8s.io/v1/resourceclaimtemplates", optional=True),
        PODS: pods_where(ALIVE),
        ENDED_PODS: replace(pods_where(ENDED), transform=groups.transform_ended),
    }
    room = asyncio.Semaphore(AT_ONCE)
    queues: dict[str, _Objects] = {name: asyncio.Queue() for name in by_kind}
    lists = [asyncio.create_task(_read(get_page, source, room, queues[name])) for name, source in by_kind.items()]
    try:
        for (name, objects), reading in zip(queues.items(), lists, strict=True):
            while (obj := await objects.get()) is not None:
                if name != ENDED_PODS or groups.of_placed(obj) is not None:
                    yield name, obj
            await reading
    finally:
        for reading in lists:
            reading.cancel()
        await asyncio.gather(*lists, return_exceptions=True)


_Objects = asyncio.Queue[Object | None]
"""Objects of one kind, with None at the end. They are at most one list, all of which stays in the snapshot."""


async def _read(get_page: GetPage, source: Source, room: asyncio.Semaphore, objects: _Objects) -> None:
    try:
        async with room:
            await list_once(get_page, source, sinks.Once(objects.put_nowait))
    finally:
        objects.put_nowait(None)


class Snapshot:
    """A state that a snapshot is loaded into; its clock stands still.

    Attributes:
        now: when the snapshot was taken, in seconds since 1970.
    """

    def __init__(
        self,
        *,
        grace: float,
        schedulers: Collection[str],
        kinds: Kinds = BUILT_IN,
        trusted_schedulers: Collection[str] = (),
        priorities: PriorityLimits = UNLIMITED,
        charges_foreign: bool = True,
        charges_unheld: bool = False,
        min_age: float = 0.0,
        confined: bool = False,
    ) -> None:
        """Create an empty snapshot; pods younger than `min_age` seconds are not moved."""
        self.now = time.time()
        self.cluster = Cluster(
            grace=grace,
            confined=confined,
            fleet=Fleet(kinds=kinds),
            trusted_schedulers=trusted_schedulers,
            priorities=priorities,
            charges_foreign=charges_foreign,
            charges_unheld=charges_unheld,
            tenants=Tenants(kinds=kinds, min_age=min_age),
            clock=lambda: 0.0,
            wall=lambda: self.now,
        )
        self.cluster.gangs.set_schedulers(schedulers)
        self._schedulers = schedulers
        self.placed: dict[str, Object] = {}
        """UID -> pod, for pods that have a node."""
        self.unplaced: dict[str, Object] = {}
        """The same for pods that have none, of any scheduler."""
        self.priority_classes: dict[str, Object] = {}
        """Name -> PriorityClass."""
        self.claim_templates: dict[str, Object] = {}
        """namespace/name -> ResourceClaimTemplate."""
        others = sources.except_pods(Storage(self.cluster), node_selector="", agent_namespace="")
        self._put: dict[str, Callable[[Object], object]] = {
            **{name: table.put for name, (_, table) in others.items()},
            PODS: self._put_pod,
            ENDED_PODS: sinks.ended_pods(self.cluster).put,
            PRIORITY_CLASSES: self.put_priority_class,
            CLAIM_TEMPLATES: self._put_claim_template,
            VERSION: lambda obj: self.cluster.fleet.set_kubernetes(int(obj["minor"])),
            OPERATOR: self._put_operator,
        }

    def put(self, kind: str, obj: Object) -> None:
        """Add an object of one of the kinds in `KEPT`."""
        self._put[kind](obj)

    async def put_all(self, objects: AsyncIterator[tuple[str, Object]]) -> None:
        """Add objects as they arrive."""
        put = 0
        async for kind, obj in objects:
            self.put(kind, obj)
            put += 1
            if put % TURN == 0:
                await asyncio.sleep(0)
        self.cluster.refresh_devices()

    def put_priority_class(self, obj: Object) -> None:
        """Add a PriorityClass."""
        self.priority_classes[obj["metadata"]["name"]] = obj

    def _put_claim_template(self, obj: Object) -> None:
        self.claim_templates[keys.of(obj)] = obj

    def _put_operator(self, obj: Object) -> None:
        now = float(obj["takenAt"])
        if not 0.0 <= now < endings.LATEST:
            raise ValueError(f"takenAt: {now}")
        self.now = now
        self.cluster.confined = bool(obj["nodeSelector"])

    def _put_pod(self, pod: Object) -> None:
        if pod["spec"].get("nodeName"):
            self.placed[pod["metadata"]["uid"]] = pod
            self.cluster.put_bound(pod)
            return
        self.unplaced[pod["metadata"]["uid"]] = pod
        if pod["spec"].get("schedulerName") in self._schedulers:
            self.cluster.put_pending(pod)
