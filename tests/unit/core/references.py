"""A plain reference of kube-scheduler's scores about other pods. `affinity_worlds` has the reference of the filters."""

import math
from collections.abc import Mapping, Sequence

from berth_operator.core.filters.spreading import HOSTNAME
from berth_operator.core.scores.default_spread import ZONE
from berth_operator.core.values.affinity import Identity, TopologySpreadConstraint
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PodRequest
from tests.unit.core import affinity_worlds
from tests.unit.core.affinity_worlds import World


def raw_score(world: World, pod: PodRequest, node: NodeInfo) -> int:
    total = 0
    for at, other in world.placed():
        mine = [
            (each, weight)
            for each, weight in pod.affinity.preferred_terms
            if affinity_worlds.matches_for_incoming_pod(world, each.peers, other.identity)
        ]
        its = [*other.affinity.preferred_terms, *((each, 1) for each in other.affinity.required_affinity)]
        its = [(each, weight) for each, weight in its if affinity_worlds.matches(world, each.peers, pod.identity)]
        total += sum(weight for each, weight in (*mine, *its) if affinity_worlds.same_domain(each.key, node, at))
    return total


def pod_affinity(world: World, pod: PodRequest, fits: Sequence[NodeInfo]) -> Mapping[str, float]:
    raw = {node.name: raw_score(world, pod, node) for node in fits}
    low, high = min(raw.values()), max(raw.values())
    return {
        name: float(int(100.0 * ((each - low) / (high - low)))) if high > low else 0.0 for name, each in raw.items()
    }


def score_for_count(
    world: World, pod: PodRequest, constraint: TopologySpreadConstraint, node: NodeInfo, candidates: Sequence[NodeInfo]
) -> float:
    keys = {each.key for each in pod.affinity.preferred_topology_spread}
    if constraint.key == HOSTNAME:
        number, count = len(candidates), affinity_worlds.count_matching(world, pod, constraint, node)
    else:
        number = len({each.labels[constraint.key] for each in candidates})
        around = [each for each in world.nodes if affinity_worlds.same_domain(constraint.key, node, each)]
        eligible = [each for each in around if affinity_worlds.eligible(pod, constraint, keys, each)]
        count = sum(affinity_worlds.count_matching(world, pod, constraint, each) for each in eligible)
    return count * math.log(number + 2) + constraint.max_skew - 1


def topology_spread(world: World, pod: PodRequest, fits: Sequence[NodeInfo]) -> Mapping[str, float]:
    constraints = pod.affinity.preferred_topology_spread
    candidates = [node for node in fits if {each.key for each in constraints} <= set(node.labels)]
    raw = {
        node.name: math.floor(sum(score_for_count(world, pod, each, node, candidates) for each in constraints) + 0.5)
        for node in candidates
    }
    high, low = max(raw.values(), default=0), min(raw.values(), default=0)
    points = {name: 100 * (high + low - each) // high if high else 100 for name, each in raw.items()}
    return {node.name: float(points.get(node.name, 0)) if constraints else 0.0 for node in fits}


def default(
    world: World, pod: PodRequest, fits: Sequence[NodeInfo], services: Sequence[Mapping[str, str]] = ()
) -> Mapping[str, float]:
    """Return the scores by the default constraints; `services` are the selectors in the pod's namespace."""
    if (
        pod.affinity.topology_spread
        or pod.affinity.preferred_topology_spread
        or not is_replica(pod, pod.identity, services)
    ):
        return {node.name: 0.0 for node in fits}
    allowed = [each for each in world.nodes if all(term.holds(each.labels) for term in pod.node_selector)]

    def count(nodes: Sequence[NodeInfo]) -> int:
        counted = [
            at for at, other in world.placed() if is_replica(pod, other.identity, services) and not other.terminating
        ]
        return sum(any(at is each for each in nodes) for at in counted)

    def raw_score_of(node: NodeInfo) -> int:
        total, zones = 0.0, {each.labels.get(ZONE) for each in fits}
        if HOSTNAME in node.labels:
            total += count([node]) * math.log(len(fits) + 2) + 3 - 1
        if ZONE in node.labels:
            around = [each for each in allowed if affinity_worlds.same_domain(ZONE, node, each)]
            total += count(around) * math.log(len(zones) + 2) + 5 - 1
        return math.floor(total + 0.5)

    raw = {node.name: raw_score_of(node) for node in fits}
    high, low = max(raw.values()), min(raw.values())
    return {name: float(100 * (high + low - each) // high) if high else 100.0 for name, each in raw.items()}


def is_replica(pod: PodRequest, other: Identity, services: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a placed pod counts as a replica of the pod to be placed."""
    if pod.identity.controller:
        return pod.identity.controller == other.controller
    its, others = dict(pod.identity.labels), dict(other.labels)
    behind = [each for each in services if each and each.items() <= its.items()]
    same = other.namespace == pod.identity.namespace
    return bool(behind) and same and all(each.items() <= others.items() for each in behind)
