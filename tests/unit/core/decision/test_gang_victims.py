"""The victims for a gang are a cheapest set: a judge tries all sets of victims on small random boards.

The judge counts cards and cores in code of its own, and tries all nodes for each member.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, islice
from typing import Final, NamedTuple

import pytest

from berth_api.values.selectors import LabelSelector, Requirement
from berth_operator.core.claims.bounds.errors import NoWorkError
from berth_operator.core.decision.budgets import Budget, Budgets
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.gang_evictions import GangPreemption
from berth_operator.core.decision.gang_preemption import preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import NO_AFFINITY, Affinity, Identity, Peers, Term
from berth_operator.core.values.request import PendingPod
from tests.objects.builders import (
    A100_BYTES,
    NVIDIA,
    add,
    asks,
    cards,
    charge,
    gang,
    grant,
    inventory,
    node_info,
    waiting,
)
from tests.unit.core.affinity_worlds import select
from tests.unit.core.fleet.test_fleet import arrays

HOST: Final = "kubernetes.io/hostname"
CLIQUE: Final = "nvidia.com/gpu.clique"
PRIORITY: Final = 1000
"""The gang's priority. Pods with the same priority are not evicted."""
PRIORITIES: Final = (-1, 0, 500)
CORES: Final = 4
RULES: Final = ("", "", "", "one clique", "one clique", "the group's clique", "different nodes", "different cliques")
SEEDS: Final = 25
BOARDS: Final = 20
"""Boards of each seed."""
MAX_VICTIMS: Final = 10
Free = tuple[tuple[int, int], ...]
"""Cards and cores of each node."""
Cost = tuple[int, int, int]


class Held(NamedTuple):
    """A placed pod."""

    name: str
    node: int
    minors: tuple[int, ...]
    cores: int
    priority: int
    app: str
    started: int


class Member(NamedTuple):
    """A member of the gang."""

    cards: int
    cores: int
    nodes: frozenset[int]
    """The nodes that its selector allows."""


class Board(NamedTuple):
    """Nodes with cards, the pods that hold some of them, and a gang that does not fit."""

    sizes: tuple[int, ...]
    cliques: tuple[str, ...]
    held: tuple[Held, ...]
    members: tuple[Member, ...]
    minimum: int
    rule: str
    """What the members' affinity or their PodGroup requires: one clique, different nodes or cliques, or nothing."""
    budgets: tuple[tuple[str, int], ...]
    """The application that each budget protects, and how many of its pods may be evicted."""


# --- the judge --------------------------------------------------------------------------------------------------------


def evictable(board: Board) -> list[Held]:
    return [pod for pod in board.held if pod.priority < PRIORITY]


def fits(board: Board, victims: Sequence[Held]) -> bool:
    """Return whether enough members fit without these pods."""

    @lru_cache(None)
    def most(left: tuple[Member, ...], free: Free, placed: tuple[int, ...]) -> int:
        """Return how many of these members can be placed at most."""
        if not left:
            return 0
        member, *rest = left
        others = tuple(rest)
        best = most(others, free, placed)
        for node in member.nodes:
            spare, idle = free[node]
            if spare >= member.cards and idle >= member.cores and is_allowed(board, node, placed):
                taken = (*free[:node], (spare - member.cards, idle - member.cores), *free[node + 1 :])
                best = max(best, 1 + most(others, taken, tuple(sorted((*placed, node)))))
        return best

    staying = [pod for pod in board.held if pod not in victims]
    free = tuple(
        (
            size - sum(len(pod.minors) for pod in staying if pod.node == node),
            CORES - sum(pod.cores for pod in staying if pod.node == node),
        )
        for node, size in enumerate(board.sizes)
    )
    return most(board.members, free, ()) >= board.minimum


def is_allowed(board: Board, node: int, placed: Sequence[int]) -> bool:
    """Return whether a member may be on a node next to the placed members."""
    clique, others = board.cliques[node], {board.cliques[other] for other in placed}
    match board.rule:
        case "one clique" | "the group's clique":
            return bool(clique) and others <= {clique}
        case "different nodes":
            return node not in placed
        case "different cliques":
            return not clique or clique not in others
    return True


def cost_of(board: Board, victims: Sequence[Held]) -> Cost:
    """Return what kube-scheduler compares, the most important first; each priority counts as positive in the sum."""
    violations = sum(max(0, sum(pod.app == app for pod in victims) - allowed) for app, allowed in board.budgets)
    priorities = [pod.priority for pod in victims]
    return violations, max(priorities, default=-(2**62)), sum(priority + 2**31 for priority in priorities)


def cheapest(board: Board) -> Cost | None:
    """Return the least cost of victims without which the gang fits; None if there are no such victims."""
    pods = evictable(board)
    if not fits(board, pods):
        return None
    sets = (chosen for number in range(len(pods) + 1) for chosen in combinations(pods, number))
    return next(cost for cost, chosen in sorted((cost_of(board, each), each) for each in sets) if fits(board, chosen))


# --- boards -----------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> Iterator[Board]:
    chance = random.Random(seed)
    while True:
        nodes = chance.randint(2, 5)
        sizes = tuple(chance.choice((1, 1, 2, 2, 3, 4)) for _ in range(nodes))
        with_cores = chance.random() < 0.3
        members = []
        for _ in range(chance.randint(1, 4)):
            allowed = chance.sample(range(nodes), chance.randint(1, nodes)) if chance.random() < 0.4 else range(nodes)
            cores = chance.randint(0, 3) if with_cores else 0
            members.append(Member(cards=chance.choice((1, 1, 1, 2)), cores=cores, nodes=frozenset(allowed)))
        board = Board(
            sizes=sizes,
            cliques=tuple(chance.choice(("x", "x", "y", "y", "z", "")) for _ in range(nodes)),
            held=tuple(
                pod for node in range(nodes) for pod in on_node(chance, node, sizes[node], with_cores=with_cores)
            ),
            members=tuple(members),
            minimum=chance.choice((len(members), len(members), len(members), chance.randint(1, len(members)))),
            rule=chance.choice(RULES),
            budgets=chance.choice(((), (("a", chance.randint(0, 2)),), (("a", 0), ("b", 1)))),
        )
        if len(evictable(board)) <= MAX_VICTIMS and not fits(board, ()):
            yield board


def on_node(chance: random.Random, node: int, size: int, *, with_cores: bool) -> Iterator[Held]:
    minor, idle = 0, CORES
    while minor < size:
        number = min(size - minor, chance.choice((1, 1, 2)))
        if chance.random() < 0.85:
            cores = chance.randint(0, min(idle, 2)) if with_cores else 0
            yield Held(
                name=f"p{node}-{minor}",
                node=node,
                minors=tuple(range(minor, minor + number)),
                cores=cores,
                priority=PRIORITY if chance.random() < 0.1 else chance.choice(PRIORITIES),
                app=chance.choice(("", "a", "b")),
                started=chance.randint(0, 9),
            )
            idle -= cores
        minor += number


def fleet_of(board: Board) -> Fleet:
    made = Fleet()
    for number, (size, clique) in enumerate(zip(board.sizes, board.cliques, strict=True)):
        labels = {HOST: f"n{number}", **({CLIQUE: clique} if clique else {})}
        labels |= {f"m{at}": "yes" for at, member in enumerate(board.members) if number in member.nodes}
        add(made, node_info(f"n{number}", labels=labels, cpu=1000 * CORES), inventory(*cards(size)))
    for pod in board.held:
        whole = [grant(minor, core=100, ratio=100, memory=A100_BYTES) for minor in pod.minors]
        made.charge(
            charge(
                pod.name,
                *whole,
                node=f"n{pod.node}",
                priority=pod.priority,
                started=pod.started,
                resources=(("cpu", 1000 * pod.cores),),
                identity=Identity(namespace="ns", labels=(("app", pod.app),)),
            )
        )
    return made


def gang_of(board: Board) -> Gang:
    identity = Identity(namespace="ns", labels=(("app", "gang"),))
    peers = Peers(selector=select(app="gang"), namespaces=("ns",))
    affinity = {
        "one clique": Affinity(required_affinity=(Term(key=CLIQUE, peers=peers),)),
        "different nodes": Affinity(required_anti_affinity=(Term(key=HOST, peers=peers),)),
        "different cliques": Affinity(required_anti_affinity=(Term(key=CLIQUE, peers=peers),)),
    }.get(board.rule, NO_AFFINITY)

    def pod(number: int, member: Member) -> PendingPod:
        selector = {f"m{number}": "yes"} if len(member.nodes) < len(board.sizes) else {}
        amounts = {NVIDIA: member.cards, **({"cpu": 1000 * member.cores} if member.cores else {})}
        request = replace(asks(amounts, selector=selector), identity=identity, affinity=affinity)
        return waiting(f"m{number}", request, priority=PRIORITY, created=str(number))

    key = CLIQUE if board.rule == "the group's clique" else ""
    members = (pod(number, member) for number, member in enumerate(board.members))
    return gang(*members, minimum=board.minimum, topology_key=key)


def budgets_of(board: Board) -> Budgets:
    def selects(app: str) -> LabelSelector:
        return LabelSelector(requirements=(Requirement(key="app", values=(app,)),))

    return Budgets(
        {f"ns/{app}": Budget(namespace="ns", selector=selects(app), allowed=allowed) for app, allowed in board.budgets}
    )


def once_gone(made: Fleet, unit: Gang, found: GangPreemption) -> list[Placement] | Failure:
    """Decide the gang with its nominations once the victims are gone."""
    left = made.copy()
    for victim in found.victims:
        left.release(victim.uid)
    nodes = {nominee.uid: nominee.node for nominee in found.nominees}
    members = tuple(replace(member, nominated_node=nodes.get(member.uid, "")) for member in unit.members)
    return decide_gang(left, replace(unit, members=members), Policy())


def check(board: Board) -> None:
    """Check the victims that are found for the gang of a board, and that the Fleet is left unchanged."""
    made, unit, least = fleet_of(board), gang_of(board), cheapest(board)
    before = arrays(made)
    try:
        found = preempt_gang(made, unit, Policy(), budgets_of(board))
    except NoWorkError:
        # A decision tries all nodes for members that must be apart, even if there are too few cliques.
        assert least is None, board
        assert board.rule.startswith("different"), board
        return
    assert all((one == other).all() for one, other in zip(arrays(made), before, strict=True))
    assert (found is None) == (least is None), board
    if found is None:
        return
    assert isinstance(once_gone(made, unit, found), list), board
    uids = {victim.uid for victim in found.victims}
    victims = [pod for pod in board.held if f"uid-{pod.name}" in uids]
    for victim in victims:
        assert not fits(board, [other for other in victims if other is not victim]), (board, victim)
    assert cost_of(board, victims) == least, (board, victims)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_other_set_of_victims_costs_less(seed: int) -> None:
    for board in islice(drawn(seed), BOARDS):
        check(board)
