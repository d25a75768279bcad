"""What any two cards of a part must have in common: a NUMA node, a PCIe switch, an NVLink between them.

Cards that have it lie in groups: any so many cards of one group will do. So whether a node has enough of them is a
question of counting, asked of all nodes side by side, whatever the sizes of their groups.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.request import GpuTopology, Part
from berth_operator.core.fleet.cards import NVLINK, Column, Mask
from berth_operator.core.fleet.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.intern_table import Wiring
from berth_operator.core.values.request import PodRequest

LinkScores = npt.NDArray[np.float64]

MOST_CLIQUES: Final = 1024
"""Groups of cards with NVLinks among all of them that are looked at on one node; machines have a handful."""
UNKNOWN_PLACE: Final = {"numa": -1, "pcie": 0}
"""Column of cards -> what it holds where nobody tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """What any two cards of a part must have in common; nothing, of a part with one card."""

    places: tuple[str, ...] = ()
    """Columns of cards: each must hold the same, and be known."""
    linked: bool = False
    """Whether there must be NVLinks between them."""
    alone: bool = False
    """No two cards will do: all must be a single one."""

    def __bool__(self) -> bool:
        return bool(self.places) or self.linked or self.alone

    def __str__(self) -> str:
        """Name it in words for users: `too few free GPUs …`."""
        words = {"pcie": "under one PCIe switch", "numa": "on one NUMA node"}
        phrases = [words[each] for each in self.places]
        phrases += ["with NVLinks among all of them"] if self.linked else []
        return " ".join(["in one device"] if self.alone else phrases)


ANYWHERE: Final = Locality()


def required(request: PodRequest, part: Part) -> Locality:
    """Return what a part of a request cannot do without."""
    topology = request.devices.topology
    return of(part, topology if topology is None or topology.required else None)


def preferred(request: PodRequest, part: Part) -> tuple[Locality, ...]:
    """Return what a part asks for, with what is only preferred and, if that changes anything, without."""
    return tuple(dict.fromkeys((of(part, request.devices.topology), required(request, part))))


@lru_cache(maxsize=1024)
def of(part: Part, topology: GpuTopology | None) -> Locality:
    """Return what a part asks for, by the scope of its hint and by the pod's topology."""
    if part.count == 1 and not part.every:
        return ANYWHERE
    level = topology.level if topology else ""
    places = {
        "pcie": part.scope == "PCIe" or level == "pcie",
        "numa": part.scope == "NUMANode" or level == "numa",
    }
    return Locality(
        places=tuple(name for name, required in places.items() if required),
        linked=level == "nvlink",
        alone=part.scope == "Device",
    )


def max_colocated(fleet: Fleet, kind: str, within: Locality, among: Mask, rows: Rows) -> Column:
    """Return for each row the most of some cards that lie in one group; `among` has a line for each of these rows."""
    cards = fleet.cards[kind]
    single: Column = np.minimum(among.sum(axis=1), 1)
    if within.alone:
        return single
    places = [(getattr(cards, name)[rows], UNKNOWN_PLACE[name]) for name in within.places]
    if not within.linked:
        return _max_in_one_place(places, among)
    wiring, largest = cards.wiring[rows], single
    for number in np.unique(wiring):
        rows_here = np.flatnonzero(wiring == number)
        local = [(column[rows_here], unknown) for column, unknown in places]
        for clique in cliques(fleet.intern_table.wirings[number], among.shape[1]):
            largest[rows_here] = np.maximum(largest[rows_here], _max_in_one_place(local, among[rows_here] & clique))
    return largest


def _max_in_one_place(places: list[tuple[Column, int]], among: Mask) -> Column:
    """Return for each row how many of some cards have the same in all places, at most."""
    largest: Column = among.sum(axis=1)
    if not places:
        return largest
    # A card whose place is not known is alone in its group.
    largest = np.minimum(largest, 1)
    for slot in np.flatnonzero(among.any(axis=0)):
        same = among & among[:, [slot]]
        for column, unknown in places:
            same &= (column == column[:, [slot]]) & (column != unknown)
        largest = np.maximum(largest, same.sum(axis=1))
    return largest


def shortage(
    fleet: Fleet, part: Part, within: Locality, among: Mask, rejected: Mask, *, state: str
) -> tuple[str, Mask]:
    """Return the reason that too few of some cards lie in one group, and the rows where it is so."""
    at_most = max_colocated(fleet, part.type, within, among, ALL)
    few = at_most < part.count
    most_of_all = at_most[few & rejected].max(initial=0)
    return f"node(s) have too few {state} {part.type.upper()}s {within} (at most {most_of_all} of {part.count})", few


def pairs(within: Locality, places: Mapping[str, Sequence[int]], scores: LinkScores) -> Mask:
    """Tell for any two of some cards whether they have what they must have in common: shape (cards, cards).

    `places` tell by column where each card is, and `ways` how good the way between two is.
    """
    same = np.eye(len(scores), dtype=np.bool_)
    if within.alone:
        return same
    mask = scores >= NVLINK if within.linked else np.ones_like(same)
    for name in within.places:
        column = np.array(places[name])
        mask &= (column[:, np.newaxis] == column) & (column != UNKNOWN_PLACE[name])
    allowed: Mask = mask | same
    return allowed


@lru_cache(maxsize=1024)
def link_scores(wiring: Wiring, slots: int) -> LinkScores:
    """Return how good the way between any two slots is, by whichever of the two tells of it; 0 where neither does."""
    scores = np.zeros((slots, slots))
    slot_of = {minor: slot for slot, minor, _ in wiring}
    for slot, _, links in wiring:
        for minor, strength in links:
            if (other := slot_of.get(minor, slot)) != slot:
                scores[slot, other] = scores[other, slot] = max(strength, scores[slot, other])
    scores.flags.writeable = False
    return scores


@lru_cache(maxsize=1024)
def cliques(wiring: Wiring, slots: int) -> Mask:
    """Return the maximal groups of several slots with NVLinks among all of them: shape (groups, slots)."""
    linked = link_scores(wiring, slots) >= NVLINK
    near = [sum(1 << int(other) for other in np.flatnonzero(line)) for line in linked]
    groups = [each for each in _maximal(0, (1 << slots) - 1, 0, near, [MOST_CLIQUES]) if each.bit_count() > 1]
    return np.array([[each >> slot & 1 for slot in range(slots)] for each in groups], np.bool_).reshape(-1, slots)


def _maximal(chosen: int, left: int, done: int, near: list[int], budget: list[int]) -> Iterator[int]:
    """Return all maximal cliques with what is chosen, more of what is left and nothing that is done, as bit masks.

    This is Bron and Kerbosch's way, with a pivot. `near` tells who is linked with whom, `budget` how many may follow.
    """
    if not left and not done:
        budget[0] -= 1
        yield chosen
        return
    pivot = max(_bits(left | done), key=lambda each: (near[each] & left).bit_count())
    for slot in _bits(left & ~near[pivot]):
        if not budget[0]:
            return
        yield from _maximal(chosen | 1 << slot, left & near[slot], done & near[slot], near, budget)
        left &= ~(1 << slot)
        done |= 1 << slot


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
