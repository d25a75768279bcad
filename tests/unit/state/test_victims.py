"""No pod is evicted from a node that would reject the preemptor without any pod of lower priority: for all filters."""

import copy
from collections.abc import Iterator
from random import Random

from berth_operator.core.decision import cycle
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import preempt
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import nodes, pods
from berth_operator.state.watches.storage import Storage
from tests.differential import draft, generate
from tests.differential.draft import Draft, Raw, name_of
from tests.objects.builders import device, entry

PRIORITY = 10
SCENARIOS = 8 * len(generate.RULES)
CARDS = 2
NVIDIA = "nvidia.com/gpu"


def crowded(seed: int, number: int) -> Draft:
    """Return a scenario of one rule, two at most, whose nodes are full of pods of lower priority, some with cards."""
    made = generate.scenario(seed, number, "ns", 37)
    dice = Random(f"crowded {seed}/{number}")
    requests = made.probe["spec"]["containers"][0].setdefault("resources", {}).setdefault("requests", {})
    requests.setdefault("cpu", "1")
    if dice.random() < 0.5:
        limits = made.probe["spec"]["containers"][0]["resources"].setdefault("limits", {})
        requests[NVIDIA] = limits[NVIDIA] = "1"
    for pod in made.pods:
        pod["spec"]["priority"] = dice.choice([0, 0, PRIORITY])
    for node in made.nodes:
        for kind in ("allocatable", "capacity"):
            node["status"][kind] = {**node["status"][kind], NVIDIA: str(CARDS)}
        if dice.random() < 0.9:
            # More than any node has: without it there is as much as the scenario has left.
            full = draft.container("main", resources={"requests": {"cpu": "64"}})
            made.put(node, {"containers": [full], "priority": dice.choice([0, 0, 0, PRIORITY])})
    return made


def state(of: Draft) -> Cluster:
    """Return the state after the API server has sent the objects of a scenario."""
    cluster = Cluster(grace=1e9, clock=lambda: 0.0)
    storage = Storage(cluster)
    put = {
        "persistentvolumeclaims": storage.put_claim,
        "persistentvolumes": storage.put_volume,
        "storageclasses": storage.put_class,
        "csistoragecapacities": storage.put_capacity,
        "csidrivers": storage.put_driver,
        "csinodes": storage.put_limits,
        "volumeattachments": storage.put_attachment,
    }
    for path, manifest in (*generate.OBJECTS, *of.objects):
        if (kind := path.rpartition("/")[2]) in put:
            put[kind](with_uid(manifest))
    for number, node in enumerate(of.nodes):
        cluster.node_cache.put_node(nodes.transform(with_uid(node)))
        cluster.node_cache.put_device(device(name_of(node), *(entry(minor) for minor in range(number % (CARDS + 1)))))
    for pod in of.pods:
        cluster.put_bound(pods.transform(with_uid(pod)))
    return cluster


def with_uid(manifest: Raw) -> Raw:
    """Return an object as the API server stores it."""
    made = copy.deepcopy(manifest)
    made["metadata"] |= {
        "namespace": "ns",
        "uid": f"uid-{name_of(manifest)}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return made


def probe(of: Draft, node: Raw) -> PendingPod:
    raw = with_uid(of.probe)
    raw["spec"]["priority"] = PRIORITY
    raw["spec"]["volumes"] = [*raw["spec"].get("volumes", ()), *of.volumes.get(name_of(node), ())]
    return pods.pending(raw)


def without_lower(fleet: Fleet, pod: PendingPod, node: str) -> Fleet:
    """Return a copy of a Fleet in which no pod of lower priority is on a node."""
    made = fleet.copy()
    for charge in [each for each in fleet.on_node(node) if each.priority < pod.priority]:
        made.release(charge.uid)
    return made


def choices(number: int) -> Iterator[tuple[str, bool]]:
    """Yield each choice of victims in a scenario: the node, and whether all filters pass it without lower pods."""
    made = crowded(7, number)
    fleet, policy = state(made).fleet, Policy()
    for node in made.nodes if made.volumes else made.nodes[:1]:
        pod = probe(made, node)
        if pod.error or not isinstance(decide(fleet, pod, policy), Failure):
            continue
        if (chosen := preempt(fleet, pod, policy, Budgets())) is not None:
            row, order = fleet.rows[chosen.nominee.node], policy.filters_of(pod.request)
            rest = without_lower(fleet, pod, chosen.nominee.node)
            yield chosen.nominee.node, bool(cycle.feasible(rest, pod.request, order)[row])


def test_no_victim_is_chosen_on_a_node_that_rejects_the_pod_without_any_pod_of_lower_priority() -> None:
    found = {number: [*choices(number)] for number in range(SCENARIOS)}
    in_vain = {number: [node for node, fits in made if not fits] for number, made in found.items()}
    assert {number: made for number, made in in_vain.items() if made} == {}
    assert sum(map(bool, found.values())) > SCENARIOS / 2, "most scenarios have victims"
