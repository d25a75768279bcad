"""The best set of a node's cards for a part.

The sets that meet the required locality (`locality`) are compared by these rules. Each rule breaks the ties of the
rules before it:

1. the most cards on PCIe switches near the pod's devices of other types
2. the highest sum of link scores over all pairs of cards: each direct link counts, including one through an NVSwitch
3. the lowest cost by the policy's strategy
4. the lowest measured load, if the policy considers it (score `genius`)
5. the fewest switches, if each of them must give cards of other types too
6. the highest sum of link scores between the cards that stay idle, so that the next pods are connected well too
7. the smallest scope that contains the set: one switch, then one NUMA node
8. a scope that is in use already; if the policy spreads, an idle one
9. the lowest minors

So the strategy chooses the card for a share, because a single card has no links to score. The links choose whole cards,
because these all cost the same. If the Device reports no links, the scopes decide.

If there are at most MAX_SETS sets, all are compared. This covers every set of 16 cards. Otherwise sets are grown from
each of the first SEEDS cards of a group. Each step adds the card with the best links to the set. If a node has so many
cards or groups that this would take too long, fewer sets are compared (MAX_PRODUCTS), and the best of them is taken.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from math import comb
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.request import Part
from berth_api.values.caching import sized_cache
from berth_operator.core.allocators import locality
from berth_operator.core.allocators.locality import ANYWHERE, LinkScores, Locality
from berth_operator.core.fleet.arrays.intern_table import Wiring
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask

MAX_SETS: Final = 20_000
SEEDS: Final = 32
MAX_PRODUCTS: Final = 2**24
"""Maximum number of multiplications of two numbers to compare sets, about 10 ms: sets times cards squared."""
MAX_STEPS: Final = 2**23
"""Maximum number of cards that are looked at to grow sets, about 30 ms: sets times cards times the cards of a set."""
CACHE_BYTES: Final = 2**24
"""Bytes of each cache, of `best` and of `ranked`; nodes with equal cards in equal use share an entry."""
_NEAR_WEIGHT: Final = 1e13
_LINK_WEIGHT: Final = 1e5
"""When a set is grown: the weights of a near card and of a link score, relative to the cost of a card."""

Ratings = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """The cards of other types that a set of cards needs under its own switches."""

    counts: tuple[int, ...]
    """Number of cards of each other type."""
    under: tuple[tuple[int, tuple[int, ...]], ...]
    """(switch, number of cards of each other type) of the switches that have all types."""
    max_switches: int
    """Maximum number of switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A node's cards of one type, by minor, and the part's constraints; each tuple has one value per card."""

    count: int
    within: Locality = ANYWHERE
    spread: bool = False
    """Whether idle scopes are preferred to scopes in use."""
    wiring: Wiring
    width: int
    """Slots of a node."""
    slots: tuple[int, ...]
    fits: tuple[bool, ...]
    costs: tuple[int, ...]
    near: tuple[bool, ...]
    idle: tuple[bool, ...]
    """Healthy and without pods."""
    used: tuple[bool, ...]
    numa: tuple[int, ...]
    pcie: tuple[int, ...]
    model: tuple[int, ...] = ()
    """Empty on nodes whose cards are alike."""
    loads: tuple[int, ...] = ()
    """Empty if loads are not considered."""
    companions: Companions | None = None

    @property
    def link_scores(self) -> LinkScores:
        """Return the score of the link between any two cards: shape (cards, cards)."""
        return self._scores("")

    @property
    def pairs(self) -> Mask:
        """Return whether any two cards may be in one set: shape (cards, cards)."""
        places = {"model": self.model, "numa": self.numa, "pcie": self.pcie}
        return locality.pairs(self.within, places, self._scores(self.within.link) > 0)

    def _scores(self, only: str) -> LinkScores:
        slots = np.array(self.slots)
        scores: LinkScores = locality.link_scores(self.wiring, self.width, only)[np.ix_(slots, slots)]
        return scores


def has_topology(fleet: Fleet, device_type: str, row: int) -> bool:
    """Return whether the place or the links of any card of a row are known."""
    cards = fleet.cards[device_type]
    return bool(cards.wiring[row] or cards.pcie[row].any() or (cards.numa[row] >= 0).any())


def candidates_of(
    fleet: Fleet,
    row: int,
    part: Part,
    fitting: Indices,
    *,
    costs: Column,
    near: Collection[int],
    spread: bool,
    loads: Sequence[int] = (),
) -> Candidates:
    """Return a row's candidates, from the fitting slots, the cost of each slot, and the near switches.

    `loads` has the load of each slot of the row, or nothing.
    """
    cards = fleet.cards[part.type]
    slots, width = np.fromiter(cards.slots(row), np.intp), cards.minor.shape[1]
    fits, cost = np.zeros(width, np.bool_), np.zeros(width, np.int64)
    fits[fitting], cost[fitting] = True, costs
    users, pcie = cards.users[row, slots], cards.pcie[row, slots]
    return Candidates(
        count=part.count,
        spread=spread,
        wiring=fleet.intern_table.wirings[cards.wiring[row]],
        width=width,
        slots=tuple(slots.tolist()),
        fits=tuple(fits[slots].tolist()),
        costs=tuple(cost[slots].tolist()),
        near=tuple(switch in near for switch in pcie.tolist()),
        idle=tuple((cards.healthy[row, slots] & (users == 0)).tolist()),
        used=tuple((users > 0).tolist()),
        numa=tuple(cards.numa[row, slots].tolist()),
        pcie=tuple(pcie.tolist()),
        model=tuple(cards.model[row, slots].tolist()) if cards.mixed[row] else (),
        # The Device does not list the cards of slots that were added since the loads were computed.
        loads=tuple(loads[slot] if slot < len(loads) else 0 for slot in slots.tolist()) if loads else (),
    )


@sized_cache(CACHE_BYTES)
def best(candidates: Candidates) -> tuple[int, ...]:
    """Return the slots of the best set, ordered by minor; empty if no set is allowed."""
    sets = _sets(candidates)
    for rate in _RATINGS:
        if len(sets) < 2:  # noqa: PLR2004 - nothing left to compare
            break
        rating = rate(candidates, sets)
        sets = sets[rating == rating.max()]
    # The first has the lowest minors.
    return tuple(slot for chosen in sets[:1] for slot, taken in zip(candidates.slots, chosen, strict=True) if taken)


@sized_cache(CACHE_BYTES)
def ranked(candidates: Candidates) -> tuple[int, ...]:
    """Return the allowed sets, the best first, as bit masks of slots."""
    sets = _sets(candidates)
    ratings = [-rate(candidates, sets) for rate in reversed(_RATINGS)]
    # lexsort's last key is the primary one. Among equal sets the lowest minors come first.
    bits = np.array([1 << slot for slot in candidates.slots], object)
    return tuple(sum(bits[chosen].tolist()) for chosen in sets[np.lexsort((np.arange(len(sets)), *ratings))])


# --- the sets -----------------------------------------------------------------------------------------------


def _sets(candidates: Candidates) -> Mask:
    """Return the allowed sets that have the required companions: shape (sets, cards)."""
    few = comb(sum(candidates.fits), candidates.count) <= min(MAX_SETS, _max_compared(candidates))
    sets = _all_sets(candidates) if few else _grown_sets(candidates)
    return sets[accompanied(candidates, sets)]


def _all_sets(candidates: Candidates) -> Mask:
    """Return every allowed set, sets with the lowest minors first: shape (sets, cards)."""
    fitting = np.flatnonzero(candidates.fits)
    sets: Mask = np.zeros((comb(len(fitting), candidates.count), len(candidates.slots)), np.bool_)
    sets[:, fitting] = _choices(len(fitting), candidates.count)
    if not candidates.within:
        return sets
    bad = ~candidates.pairs
    allowed: Mask = sets[_sum_of_pairs(sets, bad.astype(np.float64)) == 0]
    return allowed


@sized_cache(2**23)
def _choices(cards: int, count: int) -> Mask:
    """Return all sets of `count` of the cards, in lexicographic order: shape (sets, cards)."""
    number = comb(cards, count)
    taken = np.fromiter(chain.from_iterable(combinations(range(cards), count)), np.intp, number * count)
    sets = np.zeros((number, cards), np.bool_)
    sets[np.repeat(np.arange(number), count), taken] = True
    return sets


def _max_compared(candidates: Candidates) -> int:
    """Return the maximum number of sets that are compared."""
    return max(1, MAX_PRODUCTS // max(1, len(candidates.slots)) ** 2)


def _grown_sets(candidates: Candidates) -> Mask:
    """Return allowed sets grown from several cards of each group, sets with the lowest minors first."""
    cards, count = len(candidates.slots), candidates.count
    limit = max(1, min(_max_compared(candidates), MAX_STEPS // max(1, cards * count)))
    enough = (group for group in islice(_groups(candidates), limit) if np.count_nonzero(group) >= count)
    groups = np.array([*enough], np.bool_).reshape(-1, cards)
    seeds = min(SEEDS, limit // max(1, len(groups)))
    groups = np.unique(groups, axis=0)
    # Each of the first cards of a group is the seed of a set within this group.
    group, card = np.nonzero(groups & (groups.cumsum(axis=1) <= seeds))
    within, every, scores = groups[group], np.arange(len(card)), candidates.link_scores
    sets = np.zeros_like(within)
    sets[every, card] = True
    own_gain = _NEAR_WEIGHT * np.array(candidates.near) - np.array(candidates.costs)
    links = scores[card]
    for _ in range(count - 1):
        gain = np.where(within & ~sets, _LINK_WEIGHT * links + own_gain, -np.inf)
        added = gain.argmax(axis=1)
        sets[every, added] = True
        links += scores[added]
    return np.unique(sets, axis=0)[::-1]


def _groups(candidates: Candidates) -> Iterator[Mask]:
    """Yield the groups of fitting cards that can be combined."""
    fits = np.array(candidates.fits)
    if candidates.within.alone:
        return
    if not candidates.within:
        yield fits
        return
    linked: Iterable[Mask] = [np.ones_like(fits)]
    if candidates.within.link:
        linked = locality.cliques(candidates.wiring, candidates.width, candidates.within.link)[
            :, np.array(candidates.slots)
        ]
    places = np.unique(replace(candidates, within=replace(candidates.within, link="")).pairs, axis=0)
    for clique in linked:
        for own in places:
            yield fits & clique & own


def accompanied(candidates: Candidates, sets: Mask) -> Mask:
    """Return which sets have the companions that they need under their switches."""
    companions = candidates.companions
    if companions is None:
        return np.ones(len(sets), np.bool_)
    known = [switch for switch, _ in companions.under]
    elsewhere = sets[:, ~np.isin(candidates.pcie, known)].any(axis=1)
    covered = _switches(candidates, sets, known)
    numbers = np.array([counts for _, counts in companions.under], np.int64)
    numbers = numbers.reshape(len(known), len(companions.counts))
    enough = (covered @ numbers >= companions.counts).all(axis=1)
    mask: Mask = ~elsewhere & enough & (covered.sum(axis=1) <= companions.max_switches)
    return mask


def _switches(candidates: Candidates, sets: Mask, switches: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return 1 for each of the switches that a set has cards under, and 0 for the others: shape (sets, switches)."""
    under = np.array(candidates.pcie)[:, np.newaxis] == np.array(switches, np.int64)
    indicators: npt.NDArray[np.int64] = (sets.astype(np.int64) @ under > 0).astype(np.int64)
    return indicators


# --- ratings of sets ----------------------------------------------------------------------------------------


def _near_cards(candidates: Candidates, sets: Mask) -> Ratings:
    return _sum_of_cards(candidates.near, sets)


def _link_scores(candidates: Candidates, sets: Mask) -> Ratings:
    return _sum_of_pairs(sets, candidates.link_scores)


def _low_cost(candidates: Candidates, sets: Mask) -> Ratings:
    return -_sum_of_cards(candidates.costs, sets)


def _low_load(candidates: Candidates, sets: Mask) -> Ratings:
    return -_sum_of_cards(candidates.loads, sets) if candidates.loads else np.zeros(len(sets))


def _few_switches(candidates: Candidates, sets: Mask) -> Ratings:
    """Rate fewer switches higher if each must give cards of other types, because those would be wasted."""
    if candidates.companions is None:
        return np.zeros(len(sets))
    ratings: Ratings = -_switches(candidates, sets, sorted(set(candidates.pcie))).sum(axis=1, dtype=np.float64)
    return ratings


def _idle_link_scores(candidates: Candidates, sets: Mask) -> Ratings:
    return _sum_of_pairs(np.array(candidates.idle) & ~sets, candidates.link_scores)


def _small_scope(candidates: Candidates, sets: Mask) -> Ratings:
    if candidates.count == 1:
        # A single card is always within one switch, known or not.
        return np.zeros(len(sets))
    switch, node = _scopes(candidates, sets)
    return np.where(switch, 2.0, node)


def _scope_in_use(candidates: Candidates, sets: Mask) -> Ratings:
    """Rate a set by whether its only switch and its only NUMA node are in use."""
    first, used = sets.argmax(axis=1), np.array(candidates.used)
    columns = zip(_scopes(candidates, sets), (candidates.pcie, candidates.numa), strict=True)
    busy: Ratings = np.zeros(len(sets))
    for inside, column in columns:
        busy += np.where(inside & np.isin(column, np.array(column)[used])[first], 1.0, 0.0)
    return -busy if candidates.spread else busy


def _scopes(candidates: Candidates, sets: Mask) -> tuple[Mask, Mask]:
    """Return which sets are within one switch, and which on one NUMA node."""
    return _in_one("pcie", candidates.pcie, sets), _in_one("numa", candidates.numa, sets)


def _in_one(name: str, column: tuple[int, ...], sets: Mask) -> Mask:
    places, unknown = np.array(column), locality.UNKNOWN_PLACE[name]
    first = places[sets.argmax(axis=1)]
    same: Mask = (~sets | (places == first[:, np.newaxis])).all(axis=1) & (first != unknown)
    return same


_RATINGS: Final = (
    _near_cards,
    _link_scores,
    _low_cost,
    _low_load,
    _few_switches,
    _idle_link_scores,
    _small_scope,
    _scope_in_use,
)
"""The rules, the most important first."""


def _sum_of_cards(values: tuple[float, ...], sets: Mask) -> Ratings:
    """Return the sum of the values of each set's cards."""
    ratings: Ratings = np.where(sets, np.array(values, np.float64), 0.0).sum(axis=1)
    return ratings


def _sum_of_pairs(sets: Mask, scores: LinkScores) -> Ratings:
    """Return the sum of the link scores of each set's pairs of cards, each pair counted twice."""
    taken = sets.astype(np.float64)
    ratings: Ratings = (taken @ scores * taken).sum(axis=1)
    return ratings
