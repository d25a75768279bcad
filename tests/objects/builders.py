"""Objects with sensible defaults, so that a test names only what it is about.

`node`, `device`, `pod` and `lease` are objects as the API server sends them. `node_info`, `inventory`, `card` and
`waiting` are the values that the core reads. The functions take the differences from a healthy node with A100 cards,
and from a pod without requests.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from berth_api import links as link_types
from berth_api import names, request, resources
from berth_api.admission import injection
from berth_api.allocation import REPLICAS, Function, Grant, mig
from berth_api.objects import gpupod
from berth_api.request import Part, share
from berth_api.request.model import ANY_MODEL, ModelConstraint
from berth_api.values.selectors import Requirement
from berth_client.reflector import Sink
from berth_operator.controllers.reconcile.sums import OURS
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.inventory import CardInfo, DeviceInventory, NodeInfo
from berth_operator.core.values.request import (
    HostPort,
    Membership,
    NodeTerm,
    PendingPod,
    PodImages,
    PodRequest,
    Taint,
    Toleration,
)
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.pod_watches import PodTable, WatchedPods

Raw = dict[str, Any]

MI = 2**20
GI = 2**30
A100 = "NVIDIA A100-SXM4-80GB"
A100_BYTES = 85198045184
"""The memory that the driver reports for such a card: not a round number, so that rounding shows."""
T4 = "Tesla T4"
T4_BYTES = 16 * GI

GPU = "kubernetes.io/gpu"
CORE = "kubernetes.io/gpu-core"
MEMORY = "kubernetes.io/gpu-memory"
RATIO = "kubernetes.io/gpu-memory-ratio"
SHARED = "kubernetes.io/gpu.shared"
RDMA = "kubernetes.io/rdma"
FPGA = "kubernetes.io/fpga"
NVIDIA = "nvidia.com/gpu"
PROFILES = ("1g.5gb", "1g.10gb", "1g.10gb.me", "1g.24gb", "1g.24gb.me", "2g.20gb", "3g.40gb", "3g.40gb.me", "7g.80gb")
INSTANCES = [mig.resource(each) + suffix for each in PROFILES for suffix in ("", ".shared")]
OFFERED = dict.fromkeys((NVIDIA, REPLICAS, "amd.com/gpu", "dcu.com/gpu", *INSTANCES), 1000)
"""What device plugins offer on a node unless a test says otherwise: enough that only the Device limits decisions."""
SUMS = dict.fromkeys(OURS, 10**15)
"""What a node shows of its devices unless a test says otherwise."""
_LONG = {
    "core": "gpu-core",
    "ratio": "gpu-memory-ratio",
    "memory": "gpu-memory",
    "npu": "huawei.com/npu-core",
    "npu_cpu": "huawei.com/npu-cpu",
    "dvpp": "huawei.com/npu-dvpp",
}


_PATHS = {score: link_type for link_type, score in link_types.SCORES.items() if not link_types.is_direct(link_type)}


# --- values of the core -----------------------------------------------------------------------------------------


def card(
    minor: int = 0,
    *,
    memory: int = A100_BYTES,
    model: str = A100,
    healthy: bool = True,
    more: Mapping[str, int] | None = None,
    links: Iterable[tuple[int, int]] = (),
    **fields: Any,
) -> CardInfo:
    """Return a GPU; `more` are capacities of other resources, further arguments are fields of `CardInfo`.

    `links` are (minor of the other card, score): NVLinks, or a path over PCIe.
    """
    fields["links"] = tuple((other, _PATHS.get(score, "NVLink"), score // link_types.DIRECT) for other, score in links)
    amounts = (("gpu-core", 100), ("gpu-memory", memory), ("gpu-memory-ratio", 100), *(more or {}).items())
    return CardInfo(type="gpu", minor=minor, id=f"GPU-{minor}", model=model, healthy=healthy, amounts=amounts, **fields)


def gpus(count: int, *, unit: request.Unit = "amounts", **amounts: int) -> Part:
    """Return the part of a request that is for GPUs: `gpus(2, core=100, ratio=100)`."""
    named = tuple(sorted((_LONG.get(name, name), amount) for name, amount in amounts.items()))
    return Part(type="gpu", count=count, amounts=named, unit=unit)


def divided(minor: int, *instances: str) -> CardInfo:
    """Return a GPU in MIG mode with instances of these profiles, with the ids `MIG-<minor>-0` and so on."""
    resources = [mig.resource(each) for each in instances]
    named = tuple((f"MIG-{minor}-{number}", resource) for number, resource in enumerate(resources))
    memory = tuple({mig.resource(each): mig.gibibytes(each) * GI for each in instances}.items())
    return card(minor, healthy=False, more=Counter(resources), instances=named, instance_memory=memory)


def sliced(minor: int, replicas: int, **fields: Any) -> CardInfo:
    """Return a GPU that is time-sliced."""
    return card(minor, more={REPLICAS: replicas}, **fields)


def other_card(kind: str, minor: int = 0, *, healthy: bool = True, **fields: Any) -> CardInfo:
    """Return an RDMA NIC or FPGA."""
    return CardInfo(type=kind, minor=minor, id=f"{kind}-{minor}", healthy=healthy, amounts=((kind, 100),), **fields)


def cards(count: int, *, memory: int = A100_BYTES, model: str = A100) -> tuple[CardInfo, ...]:
    """Return equal GPUs."""
    return tuple(card(minor, memory=memory, model=model) for minor in range(count))


def inventory(*cards: CardInfo, vendor: str = "nvidia", **fields: Any) -> DeviceInventory:
    """Return a node's inventory."""
    return DeviceInventory(cards=cards, vendor=vendor, **fields)


def node_info(
    name: str = "node",
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    cordoned: bool = False,
    ready: bool = True,
    more: Mapping[str, int] | None = None,
    offered: Mapping[str, int] = OFFERED,
    sums: Mapping[str, int] = SUMS,
    unreachable: bool = False,
    images: Mapping[str, int] | None = None,
    features: Sequence[str] = (),
    **allocatable: int,
) -> NodeInfo:
    """Return a node of 64 cores, 512 GiB and 110 pods, with device plugins; `more` are amounts of other resources."""
    return NodeInfo(
        name=name,
        labels=labels or {},
        allocatable={"cpu": 64_000, "memory": 512 * GI, "pods": 110, **sums, **offered, **allocatable, **(more or {})},
        taints=tuple(taints),
        cordoned=cordoned,
        ready=ready and not unreachable,
        unreachable=unreachable,
        features=tuple(features),
        images=tuple((images or {}).items()),
    )


def asks(
    amounts: Mapping[str, int] | None = None,
    *,
    model: ModelConstraint = ANY_MODEL,
    selector: Mapping[str, str] | None = None,
    affinity: Sequence[NodeTerm] | None = None,
    preferred: Sequence[tuple[NodeTerm, int]] = (),
    images: Sequence[str] = (),
    tolerations: Sequence[Toleration] = (),
    ports: Sequence[HostPort] = (),
    features: Sequence[str] = (),
    unsupported: Sequence[str] = (),
    uninjected: Sequence[str] = (),
    unlimited: Sequence[str] = (),
    isolation: str = "",
    annotations: Mapping[str, str] | None = None,
) -> PodRequest:
    """Return a pod's class: one container with these requests (cpu in thousandths), and device annotations."""
    amounts = amounts or {}
    devices = request.of_pod(amounts, annotations or {}, {})
    counted = {name: amount for name, amount in amounts.items() if request.is_counted_on_node(name)}
    return PodRequest(
        resources=tuple(sorted({**counted, "pods": 1}.items())),
        nonzero_requested=(counted.get("cpu", 100), counted.get("memory", 200 * MI)),
        devices=devices,
        plugin_requests=tuple(sorted((name, amount) for name, amount in amounts.items() if request.is_device(name))),
        shares=share.of_pod((resources.Container(name="main", requests=amounts),), devices),
        model=model,
        node_selector=tuple(label(key, "In", value) for key, value in (selector or {}).items()),
        node_affinity=None if affinity is None else tuple(affinity),
        preferred_nodes=tuple(preferred),
        images=PodImages(names=tuple(images), containers=1),
        tolerations=tuple(tolerations),
        ports=tuple(ports),
        features=tuple(features),
        unsupported=tuple(unsupported),
        uninjected=tuple(uninjected),
        unlimited=tuple(unlimited),
        isolation=isolation,
    )


ASKS_NOTHING = asks()


def hints(**of_types: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotation with a hint for each device type."""
    return {names.ALLOCATE_HINT: orjson.dumps(of_types).decode()}


def jointly(*types: str, same: bool = True) -> dict[str, str]:
    """Return the annotation for joint allocation; `same` requires the same PCIe switches instead of preferring them."""
    scope = {"requiredScope": "SamePCIe"} if same else {}
    return {names.JOINT_ALLOCATE: orjson.dumps({"deviceTypes": types, **scope}).decode()}


def listens(port: int = 80, address: str = "0.0.0.0", protocol: str = "TCP") -> HostPort:  # noqa: S104 - no socket
    """Return a host port."""
    return HostPort(protocol=protocol, port=port, address=address)


def label(key: str, operator: str, *values: str) -> Requirement:
    """Return a requirement on a label."""
    return Requirement(key=key, operator=operator, values=values)


def waiting(name: str = "pod", request: PodRequest | Mapping[str, int] | None = None, **fields: Any) -> PendingPod:
    """Return a waiting pod; `request` is its request, or the resources in it."""
    ready = request if isinstance(request, PodRequest) else asks(request) if request else ASKS_NOTHING
    return PendingPod(**{"uid": f"uid-{name}", "namespace": "ns", "name": name, "request": ready, **fields})


def fleet(nodes: Mapping[str, Sequence[CardInfo]] | None = None, **extra: Any) -> Fleet:
    """Return a fleet of nodes with fresh Devices of these cards; without `nodes`, one node with one card."""
    built = Fleet()
    for name, cards in (nodes if nodes is not None else {"node": (card(),)}).items():
        add(built, node_info(name), inventory(*cards, **extra))
    return built


def add(to: Fleet, node: NodeInfo, devices: DeviceInventory | None = None, *, fresh: bool = True) -> None:
    """Add a node with its Device."""
    to.put_node(node)
    if devices is not None:
        to.put_device(node.name, devices)
        to.set_fresh(node.name, fresh=fresh)


def place(on: Fleet, pod: PendingPod, policy: Policy | None = None) -> Placement:
    """Decide a pod that must fit, and charge the decision."""
    placement = decide(on, pod, policy or Policy())
    assert isinstance(placement, Placement), placement
    on.charge(placement.charge)
    return placement


def popped(queue: Queue[PendingPod | Gang], now: float = 0.0) -> PendingPod | None:
    """Return the next unit of a queue; it must be a pod."""
    unit = queue.pop(now)
    assert not isinstance(unit, Gang)
    return unit


def decided(cluster: Cluster, now: float = 0.0) -> list[Placement | Failure]:
    """Decide all active pods of a cluster, and assume or park them."""
    outcomes = []
    while (pending := popped(cluster.queue, now)) is not None:
        outcome = decide(cluster.fleet, pending, Policy())
        outcomes.append(outcome)
        if isinstance(outcome, Placement):
            cluster.placements.assume(outcome)
        else:
            cluster.queue.park(pending, outcome)
    return outcomes


def parked(cluster: Cluster, raw: Raw, now: float = 0.0) -> Failure:
    """Add a pod that fits on no node yet, decide it, and return its failure; it is parked."""
    cluster.put_pending(raw)
    [outcome] = decided(cluster, now)
    assert isinstance(outcome, Failure), outcome
    return outcome


def woken(cluster: Cluster, now: float = 0.0) -> list[str]:
    """Return the names of the pods in the active queue, and empty it."""
    names_woken = []
    while (pending := popped(cluster.queue, now)) is not None:
        names_woken.append(pending.name)
    return names_woken


def gang(*members: PendingPod, minimum: int | None = None, **fields: Any) -> Gang:
    """Return a gang of these members; its minimum is all of them by default."""
    needed = len(members) if minimum is None else minimum
    return Gang(**{"membership": Membership(group="ns/g"), "minimum": needed, "members": members, **fields})


def grant(minor: int = 0, kind: str = "gpu", **amounts: int) -> Grant:
    """Return a grant of a part of a card: `grant(0, core=50, ratio=50, memory=5)`."""
    named = tuple(sorted((_LONG.get(name, name), amount) for name, amount in amounts.items()))
    return Grant(type=kind, minor=minor, amounts=named, id=f"GPU-{minor}" if kind == "gpu" else f"{kind}-{minor}")


def instance(minor: int = 0, number: int = 0, profile: str = "1g.10gb") -> Grant:
    """Return a grant of a MIG instance of a card."""
    amounts, name = ((mig.resource(profile), 1),), f"MIG-{minor}-{number}"
    return Grant(type="gpu", minor=minor, amounts=amounts, id=name, parent=f"GPU-{minor}")


def replica(minor: int = 0, number: int = 0) -> Grant:
    """Return a grant of one of four time-sliced replicas of a card."""
    amounts = (("gpu-core", 25), ("gpu-memory", 20 * GI), ("gpu-memory-ratio", 25), (REPLICAS, 1))
    return Grant(type="gpu", minor=minor, amounts=amounts, id=f"GPU-{minor}::{number}", parent=f"GPU-{minor}")


def with_functions(minor: int = 0, *buses: str) -> Grant:
    """Return a grant of a hundredth of a NIC, with virtual functions at these addresses."""
    functions = tuple(Function(minor=number, bus_id=bus) for number, bus in enumerate(buses))
    return Grant(type="rdma", minor=minor, amounts=(("rdma", 1),), id=f"rdma-{minor}", functions=functions)


def charge(name: str = "pod", *grants: Grant, node: str = "node", **fields: Any) -> Charge:
    """Return what a pod charges to a node."""
    taken = dict(fields.get("resources", ()))
    fields = {"nonzero_requested": (taken.get("cpu", 0), taken.get("memory", 0)), **fields}
    return Charge(uid=f"uid-{name}", pod=f"ns/{name}", node=node, grants=grants, **fields)


# --- objects of the API server ----------------------------------------------------------------------------------


def node(name: str = "node", *, labels: Mapping[str, str] | None = None, **fields: Any) -> Raw:
    """Return a Node; `allocatable`, `capacity`, `taints`, `unschedulable`, `conditions` become its fields.

    `offered` is what its device plugins offer, `sums` what it shows of other devices.
    """
    devices = {**fields.get("offered", OFFERED), **fields.get("sums", SUMS)}
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", **{name: str(each) for name, each in devices.items()}}
    spec = {key: fields[key] for key in ("taints", "unschedulable") if key in fields}
    return {
        "metadata": {"name": name, "uid": fields.get("uid", f"uid-{name}"), "labels": dict(labels or {})},
        "spec": spec,
        "status": {
            "allocatable": {**amounts, **fields.get("allocatable", {})},
            "capacity": {**amounts, **fields.get("capacity", fields.get("allocatable", {}))},
            "conditions": fields.get("conditions", [{"type": "Ready", "status": "True"}]),
            "images": fields.get("images", []),
            "declaredFeatures": fields.get("features", []),
            "nodeInfo": {"bootID": fields.get("boot", "boot-1")},
        },
    }


def bare_node(name: str = "node", **fields: Any) -> Raw:
    """Return a Node that shows no devices yet, apart from these `fields`; see `node`."""
    return node(name, **{"sums": {}, "offered": {}, **fields})


def entry(minor: int = 0, *, memory: int | str = A100_BYTES, **fields: Any) -> Raw:
    """Return an entry of a Device: a healthy GPU by default."""
    amounts = {CORE: "100", MEMORY: str(memory), RATIO: "100"}
    base = {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": True, "model": A100, "resources": amounts}
    return {**base, **fields}


def device(name: str = "node", *entries: Raw, **fields: Any) -> Raw:
    """Return a Device with these entries; `labels`, `conditions`, `status`, `generation`, `driver`, `uid`."""
    status = fields.get("status", {"conditions": fields["conditions"]} if "conditions" in fields else {})
    return {
        "metadata": {
            "name": name,
            "uid": fields.get("uid", f"uid-device-{name}"),
            "generation": fields.get("generation", 1),
            "labels": dict(fields.get("labels", {})),
        },
        "spec": {"driverVersion": fields.get("driver", "570.124.06"), "devices": list(entries)},
        "status": status,
    }


def condition(kind: str, status: str, since: str = "2026-01-01T00:00:00Z", **fields: Any) -> Raw:
    """Return a condition."""
    return {"type": kind, "status": status, "reason": "Because", "message": "", "lastTransitionTime": since, **fields}


def lease(name: str = "node", renewed: str = "1", duration: int | None = 40) -> Raw:
    """Return an agent's Lease."""
    return {"metadata": {"name": name}, "spec": {"renewTime": renewed, "leaseDurationSeconds": duration}}


def container(name: str = "main", requests: Mapping[str, Any] | None = None, **fields: Any) -> Raw:
    """Return a container."""
    return {"name": name, "resources": {"requests": dict(requests or {})}, **fields}


def pod(name: str = "pod", requests: Mapping[str, Any] | None = None, **fields: Any) -> Raw:
    """Return a waiting Pod; `on=` binds it, `bare=True` leaves out the injected variable, others go into the spec.

    `allocated=` adds the allocation annotation, as Berth's Bindings do; `claims=` adds it as written by the pod's
    author.
    """
    annotations = dict(fields.pop("annotations", {}))
    if (allocated := fields.pop("allocated", None)) is not None:
        annotations = {names.EPOCH: "1", **annotations, names.ALLOCATED: _text(allocated)}
    if (claims := fields.pop("claims", None)) is not None:
        annotations[names.ALLOCATED] = _text(claims)
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": fields.pop("uid", f"uid-{name}"),
        "annotations": annotations,
        "labels": dict(fields.pop("labels", {})),
        "creationTimestamp": fields.pop("created", "2026-01-01T00:00:00Z"),
        **fields.pop("metadata", {}),
    }
    status, bare = fields.pop("status", {}), fields.pop("bare", False)
    if (on := fields.pop("on", None)) is not None:
        fields["nodeName"] = on
    spec = {"containers": [container(requests=requests)], **fields}
    made = {"metadata": metadata, "spec": spec, "status": status}
    return made if bare else injection.injected(made)


def _text(allocation: Any) -> str:
    return allocation if isinstance(allocation, str) else orjson.dumps(allocation).decode()


def gpu_pod(name: str = "pod", *ids: str, node: str = "node", **fields: Any) -> Raw:
    """Return the GpuPod of a pod that holds these GPUs in one container, or in `containers`.

    `uid`, `of` (UID of the pod), `conditions`, `own` (the GpuPod's own name).
    """
    containers = fields.get("containers", {"main": ids})
    own = fields.get("own", gpupod.name_of(name, node))
    return {
        "metadata": {"name": own, "namespace": "ns", "uid": fields.get("uid", f"uid-gpupod-{name}")},
        "spec": {
            "nodeName": node,
            "podUID": fields.get("of", f"uid-{name}"),
            "containers": [{"name": each, "devices": _held(*found)} for each, found in containers.items()],
        },
        "status": {"conditions": fields.get("conditions", [])},
    }


def held(name: str, *ids: str) -> Raw:
    """Return the part of a Device's status for a pod's container that holds these GPUs."""
    return {"podUID": f"uid-{name}", "namespace": "ns", "pod": name, "container": "main", "devices": _held(*ids)}


def _held(*ids: str) -> list[Raw]:
    """Return GPUs by ids such as `GPU-3`, `GPU-3::1` and `MIG-3-0`."""
    return [{"type": "gpu", "minor": int(re.split("-|::", each)[1]), "id": each} for each in ids]


def owner(name: str, kind: str = "ReplicaSet", version: str = "apps/v1", **fields: Any) -> Raw:
    """Return the owner reference of a pod's controller."""
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True, **fields}


def pod_group(name: str = "g", minimum: int | None = 2, **fields: Any) -> Raw:
    """Return a PodGroup; `uid`, `created`, `timeout`, `status`."""
    spec = {"minMember": minimum, "scheduleTimeoutSeconds": fields.get("timeout")}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": fields.get("uid", f"uid-group-{name}"),
            "creationTimestamp": fields.get("created", "2026-01-01T00:00:00Z"),
        },
        "spec": {key: value for key, value in spec.items() if value is not None},
        "status": fields.get("status", {}),
    }


def kubernetes_group(name: str = "g", *, minimum: int = 0, **fields: Any) -> Raw:
    """Return a PodGroup of Kubernetes; `priority`, `topology_key`, `disruption`, `conditions`, `spec`.

    Without a minimum its policy is the basic one.
    """
    spec = {
        "schedulingPolicy": {"gang": {"minCount": minimum}} if minimum else {"basic": {}},
        "priority": fields.get("priority", 0),
        "disruptionMode": {fields.get("disruption", "single"): {}},
        **fields.get("spec", {}),
    }
    if key := fields.get("topology_key"):
        spec["schedulingConstraints"] = {"topology": [{"key": key}]}
    raw = pod_group(name, None)
    raw["metadata"] |= {"generation": 1, "resourceVersion": "7"}
    return {**raw, "spec": spec, "status": {"conditions": fields.get("conditions", [])}}


def half(minor: int = 0, memory: int = A100_BYTES // 2) -> Raw:
    """Return the allocation of half a card."""
    amounts = {CORE: "50", MEMORY: str(memory), RATIO: "50"}
    return {"gpu": [{"minor": minor, "resources": amounts, "id": f"GPU-{minor}"}]}


def whole(*minors: int, memory: int = A100_BYTES) -> Raw:
    """Return the allocation of whole cards."""
    amounts = {CORE: "100", MEMORY: str(memory), RATIO: "100"}
    return {"gpu": [{"minor": minor, "resources": amounts, "id": f"GPU-{minor}"} for minor in minors]}


def score_values(module: Any, fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64]:
    """Return the score of each row; zeros if the score reports that all rows are equal."""
    values: npt.NDArray[np.float64] | None = module.score(fleet, request, fits)
    return np.zeros(len(fleet.names)) if values is None else values


def every_pod(cluster: Cluster) -> WatchedPods:
    """Return the sink of pods, as if one watch showed the pods of all scheduler names."""
    return WatchedPods(PodTable(cluster), lambda _name: True)


def relist(sink: Sink, objects: list[Raw], *, requested_at: float = 0.0) -> None:
    """Pass a list to a sink, all of it on one page."""
    listing = sink.listing(requested_at=requested_at)
    listing.put(objects)
    listing.end("")
