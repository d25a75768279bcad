"""Events wake exactly the classes that they may help. No pod that could be placed stays parked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.storage import Storage
from tests.objects import volumes
from tests.objects.builders import GPU, NVIDIA, Raw, charge, device, entry, node, pod, popped, woken

SEEDS, STEPS = 3, 120
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def term(app: str, key: str) -> Raw:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def pod_affinity(app: str, key: str = "zone") -> Raw:
    return {"podAffinity": {REQUIRED: [term(app, key)]}}


def pod_anti_affinity(app: str, key: str = "zone") -> Raw:
    return {"podAntiAffinity": {REQUIRED: [term(app, key)]}}


def spread(app: str, key: str = "zone", **fields: Any) -> list[Raw]:
    base = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return [{**base, "labelSelector": {"matchLabels": {"app": app}}, **fields}]


def listens(port: int) -> list[Raw]:
    return [{"name": "main", "ports": [{"hostPort": port, "containerPort": port}]}]


def mounts(claim: str) -> list[Raw]:
    return [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]


def is_in(key: str, *values: str) -> Raw:
    return {"key": key, "operator": "In", "values": list(values)}


def pool(*values: str) -> Raw:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [is_in("pool", *values)]}]}}}


SINGLE: Final = {"accessModes": ["ReadWriteOncePod"]}
BOUND: Final = {"pv.kubernetes.io/bind-completed": "yes"}
TOLERANT: Final = [{"key": "locked", "operator": "Exists"}]
LOCKED: Final = [{"key": "locked", "effect": "NoSchedule"}]
DRAINED: Final = [{"key": "drained", "effect": "NoExecute"}]
KINDS: dict[str, tuple[Raw | None, Raw]] = {
    "plain": (None, {}),
    "large": ({"cpu": "3"}, {}),
    "card": ({NVIDIA: "1"}, {}),
    "two cards": ({NVIDIA: "2"}, {}),
    "share": ({GPU: "50", "cpu": "1"}, {}),
    "tolerant": ({"cpu": "2"}, {"tolerations": TOLERANT}),
    "picky": ({"cpu": "1"}, {"nodeSelector": {"pool": "1"}}),
    "in a pool": (None, {"affinity": pool("1", "2")}),
    "port": (None, {"containers": listens(80)}),
    "other port": ({"cpu": "1"}, {"containers": listens(81)}),
    "near x": (None, {"affinity": pod_affinity("x")}),
    "near itself": ({"cpu": "2"}, {"labels": {"app": "x"}, "affinity": pod_affinity("x")}),
    "apart from x": (None, {"affinity": pod_anti_affinity("x")}),
    "apart from itself": (None, {"labels": {"app": "y"}, "affinity": pod_anti_affinity("y", "host")}),
    "apart from its own": (None, {"labels": {"app": "x"}, "affinity": pod_anti_affinity("x")}),
    "spread by selector": (
        None,
        {"labels": {"app": "x"}, "nodeSelector": {"pool": "1"}, "topologySpreadConstraints": spread("x")},
    ),
    "x": ({"cpu": "1"}, {"labels": {"app": "x"}}),
    "spread": (None, {"labels": {"app": "x"}, "topologySpreadConstraints": spread("x")}),
    "spread over hosts": (
        {"cpu": "1"},
        {
            "labels": {"app": "y"},
            "nodeSelector": {"pool": "1"},
            "topologySpreadConstraints": spread("y", "host", nodeTaintsPolicy="Honor", minDomains=2),
        },
    ),
    "alone with a claim": (None, {"volumes": mounts("single")}),
    "with a local volume": (None, {"volumes": mounts("local")}),
}
NODES: Final = ("a", "b", "c")
ATTRIBUTES: dict[str, tuple[Any, ...]] = {
    "zone": (None, "1", "2"),
    "pool": (None, "1", "2"),
    "host": (None, "own"),
    "taint": (None, None, LOCKED, DRAINED),
    "cordoned": (False, False, True),
    "ready": ("True", "True", "False", "Unknown"),
    "cpu": ("1", "3", "4"),
    "pods": ("0", "2", "9"),
}
"""The variants of a node: one change affects one of these at a time, so that a second reason outlives the first."""
WELL: Final = {"taint": (None, LOCKED), "cordoned": (False,), "ready": ("True",), "cpu": ("9",), "pods": ("99",)}
"""The variants of a node if only other pods and topology domains keep pods waiting."""
AMONG_PODS: Final = tuple(
    kind for kind, (_, fields) in KINDS.items() if {"affinity", "topologySpreadConstraints", "volumes"} & fields.keys()
)


class ChangingCluster:
    """A cluster in which one thing after the other changes at random."""

    def __init__(
        self,
        seed: int,
        kinds: Sequence[str],
        attributes: Mapping[str, Sequence[Any]],
        nodes: Sequence[str] = NODES,
    ) -> None:
        self.random, self.kinds, self.attributes = Random(seed), kinds, attributes
        self.cluster = Cluster(grace=20.0, clock=lambda: 0.0)
        self.storage = Storage(self.cluster)
        self.nodes: dict[str, Raw] = {}
        self.placed: dict[str, Raw] = {}
        self.number = 0
        self.storage.put_class(volumes.raw_class("local"))
        self.storage.put_claim(volumes.raw_claim("local"))
        self.storage.put_claim(volumes.raw_claim("single", spec={**SINGLE, "volumeName": "single"}, annotations=BOUND))
        self.storage.put_volume(volumes.raw_volume("single", spec=SINGLE))
        for name in nodes:
            self.node_joins(name)

    def step(self) -> str:
        """Make one random change; return what it was."""
        acts = {
            self.node_changes: 8,
            self.node_comes_or_goes: 1,
            self.cards_change: 2,
            self.pod_is_placed: 2,
            self.pod_leaves: 5,
            self.pod_changes: 2,
            self.pod_waits: 4,
            self.pod_is_nominated: 1,
            self.namespace_changes: 1,
            self.volume_changes: 1,
        }
        act = self.random.choices(list(acts), list(acts.values()))[0]
        act()
        return act.__name__

    def node_joins(self, name: str) -> None:
        self.nodes[name] = {key: self.random.choice(values) for key, values in self.attributes.items()}
        self.put_node(name)

    def node_changes(self) -> None:
        name, key = self.random.choice(NODES), self.random.choice(list(self.attributes))
        if name in self.nodes:
            self.nodes[name][key] = self.random.choice(self.attributes[key])
            self.put_node(name)

    def put_node(self, name: str) -> None:
        like = self.nodes[name]
        labels = {key: like[key] for key in ("zone", "pool", "host") if like[key]}
        if "host" in labels:
            labels["host"] = name
        raw = node(
            name,
            labels=labels,
            allocatable={"cpu": like["cpu"], "pods": like["pods"]},
            taints=like["taint"] or [],
            unschedulable=like["cordoned"],
            conditions=[{"type": "Ready", "status": like["ready"]}],
        )
        self.cluster.node_cache.put_node(raw)

    def node_comes_or_goes(self) -> None:
        name = self.random.choice(NODES)
        if self.nodes.pop(name, None):
            self.cluster.node_cache.remove_node(name)
        else:
            self.node_joins(name)

    def cards_change(self) -> None:
        name, healthy = self.random.choice(NODES), self.random.randrange(3)
        self.number += 1
        entries = [entry(minor, health=minor < healthy) for minor in range(2)]
        self.cluster.node_cache.put_device(device(name, *entries, generation=self.number))

    def pod_is_placed(self) -> None:
        """Bind a pod of another scheduler."""
        requests, fields = KINDS[self.random.choice(self.kinds)]
        self.number += 1
        raw = pod(f"placed-{self.number}", requests, **fields, on=self.random.choice(NODES))
        self.placed[raw["metadata"]["uid"]] = raw
        self.cluster.put_bound(raw)

    def pod_leaves(self) -> None:
        if self.cluster.fleet.charges:
            uid = self.random.choice(sorted(self.cluster.fleet.charges))
            self.placed.pop(uid, None)
            self.cluster.remove_bound(uid)
            self.cluster.remove_pending(uid)

    def pod_changes(self) -> None:
        """Change a pod's labels, or begin its termination."""
        if self.placed:
            uid = self.random.choice(sorted(self.placed))
            metadata = self.placed[uid]["metadata"]
            deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
            changed: Raw = self.random.choice(({"labels": {"app": "x"}}, {"labels": {}}, deleted))
            self.placed[uid] = {**self.placed[uid], "metadata": {**metadata, **changed}}
            self.cluster.put_bound(self.placed[uid])

    def pod_waits(self) -> None:
        requests, fields = KINDS[self.random.choice(self.kinds)]
        self.number += 1
        self.cluster.put_pending(pod(f"waits-{self.number}", requests, **fields))

    def pod_is_nominated(self) -> None:
        """Nominate a node for a waiting pod, or clear its nomination."""
        if asleep := self.asleep():
            chosen, on = self.random.choice(asleep), self.random.choice(NODES)
            if chosen.uid in self.cluster.fleet.nominees:
                self.cluster.queue.put(self.cluster.nominator.withdraw(chosen))
            elif on in self.nodes:
                kept = charge(chosen.name, node=on, resources=(("cpu", 1000), ("pods", 1)))
                self.cluster.queue.put(self.cluster.nominator.nominate(chosen, kept))

    def namespace_changes(self) -> None:
        self.cluster.put_namespace("ns", self.random.choice(({}, {"team": "x"})))

    def volume_changes(self) -> None:
        self.number += 1
        terms = [{"matchExpressions": [is_in("zone", self.random.choice("12"))]}]
        raw = volumes.raw_volume(
            "local",
            spec={"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
            status={"phase": self.random.choice(("Available", "Released"))},
        )
        self.storage.put_volume(raw)

    def decide_active(self) -> None:
        """Decide all active pods, and assume or park them."""
        queue = self.cluster.queue
        while (pending := popped(queue)) is not None:
            outcome = queue.parked_failure(pending) or decide(self.cluster.fleet, pending, Policy())
            if isinstance(outcome, Placement):
                self.cluster.placements.assume(outcome)
            else:
                queue.park(pending, outcome)

    def asleep(self) -> list[PendingPod]:
        pods = self.cluster.pending.values()
        return [pod for pod in pods if pod.uid not in self.cluster.fleet.charges]


@pytest.mark.parametrize(
    ("kinds", "attributes"),
    [
        pytest.param(tuple(KINDS), ATTRIBUTES, id="all kinds of pods"),
        pytest.param((*AMONG_PODS, "x"), {**ATTRIBUTES, **WELL}, id="pods among pods"),
        *(pytest.param((kind, "x"), {**ATTRIBUTES, **WELL}, id=kind) for kind in AMONG_PODS),
    ],
)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_class_that_can_be_placed_after_random_changes_was_woken(
    seed: int, kinds: Sequence[str], attributes: Mapping[str, Sequence[Any]]
) -> None:
    world, changes = ChangingCluster(seed, kinds, attributes), []
    for _ in range(STEPS):
        changes.append(world.step())
        world.decide_active()
        for pending in world.asleep():
            assert isinstance(decide(world.cluster.fleet, pending, Policy()), Failure), (pending.request, changes[-5:])


# --- which classes an event wakes ---------------------------------------------------------------------------------


def cluster_of(*nodes: Raw, placed: Sequence[Raw] = (), waiting: Mapping[str, tuple[Raw | None, Raw]]) -> Cluster:
    """Return a cluster in which the pods of one list are placed, and those of the other are parked."""
    world = ChangingCluster(0, (), ATTRIBUTES, nodes=())
    for raw in nodes:
        world.cluster.node_cache.put_node(raw)
    for raw in placed:
        world.cluster.put_bound(raw)
    for name, (requests, fields) in waiting.items():
        world.cluster.put_pending(pod(name, requests, **fields))
    world.decide_active()
    assert len(world.asleep()) == len(waiting), "all of them have to wait"
    return world.cluster


def awake(cluster: Cluster) -> set[str]:
    return set(woken(cluster))


def held(name: str, on: str = "a", requests: Raw | None = None, **fields: Any) -> Raw:
    return pod(name, requests, on=on, **fields)


OWN = {"zone": "1", "host": "a"}
LARGE: tuple[Raw, Raw] = ({"cpu": "100"}, {})
PICKY = ({"cpu": "1"}, {"nodeSelector": {"pool": "1"}})
A, LOCKED_A = node("a", labels=OWN), node("a", labels=OWN, taints=LOCKED)
SPREAD = {"labels": {"app": "x"}, "topologySpreadConstraints": spread("x")}
IN_POOL = {"affinity": pool("1")}
EVENTS = {
    "a taint is removed": (
        [LOCKED_A],
        [],
        {"fits": (None, {}), "large": LARGE, "picky": PICKY},
        lambda cluster: cluster.node_cache.put_node(A),
        {"fits"},
    ),
    "one of two taints is removed": (
        [node("a", labels=OWN, taints=[*LOCKED, *DRAINED])],
        [],
        {"tolerates one": (None, {"tolerations": TOLERANT}), "tolerates none": (None, {})},
        lambda cluster: cluster.node_cache.put_node(LOCKED_A),
        {"tolerates one"},
    ),
    "a node is uncordoned": (
        [node("a", labels=OWN, unschedulable=True)],
        [],
        {"fits": (None, {}), "large": LARGE},
        lambda cluster: cluster.node_cache.put_node(A),
        {"fits"},
    ),
    "a node is ready": (
        [node("a", labels=OWN, conditions=[{"type": "Ready", "status": "False"}])],
        [],
        {"fits": (None, {}), "picky": PICKY},
        lambda cluster: cluster.node_cache.put_node(A),
        {"fits"},
    ),
    "a label is added": (
        [A],
        [],
        {"picky": PICKY, "pickier": (None, {"affinity": pool("2")}), "large": ({"cpu": "100"}, PICKY[1])},
        lambda cluster: cluster.node_cache.put_node(node("a", labels={**OWN, "pool": "1"})),
        {"picky"},
    ),
    "an unused label is added": (
        [A],
        [held("holder", labels={"app": "x"})],
        {
            "picky": PICKY,
            "apart": (None, {"affinity": pod_anti_affinity("x")}),
            "near": (None, {"affinity": pod_affinity("y")}),
        },
        lambda cluster: cluster.node_cache.put_node(node("a", labels={**OWN, "unread": "1"})),
        set(),
    ),
    "a node leaves its domain": (
        [A],
        [held("holder", labels={"app": "x"})],
        {
            "picky": PICKY,
            "apart": (None, {"affinity": pod_anti_affinity("x")}),
            "near": (None, {"affinity": pod_affinity("y")}),
        },
        lambda cluster: cluster.node_cache.put_node(node("a", labels={"host": "a"})),
        {"apart", "near"},
    ),
    "a node has more cpu": (
        [node("a", allocatable={"cpu": "1"})],
        [],
        {"fits": ({"cpu": "2"}, {}), "large": LARGE, "picky": ({"cpu": "2"}, PICKY[1])},
        lambda cluster: cluster.node_cache.put_node(node("a", allocatable={"cpu": "2"})),
        {"fits"},
    ),
    "a Device appears": (
        [A],
        [],
        {"card": ({NVIDIA: "1"}, {}), "two": ({NVIDIA: "2"}, {}), "picky": ({NVIDIA: "1"}, PICKY[1])},
        lambda cluster: cluster.node_cache.put_device(device("a", entry(0))),
        {"card"},
    ),
    "a host port is freed": (
        [A],
        [held("holder", containers=listens(80))],
        {"port": (None, {"containers": listens(80)}), "large": LARGE, "picky": PICKY},
        lambda cluster: cluster.remove_bound("uid-holder"),
        {"port"},
    ),
    "another host port is freed": (
        [A],
        [held("holder", containers=listens(80)), held("other", containers=listens(81))],
        {"port": (None, {"containers": listens(80)}), "other port": (None, {"containers": listens(81)})},
        lambda cluster: cluster.remove_bound("uid-other"),
        {"other port"},
    ),
    "a pod leaves that another avoids": (
        [A],
        [held("holder", labels={"app": "x"}), held("other", labels={"app": "y"})],
        {
            "apart": (None, {"affinity": pod_anti_affinity("x")}),
            "apart from other": (None, {"affinity": pod_anti_affinity("y")}),
        },
        lambda cluster: cluster.remove_bound("uid-holder"),
        {"apart"},
    ),
    "a pod leaves that avoids another": (
        [A],
        [held("holder", affinity=pod_anti_affinity("x")), held("other", affinity=pod_anti_affinity("y"))],
        {"x": (None, {"labels": {"app": "x"}}), "y": (None, {"labels": {"app": "y"}}), "large": LARGE},
        lambda cluster: cluster.remove_bound("uid-holder"),
        {"x"},
    ),
    "an affinity's pod is placed": (
        [A],
        [],
        {
            "near": (None, {"affinity": pod_affinity("x")}),
            "near other": (None, {"affinity": pod_affinity("y")}),
            "large": LARGE,
        },
        lambda cluster: cluster.put_bound(held("new", labels={"app": "x"})),
        {"near"},
    ),
    "capacity is freed": (
        [node("a", allocatable={"cpu": "4"}), node("b", allocatable={"cpu": "4"})],
        [held("holder", "a", {"cpu": "2"}), held("stays", "a", {"cpu": "2"}), held("fills", "b", {"cpu": "3"})],
        {"fits": ({"cpu": "2"}, {}), "larger": ({"cpu": "3"}, {}), "picky": ({"cpu": "2"}, PICKY[1])},
        lambda cluster: cluster.remove_bound("uid-holder"),
        {"fits"},
    ),
    "a node is added": (
        [node("a", allocatable={"cpu": "1"})],
        [],
        {"fits": ({"cpu": "2"}, {}), "large": LARGE, "picky": ({"cpu": "2"}, PICKY[1])},
        lambda cluster: cluster.node_cache.put_node(node("b")),
        {"fits"},
    ),
    "a node is removed, which helps only constraints that count its pods": (
        [A],
        [held("holder", "a", labels={"app": "x"}, affinity=pod_anti_affinity("x"))],
        {
            "apart": (None, {"affinity": pod_anti_affinity("x")}),
            "near": (None, {"affinity": pod_affinity("y")}),
            "large": LARGE,
        },
        lambda cluster: cluster.node_cache.remove_node("a"),
        {"apart", "near"},
    ),
    "the pod that it avoids leaves the domain with its node": (
        [A, node("b", labels={"zone": "1"})],
        [held("holder", "b", labels={"app": "x"})],
        {"apart": (None, {"affinity": pod_anti_affinity("x"), "nodeSelector": {"host": "a"}}), "picky": PICKY},
        lambda cluster: cluster.node_cache.put_node(node("b")),
        {"apart"},
    ),
    "the pod with anti-affinity leaves the domain with its node": (
        [A, node("b", labels={"zone": "1"})],
        [held("holder", "b", affinity=pod_anti_affinity("x"))],
        {"x": (None, {"labels": {"app": "x"}, "nodeSelector": {"host": "a"}}), "picky": PICKY},
        lambda cluster: cluster.node_cache.put_node(node("b")),
        {"x"},
    ),
    "the emptiest domain does not count any more": (
        [
            node("a", labels={"zone": "1", "pool": "1"}),
            node("b", labels={"zone": "2", "pool": "1"}, unschedulable=True),
        ],
        [held("holder", labels={"app": "x"})],
        {"spread": (None, {**SPREAD, "nodeSelector": {"pool": "1"}}), "in a pool": (None, {**SPREAD, **IN_POOL})},
        lambda cluster: cluster.node_cache.put_node(node("b", labels={"zone": "2"}, unschedulable=True)),
        {"spread", "in a pool"},
    ),
}


@pytest.mark.parametrize(("nodes", "placed", "waiting", "act", "expected"), EVENTS.values(), ids=EVENTS)
def test_an_event_wakes_only_the_classes_that_it_may_help(
    nodes: Sequence[Raw],
    placed: Sequence[Raw],
    waiting: Mapping[str, tuple[Raw | None, Raw]],
    act: Callable[[Cluster], object],
    expected: set[str],
) -> None:
    cluster = cluster_of(*nodes, placed=placed, waiting=waiting)
    act(cluster)
    assert awake(cluster) == expected


def test_a_class_that_lacks_a_second_thing_is_woken_by_that_too() -> None:
    """Freed capacity alone did not help; the card that was missing as well has to wake the pod."""
    cluster = cluster_of(
        node("a", allocatable={"cpu": "4"}),
        placed=[held("holder", "a", {"cpu": "4"})],
        waiting={"card": ({NVIDIA: "1", "cpu": "2"}, {})},
    )
    cluster.remove_bound("uid-holder")
    assert awake(cluster) == set()
    cluster.node_cache.put_device(device("a", entry(0)))
    assert awake(cluster) == {"card"}


def test_a_class_that_may_preempt_is_woken_where_only_capacity_is_lacking() -> None:
    cluster = cluster_of(
        node("a", allocatable={"cpu": "4"}, taints=LOCKED),
        placed=[held("low", "a", {"cpu": "4"}, tolerations=TOLERANT)],
        waiting={
            "high": ({"cpu": "2"}, {"priority": 1}),
            "too large": ({"cpu": "5"}, {"priority": 1}),
            "never": ({"cpu": "2"}, {"priority": 1, "preemptionPolicy": "Never"}),
            "equal": ({"cpu": "2"}, {}),
        },
    )
    cluster.node_cache.put_node(node("a", allocatable={"cpu": "4"}))
    assert awake(cluster) == {"high"}


def test_a_nominee_is_woken_by_any_change_of_its_node() -> None:
    cluster = cluster_of(
        node("a", allocatable={"cpu": "4"}),
        placed=[held("low", "a", {"cpu": "4"})],
        waiting={"high": ({"cpu": "2"}, {"priority": 1}), "other": ({"cpu": "2"}, {"priority": 2})},
    )
    chosen = cluster.pending["uid-high"]
    failure = cluster.queue.parked_failure(chosen)
    assert failure is not None
    cluster.queue.put(cluster.nominator.nominate(chosen, charge("high", node="a", resources=(("cpu", 2000),))))
    nominated = popped(cluster.queue)
    assert nominated is not None
    cluster.queue.park(nominated, replace(failure, wakes_on=failure.wakes_on | Change.NODE_TAINTS))
    cluster.node_cache.put_node(node("a", allocatable={"cpu": "4"}, taints=LOCKED))
    assert awake(cluster) == {"high"}
