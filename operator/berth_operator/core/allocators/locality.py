"""Locality: what any two cards of a part must have in common, for example the model, a NUMA node or a direct link.

Locality divides a node's cards into groups, and any cards of one group can be combined. So it is enough to count the
cards in each group, and array expressions do this for all nodes at once.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api import links, names
from berth_api.names import GPU
from berth_api.request import GpuTopology, Part
from berth_api.values.caching import sized_cache
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, pick
from berth_operator.core.fleet.arrays.columns import sealed
from berth_operator.core.fleet.arrays.intern_table import Wiring
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.values.request import PodRequest

LinkScores = npt.NDArray[np.float64]

MAX_CLIQUES: Final = 256
"""Maximum number of cliques of linked cards that are computed for one node; real machines have a few."""
MAX_CLIQUE_STEPS: Final = 2**16
"""Maximum number of cards that are looked at to find them, about 30 ms; 16 cards take some hundred."""
MAX_CLIQUES_ONE_BY_ONE: Final = 8
"""Up to this number of cliques, each is counted on all rows at once; more are counted row by row."""
UNKNOWN_PLACE: Final = {"model": -1, "kind": -1, "numa": -1, "pcie": 0}
"""Column of cards -> the value for a card with an unknown place. Models and kinds are always known."""
ALIKE: Final = ("model",)
"""What the cards of a pod have in common unless the pod accepts mixed cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """What any two cards of a part must have in common; false if they need nothing in common."""

    places: tuple[str, ...] = ()
    """Columns of cards that must have equal, known values."""
    link: str = ""
    """The type of the direct links that must be between them."""
    alone: bool = False
    """Whether everything must be on a single card."""

    def __bool__(self) -> bool:
        return bool(self.places or self.link or self.alone)

    def __str__(self) -> str:
        """Return the words for a reason: `too few free GPUs …`."""
        words = {
            "model": "of one model and kind" if "kind" in self.places else "of one model",
            "pcie": "under one PCIe switch",
            "numa": "on one NUMA node",
        }
        phrases = [words[place] for place in self.places if place in words]
        phrases += [f"with {links.DIRECT_LINKS[self.link]} among all of them"] if self.link else []
        return " ".join(["in one device"] if self.alone else phrases)


ANYWHERE: Final = Locality()


def required(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> Locality:
    """Return the locality that a part requires on these rows."""
    topology = request.devices.topology
    return of(part, topology if topology is None or topology.required else None, _alike(fleet, request, part, rows))


def preferred(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> tuple[Locality, ...]:
    """Return the localities to try in order: first with preferences, then, if it differs, only with requirements."""
    alike = _alike(fleet, request, part, rows)
    return tuple(dict.fromkeys((of(part, request.devices.topology, alike), required(fleet, request, part, rows))))


def _alike(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> tuple[str, ...]:
    """Return what GPUs must have in common to be alike; nothing if the cards of each node are alike anyway."""
    if part.count == 1 or part.type != GPU or request.devices.mixed:
        return ()
    return ALIKE if pick(fleet.cards[GPU].mixed, rows).any() else ()


@sized_cache(2**22)
def of(part: Part, topology: GpuTopology | None, alike: tuple[str, ...] = ()) -> Locality:
    """Return the locality that a part's hint (`scope`) and the pod's topology request, with what makes cards alike."""
    if part.count == 1 and not part.every:
        return ANYWHERE
    level = topology.level if topology else ""
    places = {
        "pcie": part.scope == "PCIe" or level == "pcie",
        "numa": part.scope == "NUMANode" or level == "numa",
    }
    return Locality(
        places=(*alike, *(name for name, required in places.items() if required)),
        link=topology.link if topology else "",
        alone=part.scope == "Device",
    )


def max_colocated(fleet: Fleet, device_type: str, within: Locality, among: Mask, rows: Rows) -> Column:
    """Return, for each row, the largest number of the cards in `among` that are in one group.

    `among` has one line for each of the rows: shape (rows, slots).
    """
    cards = fleet.cards[device_type]
    one_card: Column = np.minimum(among.sum(axis=1), 1)
    if within.alone:
        return one_card
    places = [(getattr(cards, name)[rows], UNKNOWN_PLACE[name]) for name in within.places]
    if not within.link:
        return _max_in_one_place(places, among)
    wiring, largest = cards.wiring[rows], one_card
    for number in np.unique(wiring):
        rows_here = np.flatnonzero(wiring == number)
        local = [(column[rows_here], unknown) for column, unknown in places]
        groups = cliques(fleet.intern_table.wirings[number], among.shape[1], within.link)
        if len(groups):
            largest[rows_here] = np.maximum(largest[rows_here], _max_in_one_clique(local, among[rows_here], groups))
    return largest


def _max_in_one_clique(places: list[tuple[Column, int]], among: Mask, groups: Mask) -> Column:
    """Return, for each row, the largest number of the cards in `among` in one of the cliques and in one place."""
    if not places:
        largest: Column = _counts(among, groups).max(axis=1)
        return largest
    if len(groups) <= MAX_CLIQUES_ONE_BY_ONE:
        most: Column = np.stack([_max_in_one_place(places, among & clique) for clique in groups]).max(axis=0)
        return most
    # Row by row, each by one product of two matrices.
    of_rows = np.zeros(len(among), np.int64)
    for row, line in enumerate(among):
        known = line & np.logical_and.reduce([column[row] != unknown for column, unknown in places])
        _, place = np.unique(np.stack([column[row] for column, _ in places]), axis=1, return_inverse=True)
        in_place: Mask = place.reshape(-1) == np.arange(place.max(initial=0) + 1)[:, np.newaxis]
        of_rows[row] = max(int(line.any()), int(_counts(groups & known, in_place).max(initial=0)))
    return of_rows


def _counts(sets: Mask, groups: Mask) -> Column:
    """Return how many cards of each set are in each group: shape (sets, groups)."""
    counts: Column = (sets.astype(np.float32) @ groups.T.astype(np.float32)).astype(np.int64)
    return counts


def _max_in_one_place(places: list[tuple[Column, int]], among: Mask) -> Column:
    """Return, for each row, the largest number of the cards in `among` with equal, known values in all places."""
    largest: Column = among.sum(axis=1)
    if not places:
        return largest
    # A card whose place is not known is alone in its group.
    largest = np.minimum(largest, 1)
    for slot in np.flatnonzero(among.any(axis=0)):
        # A single node may have many more cards than all others, so most slots are empty on most rows.
        here = np.flatnonzero(among[:, slot])
        same = among[here]
        for column, unknown in places:
            own = column[here]
            same &= (own == own[:, [slot]]) & (own != unknown)
        largest[here] = np.maximum(largest[here], same.sum(axis=1))
    return largest


def shortage(
    fleet: Fleet, part: Part, within: Locality, among: Mask, rejected: Mask, *, state: str
) -> tuple[str, Mask]:
    """Return the reason that too few of the cards in `among` are in one group, and the rows it is true for."""
    max_in_group = max_colocated(fleet, part.type, within, among, ALL)
    too_few = max_in_group < part.count
    best = max_in_group[too_few & rejected].max(initial=0)
    details = f"at most {best} of {part.count}{_other_links(fleet, part, within, too_few & rejected)}"
    return f"node(s) have too few {state} {part.type.upper()}s {within} ({details})", too_few


def _other_links(fleet: Fleet, part: Part, within: Locality, rows: Mask) -> str:
    """Return which direct links the rows have instead of the required type, and how to require them."""
    wirings = np.unique(fleet.cards[part.type].wiring[rows]).tolist() if within.link else ()
    types = {
        link_type
        for number in wirings
        for _, _, of_card in fleet.intern_table.wirings[number]
        for _, link_type, _ in of_card
        if links.is_direct(link_type)
    }
    if not types or within.link in types:
        return ""
    first = min(types)
    return f"; their links are {links.DIRECT_LINKS[first]}: annotation {names.GPU_TOPOLOGY}: {first.lower()}"


def pairs(within: Locality, places: Mapping[str, Sequence[int]], linked: Mask) -> Mask:
    """Return whether any two of some cards can be combined: shape (cards, cards).

    `places` has each card's place by column, and `linked` whether any two cards have the required direct links.
    """
    same = np.eye(len(linked), dtype=np.bool_)
    if within.alone:
        return same
    mask = linked.copy() if within.link else np.ones_like(same)
    for name in within.places:
        column = np.array(places[name])
        mask &= (column[:, np.newaxis] == column) & (column != UNKNOWN_PLACE[name])
    allowed: Mask = mask | same
    return allowed


@sized_cache(2**24)
def link_scores(wiring: Wiring, slots: int, only: str = "") -> LinkScores:
    """Return the score of the link between any two slots, as either card reports it; 0 if no card reports it.

    With `only`, links of other types are left out.
    """
    scores = np.zeros((slots, slots))
    slot_of = {minor: slot for slot, minor, _ in wiring}
    ends = [
        (slot, slot_of.get(minor, slot), links.score(link_type, count))
        for slot, _, of_card in wiring
        for minor, link_type, count in of_card
        if link_type == (only or link_type)
    ]
    own, other, strengths = np.array(ends).reshape(-1, 3).T
    np.maximum.at(scores, (own.astype(np.intp), other.astype(np.intp)), strengths)
    np.fill_diagonal(scores, 0.0)
    return sealed(np.maximum(scores, scores.T))


@sized_cache(2**24)
def cliques(wiring: Wiring, slots: int, link: str) -> Mask:
    """Return the maximal groups of two or more slots with direct links of a type between all of them.

    The shape is (groups, slots).

    If a node has more groups than can be computed, the first groups are returned.
    """
    linked = link_scores(wiring, slots, link) > 0
    near = [sum(1 << int(other) for other in np.flatnonzero(line)) for line in linked]
    linked_slots = sum(1 << slot for slot, others in enumerate(near) if others)
    groups = list(islice(_maximal(0, linked_slots, 0, near, [MAX_CLIQUE_STEPS]), MAX_CLIQUES))
    return np.array([[group >> slot & 1 for slot in range(slots)] for group in groups], np.bool_).reshape(-1, slots)


def _maximal(chosen: int, left: int, done: int, near: list[int], budget: list[int]) -> Iterator[int]:
    """Yield, as bit masks, the maximal cliques that contain `chosen`, some of `left` and nothing of `done`.

    This is the Bron-Kerbosch algorithm with pivoting. `near` has the linked slots of each slot as a bit mask, and
    `budget` the number of slots that may still be looked at.
    """
    if not left and not done:
        if chosen:
            yield chosen
        return
    budget[0] -= (left | done).bit_count()
    pivot = max(_bits(left | done), key=lambda slot: (near[slot] & left).bit_count())
    for slot in _bits(left & ~near[pivot]):
        if budget[0] <= 0:
            return
        yield from _maximal(chosen | 1 << slot, left & near[slot], done & near[slot], near, budget)
        left &= ~(1 << slot)
        done |= 1 << slot


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
