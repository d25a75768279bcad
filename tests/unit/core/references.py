"""A plain reference of kube-scheduler's scores about other pods, node by node; `crowds` has that of the filters."""

import math
from collections.abc import Mapping, Sequence

from berth_operator.core.filters.spreading import HOSTNAME
from berth_operator.core.scores.default_spread import ZONE
from berth_operator.core.values.affinity import Identity, Spread
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import PodRequest
from tests.unit.core import crowds
from tests.unit.core.crowds import World


def drawn(world: World, pod: PodRequest, node: NodeInfo) -> int:
    total = 0
    for at, other in world.placed():
        mine = [
            (each, weight)
            for each, weight in pod.affinity.preferred
            if crowds.reaches(world, each.peers, other.identity)
        ]
        its = [*other.affinity.preferred, *((each, 1) for each in other.affinity.near)]
        its = [(each, weight) for each, weight in its if crowds.includes(world, each.peers, pod.identity)]
        total += sum(weight for each, weight in (*mine, *its) if crowds.together(each.key, node, at))
    return total


def near(world: World, pod: PodRequest, fits: Sequence[NodeInfo]) -> Mapping[str, float]:
    raw = {node.name: drawn(world, pod, node) for node in fits}
    low, high = min(raw.values()), max(raw.values())
    return {
        name: float(int(100.0 * ((each - low) / (high - low)))) if high > low else 0.0 for name, each in raw.items()
    }


def crowding(world: World, pod: PodRequest, spread: Spread, node: NodeInfo, candidates: Sequence[NodeInfo]) -> float:
    keys = {each.key for each in pod.affinity.preferred_spread}
    if spread.key == HOSTNAME:
        number, count = len(candidates), crowds.matching(world, pod, spread, node)
    else:
        number = len({each.labels[spread.key] for each in candidates})
        around = [each for each in world.nodes if crowds.together(spread.key, node, each)]
        eligible = [each for each in around if crowds.eligible(pod, spread, keys, each)]
        count = sum(crowds.matching(world, pod, spread, each) for each in eligible)
    return count * math.log(number + 2) + spread.max_skew - 1


def even(world: World, pod: PodRequest, fits: Sequence[NodeInfo]) -> Mapping[str, float]:
    constraints = pod.affinity.preferred_spread
    candidates = [node for node in fits if {each.key for each in constraints} <= set(node.labels)]
    raw = {
        node.name: math.floor(sum(crowding(world, pod, each, node, candidates) for each in constraints) + 0.5)
        for node in candidates
    }
    high, low = max(raw.values(), default=0), min(raw.values(), default=0)
    points = {name: 100 * (high + low - each) // high if high else 100 for name, each in raw.items()}
    return {node.name: float(points.get(node.name, 0)) if constraints else 0.0 for node in fits}


def default(
    world: World, pod: PodRequest, fits: Sequence[NodeInfo], services: Sequence[Mapping[str, str]] = ()
) -> Mapping[str, float]:
    """Return the scores by the default constraints; `services` are the selectors in the pod's namespace."""
    if pod.affinity.spread or pod.affinity.preferred_spread or not alike(pod, pod.identity, services):
        return {node.name: 0.0 for node in fits}
    allowed = [each for each in world.nodes if all(term.holds(each.labels) for term in pod.node_selector)]

    def count(nodes: Sequence[NodeInfo]) -> int:
        counted = [at for at, other in world.placed() if alike(pod, other.identity, services) and not other.terminating]
        return sum(any(at is each for each in nodes) for at in counted)

    def crowded(node: NodeInfo) -> int:
        total, zones = 0.0, {each.labels.get(ZONE) for each in fits}
        if HOSTNAME in node.labels:
            total += count([node]) * math.log(len(fits) + 2) + 3 - 1
        if ZONE in node.labels:
            around = [each for each in allowed if crowds.together(ZONE, node, each)]
            total += count(around) * math.log(len(zones) + 2) + 5 - 1
        return math.floor(total + 0.5)

    raw = {node.name: crowded(node) for node in fits}
    high, low = max(raw.values()), min(raw.values())
    return {name: float(100 * (high + low - each) // high) if high else 100.0 for name, each in raw.items()}


def alike(pod: PodRequest, other: Identity, services: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a placed pod counts as a replica of the pod to be placed."""
    if pod.identity.controller:
        return pod.identity.controller == other.controller
    its, others = dict(pod.identity.labels), dict(other.labels)
    behind = [each for each in services if each and each.items() <= its.items()]
    same = other.namespace == pod.identity.namespace
    return bool(behind) and same and all(each.items() <= others.items() for each in behind)
