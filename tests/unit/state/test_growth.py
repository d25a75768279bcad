"""What is known of objects that are gone is forgotten: an autoscaled fleet has new names every day, for months."""

from collections import Counter

import pytest

from berth_api import names
from berth_api.words import OWN_GROUPS
from berth_operator.apis.visibility.sources import FleetRows
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.answers import MAX_CHANGED, Answers
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.controller_gangs import OWNED
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.tenants import Tenants
from berth_operator.state.watches import gang_owners
from berth_operator.state.watches.claims import KEPT_SECONDS
from berth_operator.state.watches.storage import Storage
from tests.claims.objects import request
from tests.objects.builders import (
    GPU,
    NVIDIA,
    Raw,
    device,
    entry,
    every_pod,
    gpu_pod,
    held,
    lease,
    node,
    owner,
    pod,
    pod_group,
)
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, gpu, resource_slice
from tests.objects.volumes import raw_claim, raw_class, raw_volume

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CONTAINERS = (dict, set, frozenset, list, tuple)
BOUNDED = (
    *(".column_cache.", "._seen[].", ".labels._columns[].values", ".replicas._tally.", ".supply._answers."),
    ".rejected_pods._bound",
)
"""Caches that grow up to a bound."""


def sizes(root: object) -> Counter[str]:
    """Return the number of values in all containers of a state, by path."""
    found, seen, left = Counter[str](), {id(root)}, [("", root)]
    while left:
        path, value = left.pop()
        if isinstance(value, CONTAINERS):
            found[path] += len(value)
            values = [*value, *value.values()] if isinstance(value, dict) else value
            parts = [(f"{path}[]", part) for part in values]
        else:
            slots = [slot for of in type(value).__mro__ for slot in getattr(of, "__slots__", ())]
            own = {slot: getattr(value, slot, None) for slot in slots} | getattr(value, "__dict__", {})
            parts = [(f"{path}.{name}", part) for name, part in own.items()]
        for name, part in parts:
            is_ours = isinstance(part, CONTAINERS) or type(part).__module__.startswith("berth")
            if is_ours and id(part) not in seen:
                seen.add(id(part))
                left.append((name, part))
    return found


class Life:
    """A cluster, and objects that come, are used and go; `claiming`: pods of ours have ResourceClaims."""

    def __init__(self, *, claiming: bool) -> None:
        self.now, self.claiming = 100.0, claiming
        self.cluster = cluster = Cluster(grace=20.0, clock=lambda: self.now, wall=lambda: self.now, tenants=Tenants())
        self.pods, self.claims, self.storage = every_pod(cluster), ClaimsInTurns(cluster), Storage(cluster)
        cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
        self.claims.put_class({"metadata": {"name": "gpu"}, "spec": {}})
        self.storage.put_class(raw_class())
        self.rows = FleetRows(cluster, lambda: "")

    def decide_all(self) -> list[Placement]:
        """Decide all units; assume those that fit, and park the others."""
        cluster, placed = self.cluster, list[Placement]()
        while (unit := cluster.queue.pop(self.now)) is not None:
            if isinstance(unit, Gang):
                outcome = decide_gang(cluster.fleet, unit, Policy())
            else:
                single = decide(cluster.fleet, unit, Policy())
                outcome = single if isinstance(single, Failure) else [single]
            if isinstance(outcome, Failure):
                cluster.queue.park(unit, outcome)
            else:
                cluster.placements.assume_all(outcome)
                placed += outcome
        return placed

    def live(self, name: str) -> None:
        """Add nodes, pods and other objects with this part in their names, and remove all of them."""
        cluster, claims, storage = self.cluster, self.claims, self.storage
        labels = {"kubernetes.io/hostname": name, "zone": name}
        cluster.node_cache.put_node(node(name, labels=labels, images=[{"names": [name], "sizeBytes": 5}]))
        cluster.node_cache.put_node(node(f"plain-{name}"))
        cluster.node_cache.put_device(device(name, *map(entry, range(8)), held=[held(f"ended-{name}", "GPU-6")]))
        cluster.node_cache.put_lease(lease(name))
        cluster.node_cache.put_lease(lease(name, "2"))
        cluster.put_namespace(name, {"a": name}, {names.MOVABLE: "true", names.CONTROLLER_GANGS: "false"})
        claims.put_slice(resource_slice(gpu(7), node=name))
        metadata = {"name": name, "namespace": "ns", "uid": f"uid-claim-{name}"}
        claims.put_claim({"metadata": metadata, "spec": {"devices": {"requests": [request()]}}})
        storage.put_claim(raw_claim(name))
        storage.put_volume(raw_volume(name))
        cluster.gangs.put_group(pod_group(name))
        agent = pod(f"agent-{name}", on=name, labels={names.APP_NAME: names.AGENT})
        agent["metadata"]["namespace"] = names.AGENT_SYSTEM
        uses_claim: Raw = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}]} if self.claiming else {}
        near = {"labelSelector": {"matchLabels": {"app": name}}, "topologyKey": "zone"}
        pods: list[Raw] = [
            pod(f"single-{name}", {NVIDIA: "1"}, labels={"app": name}, metadata={"ownerReferences": [owner(name)]}),
            pod(f"near-{name}", {GPU: "50"}, affinity={"podAffinity": {REQUIRED: [near]}}),
            pod(f"first-{name}", {NVIDIA: "1"}, labels={names.POD_GROUP_LABEL: name}),
            pod(f"second-{name}", {NVIDIA: "1"}, labels={names.POD_GROUP_LABEL: name}),
            pod(f"lone-{name}", {NVIDIA: "1"}, annotations={names.POD_GROUP: name, names.POD_GROUP_MIN_MEMBER: "2"}),
            pod(f"big-{name}", {NVIDIA: "16"}),
            pod(f"claiming-{name}", **uses_claim),
            pod(f"gated-{name}", schedulingGates=[{"name": name}]),
            pod(f"stored-{name}", volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": name}}]),
        ]
        for raw in (agent, *pods):
            self.pods.apply("ADDED", raw)
        assert list(self.rows.rows())
        nodes = {placement.pod.uid: placement.node for placement in self.decide_all()}
        assert len(nodes) == 6, nodes
        for raw in pods:
            if on := nodes.get(raw["metadata"]["uid"]):
                self.pods.apply("MODIFIED", {**raw, "spec": {**raw["spec"], "nodeName": on}})
        cluster.allocations.put_gpu_pod(gpu_pod(f"single-{name}", "GPU-0", node=name))
        self.now += 30
        cluster.unknown_allocations.report()
        self.decide_all()
        assert list(self.rows.rows())
        for raw in (agent, *pods):
            self.pods.apply("DELETED", raw)
        cluster.allocations.remove_gpu_pod(f"ns/single-{name}.{name}")
        cluster.gangs.remove_group(f"ns/{name}", OWN_GROUPS)
        claims.remove_claim(f"ns/{name}")
        claims.remove_slice(resource_slice(gpu(7), node=name)["metadata"]["name"])
        storage.remove_claim(f"ns/{name}")
        storage.remove_volume(name)
        cluster.put_namespace(name, {})
        cluster.node_cache.remove_device(name)
        cluster.node_cache.remove_lease(name)
        cluster.node_cache.remove_node(name)
        cluster.node_cache.remove_node(f"plain-{name}")
        self.now += KEPT_SECONDS
        cluster.expire_slices()
        cluster.node_cache.end_startups()
        cluster.node_cache.check_all_alive()


@pytest.mark.parametrize("claiming", [True, False], ids=["with claims", "without claims"])
def test_the_state_does_not_grow_with_the_names_of_what_is_gone(*, claiming: bool) -> None:
    life = Life(claiming=claiming)
    for number in range(4):
        life.live(f"a{number}")
    before = sizes([life.cluster, life.rows])
    for number in range(8):
        life.live(f"b{number}")
    after = sizes([life.cluster, life.rows])
    grown = {path: (before[path], size) for path, size in after.items() if size > before[path]}
    assert [path for path in grown if not any(part in path for part in BOUNDED)] == []


def test_what_was_computed_about_nodes_is_bounded() -> None:
    answers = Answers()
    refusals = answers.refusals("request", 1)
    for number in range(2 * MAX_CHANGED):
        refusals.by_node[f"n{number}"] = "refused"
        answers.drop(f"n{number}")
        refusals = answers.refusals("request", 1)
        assert f"n{number}" not in refusals.by_node
    assert sizes(answers).total() < 1.5 * MAX_CHANGED


@pytest.mark.parametrize("kind", ["LeaderWorkerSet group", "JobSet"])
def test_what_an_object_without_pods_costs_follows_its_length(kind: str) -> None:
    worker = {"spec": {"containers": [{"name": "main", "resources": {"limits": {NVIDIA: "1"}}}]}}
    specs: dict[str, Raw] = {
        "LeaderWorkerSet group": {
            "replicas": 10**9,
            "startupPolicy": "LeaderReady",
            "leaderWorkerTemplate": {"size": 8, "workerTemplate": worker},
        },
        "JobSet": {
            "replicatedJobs": [{"name": f"j{n}", "template": {"spec": {"template": worker}}} for n in range(100)],
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
        },
    }
    cluster = Cluster(grace=20.0)
    dict(gang_owners.sources(cluster, {OWNED[kind].group}))
    before = sum(sizes(cluster).values())
    raw = {"metadata": {"namespace": "ns", "name": "x", "uid": "u"}, "spec": specs[kind]}
    cluster.put_owner(kind, gang_owners.read(OWNED[kind], raw))
    made = sum(sizes(cluster).values()) - before
    # The JobSet has 4,950 pairs of jobs, each twice.
    assert made < (60 if kind != "JobSet" else 15_000)
    cluster.remove_owner(kind, "ns/x")
    assert sum(sizes(cluster).values()) - before < 10
