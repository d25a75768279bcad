"""Advice that should end a wait ends it when its words are carried out. Advice that should not help does not."""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from berth_api import names
from berth_api.allocation import REPLICAS, mig
from berth_api.allocation.partitions import Partition
from berth_api.request import RequestError
from berth_api.request.model import ModelConstraint
from berth_api.values.selectors import LabelSelector
from berth_operator.core.advice import outlook
from berth_operator.core.advice.explanation import explain
from berth_operator.core.advice.simulate import simulate
from berth_operator.core.advice.waits import Wait, Waits
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.decision.policy import Policy
from berth_operator.core.values.affinity import (
    NO_AFFINITY,
    NO_IDENTITY,
    Affinity,
    Identity,
    Peers,
    Term,
    TopologySpreadConstraint,
)
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.mounts import NO_MOUNTS, Disk
from berth_operator.core.values.request import NodeTerm, PendingPod, PodRequest, Taint, Toleration
from berth_operator.core.values.storage import READ_WRITE_ONCE_POD
from tests.objects import volumes
from tests.objects.builders import (
    A100,
    CORE,
    FPGA,
    GI,
    GPU,
    MEMORY,
    NVIDIA,
    OFFERED,
    RATIO,
    RDMA,
    SHARED,
    SUMS,
    T4,
    asks,
    card,
    cards,
    charge,
    divided,
    fleet,
    gang,
    grant,
    hints,
    inventory,
    jointly,
    label,
    listens,
    node_info,
    other_card,
    sliced,
    waiting,
)
from tests.unit.core.advice.advice_reader import HOSTNAME, World, carried_out

POLICY: Final = Policy()
POLICIES: Final = {names.SCHEDULER: POLICY}
TAINT: Final = Taint(key="x", value="y")
H100: Final = "NVIDIA H100 80GB HBM3"
PROFILE: Final = mig.resource("1g.10gb")
NPU: Final = {"huawei.com/npu-core": 100, RATIO: 100}
MODELS: Final = {"nvidia": (A100, A100, H100, T4), "amd": ("AMD Instinct MI300X",), "huawei": ("Ascend 910B",)}
FAST: Final = {"selector": {"matchLabels": {"type": "fast"}}}
ANNOTATIONS: Final[tuple[dict[str, str], ...]] = (
    hints(gpu=FAST),
    hints(gpu={"selector": {"matchExpressions": [{"key": "type", "operator": "NotIn", "values": ["slow"]}]}}),
    hints(gpu={"selector": {"matchExpressions": [{"key": "type", "operator": "In", "values": ["b", "a"]}]}}),
    hints(gpu={"selector": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}}),
    hints(gpu={"requiredTopologyScope": "NUMANode"}),
    hints(gpu={"requiredTopologyScope": "PCIe"}, rdma=FAST),
    hints(gpu={"exclusivePolicy": "PCIeLevel"}, rdma={"allocateStrategy": "ApplyForAll"}),
    hints(rdma={"allocateStrategy": "RequestsAsCount", "requiredTopologyScope": "NUMANode"}),
    jointly("gpu", "rdma"),
    jointly("rdma", "gpu", same=False),
    {names.GPU_TOPOLOGY: "numa"},
    {names.GPU_TOPOLOGY: "pcie"},
    {names.GPU_TOPOLOGY: "nvlink"},
    {names.MIN_GPU_MEMORY: "20Gi"},
    {names.MIN_GPU_MEMORY: "60Gi"},
    {names.MIXED_GPUS: "true"},
    {names.GPU_SUBDEVICES: "only"},
    {names.PARTITION_SPEC: "{}"},
)
AMOUNTS: Final[tuple[dict[str, int], ...]] = (
    *({NVIDIA: count} for count in (1, 1, 2, 3, 5)),
    *({GPU: 30}, {GPU: 100}, {GPU: 200}, {CORE: 50, RATIO: 50}, {MEMORY: 20 * GI}, {CORE: 60, MEMORY: 100 * GI}),
    *({SHARED: 2, MEMORY: 40 * GI}, {REPLICAS: 1}, {PROFILE: 1}, {PROFILE: 3}, {"amd.com/gpu": 1}, NPU, {}),
    *({RDMA: 50}, {RDMA: 200}, {FPGA: 100}, {NVIDIA: 1, RDMA: 50}, {GPU: 200, RDMA: 200}),
)
REQUESTS: Final[tuple[tuple[dict[str, int], dict[str, str]], ...]] = (
    *((amounts, {}) for amounts in AMOUNTS),
    *(({NVIDIA: 2}, hints(gpu=FAST)), ({GPU: 30}, hints(gpu=FAST))) * 2,
    ({NVIDIA: 2}, {names.GPU_TOPOLOGY: "numa"}),
    ({GPU: 300}, {names.GPU_TOPOLOGY: "pcie"}),
    ({RDMA: 200}, hints(rdma={"requiredTopologyScope": "NUMANode"})),
    *(({NVIDIA: 1, RDMA: 50}, jointly("gpu", "rdma")),) * 2,
    ({RATIO: 50}, {names.MIN_GPU_MEMORY: "60Gi"}),
)
"""Amounts and annotations that go with them."""
MODEL_CONSTRAINTS: Final = (
    ModelConstraint(globs=("*H100*",)),
    ModelConstraint(globs=("*L40S*", "Tesla ?4", "*B200*")),
    ModelConstraint(exact=H100),
    ModelConstraint(regex="h100|l40s"),
    ModelConstraint(excluded=("*A100*", "*T4*")),
    ModelConstraint(globs=("*0*",), excluded=("*A100*",)),
)
IN_POOL: Final = NodeTerm(labels=(label("pool", "In", "b", "c"),))
NEWER: Final = NodeTerm(labels=(label("pool", "NotIn", "a"), label("gen", "Gt", "3")))
ZONED: Final = NodeTerm(labels=(label("pool", "DoesNotExist"), label("zone", "Exists")))
NAMED: Final = NodeTerm(names=(label("", "In", "n0"),))
FIELDS: Final[Mapping[str, Sequence[Any]]] = {
    "amounts": ({"cpu": 6000}, {"memory": 600 * GI}, {"cpu": 14_000, "memory": 300 * GI}, {"example.com/x": 1}),
    "model": MODEL_CONSTRAINTS,
    "selector": ({"pool": "b"}, {"zone": "a", "pool": "a"}),
    "affinity": ([IN_POOL], [NEWER], [ZONED], [NAMED], [NEWER, ZONED]),
    "tolerations": ([Toleration(operator="Exists")],),
    "ports": ([listens(80)],),
    "isolation": ("mps",),
}
"""Argument of `asks` -> what is drawn for it."""
DISK: Final = Disk(kind="gce", id="d")
MOUNTS: Final = (
    *(volumes.mounts(*claims) for claims in (("there",), ("far",), ("mine",), ("data",), ("data", "more"))),
    volumes.mounts("far", "mine"),
    volumes.mounts("far", disks=[DISK]),
)
MOUNTS_OF_PLACED: Final = (*(NO_MOUNTS,) * 6, volumes.mounts("mine"), volumes.mounts(disks=[DISK]))
KINDS: Final = (*FIELDS, "amounts", "model", *("annotations",) * 3, *("pods", "claims", "selector") * 2)
"""Constraints, the more frequent ones more than once."""


def of_pods(rng: Random) -> Affinity:
    """Return what a pod requires of where other pods are."""
    selector = LabelSelector(requirements=(label("app", "In", rng.choice("xy")),))
    term = Term(key=rng.choice((HOSTNAME, "zone")), peers=Peers(namespaces=("ns",), selector=selector))
    spread = TopologySpreadConstraint(key=term.key, selector=selector, max_skew=1)
    near, far = Affinity(required_affinity=(term,)), Affinity(required_anti_affinity=(term,))
    return rng.choice((near, far, far, Affinity(topology_spread=(spread,))))


def request(rng: Random, most: int) -> PodRequest:
    """Return a random request with up to `most` constraints."""
    drawn = rng.sample(KINDS, rng.randint(0, most))
    fields = {kind: rng.choice(FIELDS[kind]) for kind in drawn if kind in FIELDS}
    devices, hinted = rng.choice(REQUESTS)
    amounts = {"cpu": 1000, "memory": GI, **devices, **fields.pop("amounts", {})}
    annotations = ChainMap(*(rng.choice(ANNOTATIONS) for kind in drawn if kind == "annotations"), hinted)
    try:
        made = asks(amounts, annotations=annotations, **fields)
    except RequestError:
        # Some annotations do not go with some amounts.
        return request(rng, most)
    return replace(
        made,
        identity=Identity(namespace="ns", labels=(("app", rng.choice("xyz")),)),
        affinity=of_pods(rng) if "pods" in drawn else NO_AFFINITY,
        mounts=rng.choice(MOUNTS) if "claims" in drawn else NO_MOUNTS,
    )


def gpu(rng: Random, minor: int, kind: str, vendor: str, model: str) -> CardInfo:
    """Return a random GPU."""
    memory = 16 * GI if model == T4 else 80 * GI
    fields: dict[str, Any] = {"numa": minor % 2, "pcie": str(minor // 2), "model": model, "memory": memory}
    fields["labels"] = rng.choice(((), (), (("type", "fast"),), (("type", "slow"),)))
    match kind:
        case "MIG":
            return divided(minor, *("1g.10gb",) * rng.choice((1, 2)))
        case "sliced":
            return sliced(minor, 4, **fields)
    more = {"huawei.com/npu-core": 100} if vendor == "huawei" else {}
    failed = rng.random() < 0.1
    return card(minor, healthy=not failed, failed=failed, more=more, **fields)


FAULTS: Final = ("cordon", "not ready", "silent", "taints", "out of service")
PAIRS: Final = ((2, (Partition(minors=(0, 1)), Partition(minors=(2, 3)))),)
"""A table of an NVSwitch's partitions."""
TAINTS: Final = {"taints": (Taint(key="z"), TAINT), "out of service": (Taint(key="node.kubernetes.io/unreachable"),)}


def add_node(rng: Random, world: World, name: str, fault: str) -> World:
    """Return the world with one more random node."""
    vendor = rng.choice(("nvidia",) * 5 + ("amd", "huawei"))
    kind = rng.choice(("whole",) * 4 + ("sliced", "MIG")) if vendor == "nvidia" else "whole"
    model = rng.choice(MODELS[vendor])
    cards = [gpu(rng, minor, kind, vendor, model) for minor in range(rng.choice((0, 1, 2, 2, 4)))]
    cards += [other_card("rdma", minor, numa=minor, pcie=str(minor)) for minor in range(rng.choice((0, 0, 1, 2)))]
    drawn = {"zone": rng.choice((None, "a", "b")), "pool": rng.choice((None, "a", "b"))}
    info = node_info(
        name,
        labels={HOSTNAME: name, **{key: value for key, value in drawn.items() if value}},
        taints=TAINTS.get(fault, ())[rng.choice((0, 0, 1)) :],
        cordoned=fault == "cordon",
        ready=fault != "not ready",
        offered=OFFERED if cards else {},
        sums=SUMS if cards else {},
        cpu=rng.choice((4000, 16_000)),
        pods=rng.choice((2, 110, 110)),
    )
    silent = world.silent | {name} if fault == "silent" else world.silent
    switch = {"partitions": PAIRS, "partitions_only": True} if rng.random() < 0.1 else {}
    devices = {**world.devices, name: inventory(*cards, vendor=vendor, **switch)} if cards else world.devices
    return replace(world.with_node(info), devices=devices, silent=silent)


def occupied(rng: Random, world: World) -> World:
    """Return the world with pods that have found a node, and some for which one is kept."""
    fleet, like = world.fleet(), pods_of(world.unit)[0].request
    for number in range(rng.choice((0, 4, 12))):
        wanted = replace(like if rng.random() < 0.7 else request(rng, 1), mounts=rng.choice(MOUNTS_OF_PLACED))
        pod = waiting(f"p{number}", wanted, namespace=rng.choice(("ns", "ns", "ns", "other")))
        if is_kept := rng.random() < 0.1:
            # Whether there is a pod that others must be near makes a difference as soon as it has its node.
            pod = replace(pod, request=replace(wanted, identity=NO_IDENTITY, affinity=NO_AFFINITY), priority=9)
        result = decide(fleet, pod, POLICY)
        if isinstance(result, Placement):
            fleet.charge(result.charge)
            kept, held = ([result.charge], []) if is_kept else ([], [result.charge])
            world = replace(world, charges=(*world.charges, *held), nominees=(*world.nominees, *kept))
    return world


def unit(rng: Random) -> PendingPod | Gang:
    """Return a random pod or gang."""
    pod = waiting("w", request(rng, rng.choice((0, 1, 1, 3))), priority=rng.choice((0, 0, 0, 0, 5)))
    if rng.random() < 0.7:
        return pod
    requests = rng.choice(((pod.request,), (pod.request, request(rng, 1))))
    members = [
        waiting(f"w{number}", rng.choice(requests), priority=pod.priority) for number in range(rng.randint(1, 3))
    ]
    return gang(*members, minimum=rng.choice((1, 2, 3)), topology_key=rng.choice(("", "", "zone")))


def random_world(rng: Random) -> World:
    """Return a random cluster."""
    claims = (
        volumes.bound("there", "v-there"), volumes.volume("v-there", available=False),
        volumes.bound("far", "v-far"), volumes.volume("v-far", on=("b",), available=False),
        volumes.bound("mine", "v-mine", modes=frozenset({READ_WRITE_ONCE_POD})),
        volumes.volume("v-mine", available=False),
    )  # fmt: skip
    world = World(nodes={}, devices={}, unit=unit(rng), volumes=claims)
    faults = rng.choice((("",), ("",), ("", "", *FAULTS), (rng.choice(FAULTS),)))
    for number in range(rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 3, 3))):
        world = add_node(rng, world, f"n{number}", rng.choice(faults))
    return occupied(rng, world)


def advice(world: World) -> list[str]:
    """Return all that is said of the first pod that waits."""
    first = pods_of(world.unit)[0]
    wait = Wait(pod=first, gang=world.unit if isinstance(world.unit, Gang) else None)
    waits = Waits(world.fleet(), POLICY, Budgets())
    why = waits.why(wait)
    found = [*filter(None, waits.remedies(wait, why))]
    answers, changes = outlook.answers(wait, why, found, len(world.nodes)), outlook.changes(wait, why, found)
    new = [sentence for each in answers if each["title"] == "New node" for sentence in each["message"].split("; ")]
    return new if changes is None else [*new, *(each["message"] for each in changes["answers"])]


def is_placed(world: World) -> bool:
    """Return whether the first pod gets a place, once the pods that it evicts are gone.

    What is kept for nominated pods is as good as taken.
    """
    world = replace(world, charges=(*world.charges, *world.nominees), nominees=())
    first, gone = pods_of(world.unit)[0].uid, tuple[str, ...]()
    for _ in range(2):
        simulation = simulate(world.fleet(), [world.unit], POLICIES, gone=gone)
        if any(each.fits for each in simulation.outcomes if each.pod.uid == first):
            return True
        gone = tuple(each.uid for each in simulation.evicted)
        if not gone:
            break
    return False


ENDS: Final = " would end the wait"
NO_HELP: Final = " would not help"
PROMISES_NOTHING: Final = ("needed first: ", "No single change was found", "only a corrected pod, created again,")
"""The beginnings of sentences that name nothing to be carried out."""


@settings(max_examples=100)
@given(st.randoms(use_true_random=True))
def test_what_advice_says_would_end_a_wait_does(rng: Random) -> None:
    world = random_world(rng)
    for sentence in advice(world):
        if sentence.endswith(ENDS):
            assert any(map(is_placed, carried_out(world, sentence.removesuffix(ENDS)))), (sentence, world)
        elif sentence.endswith(NO_HELP):
            assert not any(map(is_placed, carried_out(world, sentence.removesuffix(NO_HELP)))), (sentence, world)
        else:
            assert sentence.startswith(PROMISES_NOTHING), sentence


@given(st.randoms(use_true_random=True))
def test_the_nodes_that_would_fit_if_they_were_empty_are_counted(rng: Random) -> None:
    pod = waiting("w", replace(request(rng, rng.choice((0, 1, 1, 3))), affinity=NO_AFFINITY, mounts=NO_MOUNTS))
    world = World(nodes={}, devices={}, unit=pod)
    for number in range(3):
        world = add_node(rng, world, f"n{number}", rng.choice(("", *FAULTS)))
    world = occupied(rng, world)
    said = explain(world.fleet(), pod, POLICY)
    fit = [isinstance(decide(emptied(world, name).fleet(), pod, POLICY), Placement) for name in world.nodes]
    assert said.fits_when_empty in ([None] if isinstance(said.result, Placement) else [sum(fit)]), world


def emptied(world: World, name: str) -> World:
    """Return this node alone, in service and without pods."""
    info = world.nodes[name]
    taints = tuple(each for each in info.taints if each not in TAINTS["out of service"])
    alone = replace(info, taints=taints, cordoned=False, ready=True)
    return replace(world, nodes={name: alone}, silent=frozenset(), charges=(), nominees=())


def test_what_pods_elsewhere_decide_does_not_count_where_a_pod_would_fit() -> None:
    made = fleet({"a": cards(2), "b": cards(2)})
    made.set_namespace_limits({"full": {"gpu": 150}, "small": {"gpu": 50}})
    full, small = Identity(namespace="full"), Identity(namespace="small")
    made.charge(replace(charge("held", grant(0, core=100, ratio=100), node="a"), pod="full/held", identity=full))
    peers = Peers(namespaces=("ns",), selector=LabelSelector())
    near = Affinity(required_affinity=(Term(key=HOSTNAME, peers=peers),))
    wanted = asks({NVIDIA: 1})
    for kept, nodes in (
        (replace(wanted, identity=full), len(made.rows)),
        (replace(wanted, affinity=near), len(made.rows)),
        # Its limit is smaller than one pod.
        (replace(wanted, identity=small), 0),
    ):
        said = explain(made, waiting("w", kept), POLICY)
        assert isinstance(said.result, Failure)
        assert said.fits_when_empty == nodes
