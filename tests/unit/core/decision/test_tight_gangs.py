"""Gangs that need almost all free cards: none waits that fits, whatever the order of its members' creation.

The judge tries all sets of cards for all members, in code of its own.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from typing import Final, NamedTuple

import pytest

from berth_api import names
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import MAX_SEARCHED, NOT_FINISHED, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.inventory import CardInfo
from berth_operator.core.values.request import PodRequest
from tests.objects.builders import CORE, NVIDIA, RATIO, asks, card, charge, fleet, gang, grant, waiting

NVLINK: Final = 500
SEEDS: Final = range(60)


class Board(NamedTuple):
    """How the cards of a node are connected."""

    numa: Sequence[int]
    pcie: Sequence[int]
    linked: frozenset[frozenset[int]]


def pairs(*listed: tuple[int, int]) -> frozenset[frozenset[int]]:
    return frozenset(map(frozenset, listed))


BOARDS: Final = {
    "A100": Board([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3], pairs(*combinations(range(8), 2))),
    "A6000": Board([0] * 4 + [1] * 4, list(range(8)), pairs((0, 1))),
    "V100": Board(
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 1, 1, 2, 2, 3, 3],
        pairs(*combinations(range(4), 2), *combinations(range(4, 8), 2), (0, 4), (1, 5), (2, 6), (3, 7)),
    ),
}
Ask = tuple[int, str]
"""Cards of a member, and the level of the topology that it requires; empty if any cards do."""


def cards(board: Board) -> list[CardInfo]:
    return [
        card(
            minor,
            numa=board.numa[minor],
            pcie=f"p{board.pcie[minor]}",
            links=tuple((other, NVLINK) for other in range(8) if frozenset((minor, other)) in board.linked),
        )
        for minor in range(8)
    ]


def made(boards: Mapping[str, tuple[str, Sequence[int]]]) -> Fleet:
    """Return a fleet of nodes, each with a board and its free cards."""
    built = fleet({node: cards(BOARDS[board]) for node, (board, _) in boards.items()})
    for node, (_, free) in boards.items():
        for minor in set(range(8)) - set(free):
            built.charge(charge(f"{node}-{minor}", grant(minor, core=100, ratio=100, memory=0), node=node))
    return built


def is_allowed(board: Board, chosen: Sequence[int], level: str) -> bool:
    match level:
        case "numa":
            return len({board.numa[minor] for minor in chosen}) == 1
        case "pcie":
            return len({board.pcie[minor] for minor in chosen}) == 1
        case "nvlink":
            return all(frozenset(pair) in board.linked for pair in combinations(chosen, 2))
    return True


def fits(free: Mapping[str, tuple[str, frozenset[int]]], members: Sequence[Ask]) -> bool:
    """Return whether all members get cards: every set on every node is tried."""
    if not members:
        return True
    (count, level), *rest = members
    for node, (board, minors) in free.items():
        for chosen in combinations(sorted(minors), count):
            if is_allowed(BOARDS[board], chosen, level if count > 1 else ""):
                left = {**free, node: (board, minors - set(chosen))}
                if fits(left, rest):
                    return True
    return False


def asked(member: Ask, name: str) -> PodRequest:
    count, level = member
    hints = {names.GPU_TOPOLOGY: level} if level else {}
    amounts = {NVIDIA: count} if name == NVIDIA else {"kubernetes.io/gpu": 100 * count}
    return asks(amounts, annotations=hints)


def decided(of: Fleet, members: Sequence[Ask], name: str = NVIDIA) -> list[Placement] | Failure:
    pods = [
        waiting(f"m{number}", asked(member, name), created=f"{number}", arrived=number)
        for number, member in enumerate(members)
    ]
    return decide_gang(of, gang(*pods), Policy())


def check(boards: Mapping[str, tuple[str, Sequence[int]]], members: Sequence[Ask], outcome: object) -> None:
    """Check that no card is given twice, and that each member's cards are connected as it requires."""
    assert isinstance(outcome, list)
    taken: set[tuple[str, int]] = set()
    for placement in outcome:
        count, level = members[int(placement.pod.name[1:])]
        minors = [each.minor for each in placement.grants]
        board, free = boards[placement.node]
        own = {(placement.node, minor) for minor in minors}
        assert len(own) == count
        assert set(minors) <= set(free)
        assert own.isdisjoint(taken)
        assert is_allowed(BOARDS[board], minors, level if count > 1 else "")
        taken |= own


@pytest.mark.parametrize(
    ("board", "free", "members"),
    [
        pytest.param("A100", (2, 3, 5, 6), ((2, "numa"), (2, "pcie")), id="one switch and one NUMA node"),
        pytest.param("A6000", (0, 1, 2, 3, 4, 5), ((4, ""), (2, "nvlink")), id="the only bridge"),
        pytest.param("V100", (0, 1, 4, 6), ((2, "nvlink"), (2, "nvlink")), id="two pairs of a mesh"),
    ],
)
@pytest.mark.parametrize("name", [NVIDIA, "kubernetes.io/gpu"])
def test_what_fits_is_placed_in_any_order_of_creation(
    board: str, free: Sequence[int], members: Sequence[Ask], name: str
) -> None:
    boards = {"a": (board, free)}
    for ordered in permutations(members):
        check(boards, ordered, decided(made(boards), ordered, name))


def drawn(seed: int) -> Iterator[tuple[dict[str, tuple[str, list[int]]], list[Ask]]]:
    """Yield a tight gang: its members need nearly all free cards of one or two boards."""
    chance = random.Random(seed)
    boards = {
        node: (chance.choice(list(BOARDS)), sorted(chance.sample(range(8), chance.randint(3, 8))))
        for node in ("a", "b")[: chance.randint(1, 2)]
    }
    left = sum(len(free) for _, free in boards.values())
    members: list[Ask] = []
    while left > 0 and len(members) < 4:
        count = min(left, chance.randint(1, 4))
        members.append((count, chance.choice(("", "numa", "pcie", "nvlink"))))
        left -= count
    yield boards, members


@pytest.mark.parametrize("seed", SEEDS)
def test_no_tight_gang_waits_that_fits(seed: int) -> None:
    for boards, members in drawn(seed):
        expected = fits({node: (board, frozenset(free)) for node, (board, free) in boards.items()}, members)
        of = made(boards)
        for ordered in permutations(members):
            outcome = decided(of, ordered)
            if expected:
                check(boards, ordered, outcome)
            else:
                assert isinstance(outcome, Failure)
                assert NOT_FINISHED not in outcome.message


def test_shares_of_cards_are_searched_too() -> None:
    """Two members with 70 and two with 30 hundredths of two cards."""
    of = fleet({"a": [card(0), card(1)]})
    sizes = (30, 30, 70, 70)
    for ordered in set(permutations(sizes)):
        pods = [waiting(f"m{n}", {CORE: size, RATIO: size}, arrived=n) for n, size in enumerate(ordered)]
        outcome = decide_gang(of, gang(*pods), Policy())
        assert isinstance(outcome, list)
        assert len(outcome) == len(sizes)


@pytest.mark.parametrize(("members", "fits"), [(MAX_SEARCHED, True), (MAX_SEARCHED + 1, False)])
def test_the_search_is_for_gangs_of_a_bounded_size(members: int, *, fits: bool) -> None:
    """The members of the first case above, and others that fill further nodes."""
    full = {f"n{number}": ("A100", range(8)) for number in range(members - 2)}
    of = made({"tight": ("A100", (2, 3, 5, 6)), **full})
    outcome = decided(of, [(2, "numa"), (2, "pcie"), *[(8, "")] * (members - 2)])
    assert isinstance(outcome, list) == fits
    assert isinstance(outcome, list) or outcome.message.endswith(NOT_FINISHED)
