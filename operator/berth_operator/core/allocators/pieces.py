"""Cards that are given out in pieces, instances under MIG or slices of time: how many each has left, and which.

`Cards.users` counts who holds something of a card, and `used` how many of its pieces are held. So a card gives pieces
of one kind while the two are equal, and none while anybody holds it in another way.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from berth_api import mig
from berth_api.allocation import REPLICA_MARK, REPLICAS, Grant
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_operator.core.cards import Cards, Column, Indices, Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.policy import Policy
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows

_SCOPES: Final = {"Device": "on one GPU", "PCIe": "under one PCIe switch", "NUMANode": "on one NUMA node"}
"""Within what all pieces may have to be, the narrowest first."""
_LEVELS: Final = {"nvlink": "Device", "pcie": "PCIe", "numa": "NUMANode"}
"""What each topology comes to: no NVLink leads from one piece to another, but those of a card are together."""
_SHARED: Final = (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO)

Wanted = Sequence[tuple[Part, Column]]
"""Parts, and how many pieces for each every card has."""


# --- how many ---------------------------------------------------------------------------------------------------


def instances(cards: Cards) -> list[str]:
    """Give the resources of all MIG profiles that were ever seen."""
    return [name for name in cards.index if mig.is_resource(name)]


def offered(cards: Cards, names: Iterable[str], rows: Rows) -> Column:
    """Give how many pieces of these resources each card has."""
    return _summed(cards, cards.total, names, rows)


def held(cards: Cards, names: Iterable[str], rows: Rows) -> Column:
    """Give how many of them pods hold."""
    return _summed(cards, cards.used, names, rows)


def _summed(cards: Cards, column: Column, names: Iterable[str], rows: Rows) -> Column:
    found: Column = np.zeros_like(cards.present[rows], np.int64)
    for name in names:
        if name in cards.index:
            found += column[cards.index[name], rows]
    return found


def free_instances(cards: Cards, names: Iterable[str], rows: Rows) -> Column:
    """Give how many instances of these profiles each card can give now."""
    left = np.zeros_like(cards.present[rows], np.int64)
    for name in names:
        left += np.maximum(offered(cards, [name], rows) - held(cards, [name], rows), 0)
    alone = cards.users[rows] == held(cards, instances(cards), rows)
    return np.where(alone, left, 0)


def free_replicas(cards: Cards, rows: Rows) -> Column:
    """Give how many replicas each card can give now; each takes its part of the card's amounts."""
    there, taken = offered(cards, [REPLICAS], rows), held(cards, [REPLICAS], rows)
    left = np.maximum(there - taken, 0)
    for name in _SHARED:
        total, used = (column[cards.index[name], rows] for column in (cards.total, cards.used))
        # How many slices there are may change while pods hold some: those keep what they were given.
        left = np.minimum(left, np.maximum(total - used, 0) // np.maximum(total // np.maximum(there, 1), 1))
    alone = cards.healthy[rows] & (cards.users[rows] == taken)
    return np.where(alone, left, 0)


# --- together ---------------------------------------------------------------------------------------------------


def scope(request: PodRequest, part: Part) -> str:
    """Give within what all pieces must be; empty where that is left open."""
    topology = request.devices.topology
    asked = {part.scope, _LEVELS[topology.level] if topology is not None and topology.required else ""}
    return next((each for each in _SCOPES if each in asked), "")


def enough(fleet: Fleet, request: PodRequest, wanted: Wanted, rows: Rows) -> Mask:
    """Give the rows that have enough for all parts, within the scope that the pod asks for."""
    found = [together(fleet, request, part, column, rows) >= part.count for part, column in wanted]
    mask: Mask = np.logical_and.reduce(found).any(axis=1)
    return mask


def together(fleet: Fleet, request: PodRequest, part: Part, column: Column, rows: Rows) -> Column:
    """Give for each card how many pieces there are within one scope with it."""
    within = scope(request, part)
    if not within:
        return np.broadcast_to(column.sum(axis=1, keepdims=True), column.shape)
    groups = _groups(fleet.cards[part.type], within, rows)
    same = groups[:, :, np.newaxis] == groups[:, np.newaxis, :]
    found: Column = (same * column[:, np.newaxis, :]).sum(axis=2)
    return found


def _groups(cards: Cards, within: str, rows: Rows) -> Column:
    """Give for each card a number that those of its group have; one whose place nobody told is a group by itself."""
    alone = np.broadcast_to(-1 - np.arange(cards.minor.shape[1]), cards.minor[rows].shape)
    if within == "PCIe":
        return np.where(cards.pcie[rows] > 0, cards.pcie[rows], alone)
    if within == "NUMANode":
        return np.where(cards.numa[rows] >= 0, cards.numa[rows], alone)
    return alone


# --- which ------------------------------------------------------------------------------------------------------


def preferred(
    fleet: Fleet, row: int, request: PodRequest, wanted: Wanted, policy: Policy, *, near: Collection[int]
) -> Indices:
    """Give the slots of a row that may serve all parts together, the best first."""
    cards, rows = fleet.cards[GPU], np.array([row])
    [left] = fullness(cards, rows)
    # The last key sorts first.
    order: Indices = np.lexsort((cards.minor[row], left if policy.spreads_cards else -left, _far(cards, row, near)))
    within = scope(request, wanted[0][0])
    if not within:
        return order
    [groups] = _groups(cards, within, rows)
    found = [together(fleet, request, part, column, rows)[0] >= part.count for part, column in wanted]
    together_with = groups[order[np.logical_and.reduce(found)[order]][0]]
    within_it: Indices = order[groups[order] == together_with]
    return within_it


def _far(cards: Cards, row: int, near: Collection[int]) -> Mask:
    return ~np.isin(cards.pcie[row], tuple(near))


def fullness(cards: Cards, rows: Rows) -> Column:
    """Give the hundredths of each card's pieces that are in use."""
    names = [*instances(cards), REPLICAS]
    used = np.minimum(held(cards, names, rows), there := offered(cards, names, rows))
    return CARD * used // np.maximum(there, 1)


def unused(cards: Cards, free: Column, rows: Rows) -> Column:
    """Give the hundredths of each card's pieces that are left after one of the free ones; all where none is free."""
    names = [*instances(cards), REPLICAS]
    there, used = offered(cards, names, rows), held(cards, names, rows)
    after = np.minimum(CARD * (used + 1) // np.maximum(there, 1), CARD)
    return CARD - np.where(free > 0, after, 0)


def in_turns(free: Column, count: int) -> list[int]:
    """Give so many places, each as often as it has something free: all of them once, then all once more."""
    turns = [(turn, place) for place, number in enumerate(free.tolist()) for turn in range(min(number, count))]
    return [place for _, place in sorted(turns)[:count]]


def instances_of(cards: Cards, row: int, slot: int, count: int, names: Collection[str]) -> Iterator[Grant]:
    """Give free instances of these profiles, in the order of the Device."""
    minor, taken = int(cards.minor[row, slot]), cards.taken.get(row, ())
    there = cards.instances.get(row, {}).get(minor, ())
    free = ((uuid, name) for uuid, name in there if name in names and uuid not in taken)
    for uuid, name in islice(free, count):
        yield Grant(type=cards.kind, minor=minor, amounts=((name, 1),), id=uuid)


def replicas_of(cards: Cards, row: int, slot: int, count: int) -> Iterator[Grant]:
    """Give the free replicas of a card with the lowest numbers."""
    minor, taken = int(cards.minor[row, slot]), cards.taken.get(row, ())
    there = int(cards.total[cards.index[REPLICAS], row, slot])
    amounts = [(name, int(cards.total[cards.index[name], row, slot]) // there) for name in _SHARED]
    ids = (f"{cards.ids[row][minor]}{REPLICA_MARK}{number}" for number in range(there))
    for each in islice((each for each in ids if each not in taken), count):
        yield Grant(type=cards.kind, minor=minor, amounts=(*amounts, (REPLICAS, 1)), id=each)


# --- why not ----------------------------------------------------------------------------------------------------


def reasons(
    fleet: Fleet, request: PodRequest, wanted: Wanted, there: Column, name: str, *, rejected: Mask
) -> Iterator[tuple[str, Mask]]:
    """Give what may be missing of the first part, or of all of them together, and the rows where it is.

    `there` are the pieces that accepted cards have, held or not; `name` is what users call them.
    """
    part, free = wanted[0]
    every = slice(None)
    yield f"fewer than {part.count} {name}", there.sum(axis=1) < part.count
    yield "GPU devices held by pods whose allocation is unknown", fleet.cards[part.type].unknown > 0
    best = int(together(fleet, request, part, free, every)[rejected].max(initial=0))
    within = _SCOPES.get(scope(request, part), "")
    told = f"{part.count} wanted{within and ' ' + within}, at most {best} free"
    yield f"insufficient free {name} ({told})", ~enough(fleet, request, wanted[:1], every)
    if within:
        yield f"not all that is asked is free {within}", ~enough(fleet, request, wanted, every)
