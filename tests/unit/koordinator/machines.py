"""Machines as agents report them, and a reference that compares every set of their cards."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from berth_api.links import DIRECT as NVLINK
from berth_api.links import SCORES as LINKS
from berth_api.links import score
from berth_operator.core.values.inventory import CardInfo
from tests.objects.builders import card

SWITCH, NODE, SYSTEM = LINKS["SingleSwitch"], LINKS["SameNUMANode"], LINKS["System"]

Ways = Mapping[frozenset[int], int]
"""Two minors -> score of the link between them."""

CUBE: Final[Ways] = {
    frozenset((a, b)): count * NVLINK
    for a, b, count in (
        *((0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2)),
        *((2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2)),
    )
}
"""NVLinks of a DGX-1 with V100, a hybrid cube mesh."""


def wired(ways: Ways, count: int, **fields: Any) -> tuple[CardInfo, ...]:
    """Return cards with these links, two per switch and half of them on each NUMA node."""
    return tuple(
        card(
            minor,
            links=tuple((other, ways[pair]) for other in range(count) if (pair := frozenset((minor, other))) in ways),
            pcie=f"switch-{minor // 2}",
            numa=2 * minor // count,
            **fields,
        )
        for minor in range(count)
    )


def nvswitch(count: int = 8, **fields: Any) -> tuple[CardInfo, ...]:
    """Return cards that are all connected by an NVSwitch."""
    return wired({frozenset(pair): 18 * NVLINK for pair in combinations(range(count), 2)}, count, **fields)


def dgx1(**fields: Any) -> tuple[CardInfo, ...]:
    """Return a DGX-1: NVLinks where it has them, else links over PCIe."""
    pairs = map(frozenset, combinations(range(8), 2))
    ways = {pair: CUBE.get(pair, NODE if len({minor // 4 for minor in pair}) == 1 else SYSTEM) for pair in pairs}
    return wired(ways, 8, **fields)


def trees(*sizes: int, links: bool = False) -> tuple[CardInfo, ...]:
    """Return PCIe switches with this many cards each, two switches per NUMA node; `links` lists their connections."""
    switches = [switch for switch, size in enumerate(sizes) for _ in range(size)]
    places = {minor: (switch, switch // 2) for minor, switch in enumerate(switches)}
    return tuple(
        card(
            minor,
            pcie=f"switch-{switch}",
            numa=numa,
            links=tuple((other, _over_pcie(places[minor], places[other])) for other in places if other != minor)
            if links
            else (),
        )
        for minor, (switch, numa) in places.items()
    )


def _over_pcie(one: tuple[int, int], other: tuple[int, int]) -> int:
    if one == other:
        return SWITCH
    return NODE if one[1] == other[1] else SYSTEM


# --- the patient reader -----------------------------------------------------------------------------------------


def way(one: CardInfo, other: CardInfo) -> int:
    """Return the score of the link between two cards, as either reports it."""
    ends = ((one, other.minor), (other, one.minor))
    return max((score(kind, count) for card, end in ends for to, kind, count in card.links if to == end), default=0)


def inside(cards: Iterable[CardInfo]) -> int:
    """Return the sum of the link scores of all pairs of cards."""
    return sum(way(one, other) for one, other in combinations(tuple(cards), 2))


def related(one: CardInfo, other: CardInfo, needs: Iterable[str]) -> bool:
    """Return whether two cards have something in common: nvlink, pcie, numa or device."""
    common = {
        "nvlink": way(one, other) >= NVLINK,
        "pcie": bool(one.pcie) and one.pcie == other.pcie,
        "numa": one.numa >= 0 and one.numa == other.numa,
        "device": False,
    }
    return all(common[each] for each in needs)


def sets_that_will_do(cards: Sequence[CardInfo], count: int, needs: Iterable[str]) -> list[tuple[CardInfo, ...]]:
    """Return all sets in which any two cards have what is required in common."""
    wanted = tuple(needs)
    return [
        each
        for each in combinations(cards, count)
        if all(related(one, other, wanted) for one, other in combinations(each, 2))
    ]


def best_connected(
    cards: Sequence[CardInfo], free: Iterable[int], count: int, needs: Iterable[str] = ()
) -> set[tuple[int, ...]]:
    """Return the minors of the best connected sets; of these, the ones that leave the best connected cards idle."""
    able = [each for each in cards if each.minor in set(free)]
    sets = sets_that_will_do(able, count, needs)

    def rating(chosen: tuple[CardInfo, ...]) -> tuple[int, int]:
        return inside(chosen), inside(each for each in able if each not in chosen)

    best = max(map(rating, sets), default=None)
    return {tuple(each.minor for each in chosen) for chosen in sets if rating(chosen) == best}
