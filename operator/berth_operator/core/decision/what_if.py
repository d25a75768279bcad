"""What-ifs without some placed pods: run the filters of a decision on many rows at once.

Removing the third pod of each of five thousand rows takes a few array expressions. The result is exact for filters
whose answer for a row depends only on the resources and devices of the row's own pods (`Policy.local`). If pods of
other rows matter, a what-if needs a `Fleet.copy`.
"""

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from berth_operator.core.decision import cycle
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask
from berth_operator.core.fleet.pods.placed_pods import PlacedPods, is_by_name
from berth_operator.core.values.request import PodRequest


class WhatIf:
    """Many what-ifs at once. Each is a copy of a row of the Fleet from which pods are removed."""

    def __init__(self, fleet: Fleet, rows: Indices, placed: PlacedPods, *, with_cards: bool = True) -> None:
        """Create what-ifs. Without cards, they serve requests without devices, and cost half as much."""
        self.fleet = fleet.excerpt(rows, with_cards=with_cards)
        self._placed = placed

    def take(self, at: Indices, pods: Indices) -> None:
        """Remove pods, each from the what-if at its position in `at`; at most one pod per what-if and call."""
        self._move(at, pods, -1)

    def give_back(self, at: Indices, pods: Indices) -> None:
        """Put pods back that were taken."""
        self._move(at, pods, 1)

    def let_go(self, at: int, pods: Indices) -> None:
        """Release the individual devices that taken pods of a what-if hold, so that devices can be chosen.

        Whether a pod fits depends on counts alone; individual devices matter only when they are chosen, which happens
        once. `take` has released already what counts do not show (`is_by_name`).
        """
        for pod in pods.tolist():
            for grant in self._placed.freed[pod].grants:
                if not is_by_name(grant) and grant.type in self.fleet.cards:
                    self.fleet.cards[grant.type].hold(at, grant.handles, -1)

    def fits(self, request: PodRequest, policy: Policy) -> Mask:
        """Return for each what-if whether its row has the resources and devices for a request."""
        return cycle.feasible(self.fleet, request, policy.local)

    def reprieve(self, at: Column, pods: Indices, request: PodRequest, policy: Policy) -> Indices:
        """Put removed pods back, in order, where a request still fits with them; return the pods that must be evicted.

        `at` has the what-if of every placed pod.
        """
        necessary = [np.zeros(0, np.intp)]
        for turn in one_pod_per_place(pods, at):
            self.give_back(at[turn], turn)
            needed = turn[~self.fits(request, policy)[at[turn]]]
            self.take(at[needed], needed)
            necessary.append(needed)
        return np.concatenate(necessary)

    def _move(self, at: Indices, pods: Indices, sign: int) -> None:
        self.fleet.move_requested(at, self._placed.amounts[:, self._placed.amount_columns[pods]], sign)
        for device_type, cards in self.fleet.cards.items():
            parts = self._placed.parts[device_type]
            cards.charge_unknown(at, sign * parts.unknown[pods])
            held, places = parts.of(pods)
            if not held.size:
                continue
            cards.charge_parts(at[places], parts.slots[held], parts.amounts, parts.amount_columns[held], sign)
            if not parts.by_name:
                continue
            for row, part in zip(at[places].tolist(), held.tolist(), strict=True):
                if part in parts.by_name:
                    cards.hold(row, parts.by_name[part], sign)
                    cards.find_spare(row, self.fleet.intern_table)


def one_pod_per_place(pods: Indices, places: Column) -> Iterator[Indices]:
    """Yield the pods in turns, each with at most one pod of a place, in the given order."""
    if not pods.size:
        return
    by_place = pods[np.argsort(places[pods], kind="stable")]
    turn = rank_within_place(places[by_place])
    by_turn = np.argsort(turn.astype(np.min_scalar_type(int(turn.max()))), kind="stable")
    yield from np.split(by_place[by_turn], np.cumsum(np.bincount(turn))[:-1])


def rank_within_place(places: Indices) -> Indices:
    """Return the position of each pod within its place. Pods of a place are adjacent."""
    return np.arange(len(places)) - np.searchsorted(places, places)


def sets(of: Indices, pods: Indices, places: Indices, size: int, limit: int) -> tuple[Indices, Indices]:
    """Return at most `limit` sets of `size` pods of one place: the place of each set, and its pods.

    `of` has the place of every placed pod.
    """
    by_place = pods[np.argsort(of[pods], kind="stable")]
    first = np.searchsorted(of[by_place], places)
    counts = np.searchsorted(of[by_place], places, side="right") - first
    found_places, found_sets = [np.zeros(0, np.intp)], [np.zeros((0, size), np.intp)]
    for pods_of_place in np.unique(counts[counts >= size]).tolist():
        chosen = np.flatnonzero(counts == pods_of_place)[: max(limit // math.comb(pods_of_place, size), 0)]
        picks = np.array(list(combinations(range(pods_of_place), size)) if chosen.size else [], np.intp).reshape(
            -1, size
        )
        found_places.append(np.repeat(places[chosen], len(picks)))
        found_sets.append(by_place[(first[chosen][:, np.newaxis, np.newaxis] + picks)].reshape(-1, size))
        limit -= len(found_sets[-1])
    return np.concatenate(found_places), np.concatenate(found_sets)
