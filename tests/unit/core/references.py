"""A plain reading of kube-scheduler's scores about other pods, node by node: see `crowds` for what is required."""

import math
from collections.abc import Mapping, Sequence

from berth_operator.core.fleet import NodeInfo
from berth_operator.core.peers.wishes import Spread
from berth_operator.core.request import PodRequest
from berth_operator.core.scores.even_spread import HOSTNAME
from tests.unit.core import crowds
from tests.unit.core.crowds import World


def drawn(world: World, pod: PodRequest, node: NodeInfo) -> int:
    total = 0
    for at, other in world.placed():
        mine = [
            (each, weight) for each, weight in pod.wishes.preferred if crowds.reaches(world, each.peers, other.identity)
        ]
        its = [*other.wishes.preferred, *((each, 1) for each in other.wishes.near)]
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
    keys = {each.key for each in pod.wishes.preferred_spread}
    if spread.key == HOSTNAME:
        number, count = len(candidates), crowds.matching(world, pod, spread, node)
    else:
        number = len({each.labels[spread.key] for each in candidates})
        around = [each for each in world.nodes if crowds.together(spread.key, node, each)]
        eligible = [each for each in around if crowds.eligible(pod, spread, keys, each)]
        count = sum(crowds.matching(world, pod, spread, each) for each in eligible)
    return count * math.log(number + 2) + spread.max_skew - 1


def even(world: World, pod: PodRequest, fits: Sequence[NodeInfo]) -> Mapping[str, float]:
    constraints = pod.wishes.preferred_spread
    candidates = [node for node in fits if {each.key for each in constraints} <= set(node.labels)]
    raw = {
        node.name: math.floor(sum(crowding(world, pod, each, node, candidates) for each in constraints) + 0.5)
        for node in candidates
    }
    high, low = max(raw.values(), default=0), min(raw.values(), default=0)
    found = {name: 100 * (high + low - each) // high if high else 100 for name, each in raw.items()}
    return {node.name: float(found.get(node.name, 0)) if constraints else 0.0 for node in fits}
