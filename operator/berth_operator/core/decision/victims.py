"""The search for the victims of one pod: which pods of lower priority leave which node."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from berth_api.resources import CPU, MEMORY
from berth_operator.core.decision.budgets import Budget, Budgets
from berth_operator.core.decision.claim_bounds import LOWEST_PRIORITY, OFFSET, ClaimBounds, bounds
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.departures import MAX_WORK, Departures
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.what_if import WhatIf, one_pod_per_place, rank_within_place, sets
from berth_operator.core.fleet import claim_choice, claim_counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import BEYOND, leaves_soon
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask
from berth_operator.core.fleet.pods.placed_pods import PlacedPods
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod, PodRequest

MAX_TRIALS: Final = 2**13
"""What-ifs that the search for fewer victims may evaluate. They take about 10 ms."""

MAX_COUPLED_NODES: Final = 100
"""Nodes that are evaluated if pods on other nodes matter. Each of them needs a what-if of the whole Fleet."""

Keys = tuple[Column, ...]
"""Keys that compare nodes, the most important first: shape (nodes,) each. The lowest value is best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """A nominated node, and its victims."""

    nominee: Charge
    """What the pod will be charged on the node."""
    victims: tuple[Charge, ...]
    """The most important first; empty if the pods that are already leaving free enough."""
    violations: int = 0
    """Number of victims that violate a PodDisruptionBudget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """Victims on one place, as indices of placed pods."""

    place: int
    victims: Indices


def is_local(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether only the resources and devices of a row's own pods decide whether the pod fits there."""
    affinity = request.affinity
    if (
        request.ports
        or request.mounts
        or affinity.required_affinity
        or affinity.required_anti_affinity
        or affinity.topology_spread
        or claim_counts.is_searched(fleet, request)
    ):
        return False
    return not any(True for _ in fleet.affinity_index.existing_anti_affinity(request.identity))


def excerpt_without(fleet: Fleet, row: int, removed: Sequence[Charge], *, with_cards: bool = True) -> Fleet:
    """Return a Fleet of one row without some of its pods. Only the resources and devices in it are valid."""
    left_behind = [charge for charge in fleet.left_behind() if charge.node == fleet.names[row]]
    placed = PlacedPods.of(fleet, [*removed, *left_behind], with_claims=True)
    what_if = WhatIf(fleet, np.array([row]), placed, with_cards=with_cards)
    for pod in range(len(placed.charges)):
        what_if.take(np.array([0]), np.array([pod]))
    what_if.let_go(0, np.arange(len(placed.charges)))
    return what_if.fleet


def nominee_on(stage: Fleet, at: int, pod: PendingPod, policy: Policy) -> Charge | None:
    """Return what a pod will be charged on row `at` of a what-if, with the devices that are free there.

    None if its claims get nothing. If they need devices, the what-if must be a copy of the whole Fleet.
    """
    grants = policy.choose(stage, at, pod.request)
    claims = claim_choice.choose(stage, at, pod, grants, first_fit=policy.takes_first_devices)
    return None if claims is None else Placement(pod=pod, node=stage.names[at], grants=grants, claims=claims).charge


class VictimSearch:
    """Searches the best victims for one pod; places index the candidate rows, and pods index the placed pods."""

    def __init__(
        self,
        fleet: Fleet,
        pod: PendingPod,
        policy: Policy,
        lower: Mask,
        budgets: Budgets,
        *,
        proposed: Collection[str] = (),
        rows: Indices | None = None,
    ) -> None:
        """Create a search.

        `lower` are the pods that may be victims. `proposed` are UIDs of pods among them that are victims in any case.
        `rows` are candidates even without such pods.
        """
        self._fleet, self._pod, self._policy, self._request = fleet, pod, policy, pod.request
        self._filters = policy.filters_of(pod.request)
        self._searches = claim_counts.is_searched(fleet, pod.request)
        """Whether devices have to be found for the pod's claims."""
        self._placed = placed = fleet.placed_pods.current(fleet)
        candidates = np.zeros(len(fleet.names), np.bool_)
        candidates[placed.rows[lower]] = True
        if rows is not None:
            candidates[rows] = True
        self._rows = np.flatnonzero(candidates)
        self._place = (np.cumsum(candidates) - 1)[placed.rows]
        self._sorts_by = self._place.astype(np.min_scalar_type(len(self._rows)))
        """The same in a smaller integer type, which sorts ten times as fast."""
        leaving = placed.terminating.copy()
        leaving[fleet.placed_pods.numbers_of([*fleet.leaving, *proposed])] = True
        # What deleted pods still hold on the candidate rows leaves by itself, too, unless it is overdue.
        numbers = fleet.placed_pods.numbers()
        beyond = numbers[(placed.priority[numbers] == BEYOND) & candidates[placed.rows[numbers]]]
        leftovers = np.array([pod for pod in beyond.tolist() if leaves_soon(fleet, placed.charges[pod])], np.intp)
        self._going = np.concatenate((np.flatnonzero(lower & leaving), leftovers))
        left_behind = fleet.placed_pods.numbers_of(charge.uid for charge in fleet.left_behind())
        self._gone = np.concatenate((self._going, left_behind[candidates[placed.rows[left_behind]]]))
        self._base = self._what_if(fleet, self._rows)
        """All places without the pods that are already leaving, and without what others have left behind."""
        for pods in one_pod_per_place(self._gone, self._sorts_by):
            self._base.take(self._place[pods], pods)
        ranked = self._by_importance(np.flatnonzero(lower & ~leaving))
        self._violating = _violating(fleet, placed, ranked, self._place, budgets)
        self._staying = ranked[np.argsort(~self._violating[ranked], kind="stable")]
        """The potential victims, in the order in which they are reprieved."""

    def _what_if(self, fleet: Fleet, rows: Indices) -> WhatIf:
        return WhatIf(fleet, rows, self._placed, with_cards=bool(self._request.devices.parts))

    def _by_importance(self, pods: Indices) -> Indices:
        """Return pods by importance: the highest priority first, then the earliest start."""
        order = np.lexsort((self._placed.started[pods], -self._placed.priority[pods]))
        return pods[order]

    def ranked(self) -> Indices:
        """Return the rows where the pod would fit, the best first."""
        fits, victims = self._reprieve_all()
        return self._rows[self._order(victims, fits)]

    def victims_by_node(self) -> dict[str, list[Charge]]:
        """Return each node where the pod would fit, with its victims, except pods that leave in any case."""
        fits, victims = self._reprieve_all()
        by_node: dict[str, list[Charge]] = {self._fleet.names[row]: [] for row in self._rows[fits].tolist()}
        for pod in self._by_importance(np.flatnonzero(victims)).tolist():
            by_node[self._placed.charges[pod].node].append(self._placed.charges[pod])
        return by_node

    def best(self) -> Preemption | None:
        """Return the best node with its victims."""
        fits, victims = self._reprieve_all()
        order = self._order(victims, fits)
        if not order.size:
            return None
        if not is_local(self._fleet, self._request):
            return self._best_by_all_filters(order, victims)
        choice = self._smaller_set(order, victims) or self._choice(order[0], victims)
        what_if = self._what_if(self._base.fleet, np.array([choice.place]))
        for pod in choice.victims:
            what_if.take(np.array([0]), np.array([pod]))
        gone = self._gone[self._place[self._gone] == choice.place]
        what_if.let_go(0, np.concatenate((choice.victims, gone)))
        return self._outcome(choice, nominee_on(what_if.fleet, 0, self._pod, self._policy))

    # --- all places at once -------------------------------------------------------------------------------------

    def _reprieve_all(self) -> tuple[Mask, Mask]:
        """Return the places where the pod would fit by the row's own pods, and the pods to evict there."""
        what_if = self._what_if(self._base.fleet, np.arange(len(self._rows)))
        for pods in one_pod_per_place(self._staying, self._sorts_by):
            what_if.take(self._place[pods], pods)
        fits, victims = what_if.fits(self._request, self._policy), np.zeros(len(self._place), np.bool_)
        potential = self._staying[fits[self._place[self._staying]]]
        victims[what_if.reprieve(self._sorts_by, potential, self._request, self._policy)] = True
        return fits, victims

    def _order(self, victims: Mask, fits: Mask) -> Indices:
        """Return the places where the pod would fit, the best first."""
        pods = np.flatnonzero(victims)
        keys = self._keys(self._place[pods], pods, len(self._rows))
        if self._searches:
            keys, fits = (*self._lower_bounds(keys), *keys), fits & self._bounds_by_claims.enough
        order = np.lexsort(keys[::-1])
        return order[fits[order]]

    def _keys(self, of: Indices, pods: Indices, sets: int) -> Keys:
        """Return the keys that compare sets of victims. `of` has the set of each pod."""
        priority = self._placed.priority[pods]
        violations, number = np.bincount(of, self._violating[pods], sets), np.bincount(of, minlength=sets)
        highest, weight = np.full(sets, LOWEST_PRIORITY), np.zeros(sets, np.int64)
        np.maximum.at(highest, of, priority)
        np.add.at(weight, of, priority + OFFSET)
        top, started = priority == highest[of], np.full(sets, 2**62)
        np.minimum.at(started, of[top], self._placed.started[pods[top]])
        return violations.astype(np.int64), highest, weight, number, -started

    def _choice(self, place: int, victims: Mask) -> _Choice:
        return _Choice(place=int(place), victims=np.flatnonzero(victims & (self._place == place)))

    # --- fewer victims ------------------------------------------------------------------------------------------

    def _smaller_set(self, order: Indices, victims: Mask) -> _Choice | None:
        """Search the best places for a smaller set of victims, as reprieving one by one need not find the smallest."""
        pods = np.flatnonzero(victims)
        violations, highest, _, number, _ = self._keys(self._place[pods], pods, len(self._rows))
        best = order[0]
        equal = (violations[order] == violations[best]) & (highest[order] == highest[best])
        finalists = order[equal & (number[order] > 1)]
        allowed = self._staying[self._placed.priority[self._staying] <= highest[best]]
        if not violations[best]:
            allowed = allowed[~self._violating[allowed]]
        # No set of as many victims is better on places with one priority, without violations: the first victim in the
        # order of reprieve has to go whatever comes after it goes, and it decides among them.
        top = np.full(len(self._rows), LOWEST_PRIORITY)
        np.maximum.at(top, self._place[allowed], self._placed.priority[allowed])
        settled = (top == self._lowest(allowed)) & (violations == 0)
        current, trials = self._choice(best, victims), MAX_TRIALS
        least, most = self._least_numbers(allowed), number - settled
        for size in range(1, int(number[best]) + 1):
            tried = finalists[(least[finalists] <= size) & (size <= most[finalists])]
            places, candidates = sets(self._sorts_by, allowed, tried, size, trials)
            what_if, all_whatifs = self._what_if(self._base.fleet, places), np.arange(len(places))
            for pods in candidates.T:
                what_if.take(all_whatifs, pods)
            fitting = np.flatnonzero(what_if.fits(self._request, self._policy)).tolist()
            choices = [_Choice(place=int(places[at]), victims=candidates[at]) for at in fitting]
            better = self._best_of([*choices, current])
            trials -= len(candidates)
            if better is not current:
                return better
        return None

    def _least_numbers(self, allowed: Indices) -> Column:
        """Return for each place how many pods have to go at least: the largest ones have too little otherwise."""
        least = np.zeros(len(self._rows), np.int64)
        for name, amount in self._request.resources:
            if name in (CPU, MEMORY) and amount:
                amounts = self._placed.amounts[self._fleet.resources[name], self._placed.amount_columns[allowed]]
                largest = np.zeros(len(self._rows), np.int64)
                np.maximum.at(largest, self._place[allowed], amounts)
                missing = amount - self._base.fleet.left(name)
                least = np.maximum(least, np.where(largest > 0, -(-missing // np.maximum(largest, 1)), 0))
        return least

    def _best_of(self, choices: Sequence[_Choice]) -> _Choice:
        of = np.repeat(np.arange(len(choices)), [len(choice.victims) for choice in choices])
        pods = np.concatenate([choice.victims for choice in choices])
        places = np.array([choice.place for choice in choices])
        return choices[int(np.lexsort((places, *self._keys(of, pods, len(choices))[::-1]))[0])]

    # --- one place at a time ------------------------------------------------------------------------------------

    def _best_by_all_filters(self, order: Indices, victims: Mask) -> Preemption | None:
        """Evaluate the best places by all filters, as far as they can be better than the best so far."""
        what_if, best = Departures.for_pod(self._fleet, self._request), None
        pods = np.flatnonzero(victims)
        least = np.array(self._lower_bounds(self._keys(self._place[pods], pods, len(self._rows))))
        for place in order[:MAX_COUPLED_NODES].tolist():
            if best is not None:
                # Without the age of the victims.
                *keys, _ = self._keys(np.zeros(len(best.victims), np.intp), best.victims, 1)
                if tuple(int(key[0]) for key in keys) <= tuple(least[:, place].tolist()):
                    continue
            exact = self._exact_choice(what_if, self._choice(place, victims))
            if what_if.is_over:
                break
            if exact is not None:
                best = exact if best is None else self._best_of([best, exact])
        if best is None:
            return None
        # The outcome in the what-if in which it was found.
        gone = [self._placed.charges[pod] for pod in best.victims.tolist()]
        what_if.fleet.claims.supply.work.refill(MAX_WORK)
        with what_if.without([*self._leaving(best.place), *gone]):
            nominee = nominee_on(what_if.fleet, self._rows[best.place], self._pod, self._policy)
        return self._outcome(best, nominee)

    def _lower_bounds(self, keys: Keys) -> Keys:
        """Return lower bounds of the keys of any choice on each place.

        `keys` are the keys of the victims for resources and cards by name. Further victims may make some of these
        unnecessary, so only one victim of the highest priority is certain.
        """
        violations, highest, _, number, _ = keys
        certain = (violations == 0) & (number > 0)
        least: Keys = np.where(certain, highest, LOWEST_PRIORITY), np.where(certain, highest + OFFSET, 0), certain * 1
        least = _highest(least, self._bounds_by_amounts)
        if self._searches:
            by_claims = self._bounds_by_claims
            least = _highest(least, (by_claims.highest, by_claims.weight, by_claims.number))
        return np.minimum(violations, 1), *least

    @cached_property
    def _bounds_by_amounts(self) -> Keys:
        """Return bounds for the least necessary number of victims, as if all of them had the lowest priority there."""
        number, lowest = self._least_numbers(self._staying), self._lowest(self._staying)
        return np.where(number > 0, lowest, LOWEST_PRIORITY), number * (lowest + OFFSET), number

    def _lowest(self, pods: Indices) -> Column:
        """Return the lowest priority of some pods on each place, above all where there are none."""
        lowest = np.full(len(self._rows), 2**31)
        np.minimum.at(lowest, self._place[pods], self._placed.priority[pods])
        return lowest

    @cached_property
    def _bounds_by_claims(self) -> ClaimBounds:
        """Return bounds for the victims that have devices for the pod's claims."""
        devices, claims = self._placed.devices, self._fleet.claims
        missing = claim_counts.missing_devices(self._fleet, self._request)
        np.subtract.at(missing, self._placed.rows[self._going], devices[self._going])
        left_behind = {node for claim in claims.left_behind() for node in claim.nodes} & self._fleet.rows.keys()
        missing[[self._fleet.rows[node] for node in left_behind]] = 0
        staying = self._staying
        return bounds(missing[self._rows], self._place[staying], devices[staying], self._placed.priority[staying])

    def _exact_choice(self, what_if: Departures, least: _Choice) -> _Choice | None:
        """Return the victims on a place, `least` if they suffice; None if evicting all of them does not help."""
        row, necessary = self._rows[least.place], set(least.victims.tolist())
        potential = self._staying[self._place[self._staying] == least.place].tolist()
        with what_if.without([*self._leaving(least.place), *map(self._placed.charges.__getitem__, potential)]):
            if not self._fits(what_if, row):
                return None
            if self._reprieve(what_if, row, [pod for pod in potential if pod not in necessary]):
                return least
            victims = self._necessary(what_if, row, potential)
        return _Choice(place=least.place, victims=np.array(victims, np.intp))

    def _leaving(self, place: int) -> list[Charge]:
        """Return the pods of a place that are leaving already."""
        return [self._placed.charges[pod] for pod in self._going[self._place[self._going] == place].tolist()]

    def _necessary(self, what_if: Departures, row: int, pods: list[int]) -> list[int]:
        """Reprieve pods, the first pods first, and return the pods that must be evicted.

        Halves are tried at once: if the pod fits with a whole half, it also fits while that half comes back pod by pod.
        """
        if not pods or self._reprieve(what_if, row, pods):
            return []
        if len(pods) == 1:
            return pods
        half = len(pods) // 2
        return [*self._necessary(what_if, row, pods[:half]), *self._necessary(what_if, row, pods[half:])]

    def _reprieve(self, what_if: Departures, row: int, pods: Sequence[int]) -> bool:
        """Charge pods to their row again unless the new pod then fails to fit; return whether it fits."""
        charges = [self._placed.charges[pod] for pod in pods]
        what_if.come_back(charges)
        fits = self._fits(what_if, row)
        if not fits:
            what_if.leave(charges)
        return fits

    def _fits(self, what_if: Departures, row: int) -> bool:
        """Return whether the pod fits on a row, and its claims get their devices."""
        if not what_if.fits(row, self._request, self._filters):
            return False
        return not self._searches or nominee_on(what_if.fleet, row, self._pod, self._policy) is not None

    # --- the outcome --------------------------------------------------------------------------------------------

    def _outcome(self, choice: _Choice, nominee: Charge | None) -> Preemption | None:
        victims = tuple(self._placed.charges[pod] for pod in self._by_importance(choice.victims))
        violations = int(self._violating[choice.victims].sum())
        return None if nominee is None else Preemption(nominee=nominee, victims=victims, violations=violations)


@contextmanager
def released(fleet: Fleet, charges: Sequence[Charge]) -> Iterator[None]:
    """Release pods within the context, and charge them again at its end."""
    for charge in charges:
        fleet.release(charge.uid)
    try:
        yield
    finally:
        for charge in charges:
            fleet.charge(charge)


def _highest(keys: Keys, others: Keys) -> Keys:
    return tuple(np.maximum(*pair) for pair in zip(keys, others, strict=True))


def _violating(fleet: Fleet, placed: PlacedPods, ranked: Indices, place: Indices, budgets: Budgets) -> Mask:
    """Return the pods whose eviction would violate a budget. More important pods of a row use up the budget first.

    This is kube-scheduler's rule, too.
    """
    mask = np.zeros(len(placed.charges), np.bool_)
    if not budgets:
        return mask
    # The pods that each budget protects, the most important first.
    protected: defaultdict[Budget, list[int]] = defaultdict(list)
    for pod in ranked.tolist():
        for budget in budgets.counting(placed.charges[pod]):
            protected[budget].append(pod)
    spent = budgets.spent(fleet)
    for budget, numbers in protected.items():
        pods = np.array(numbers, np.intp)
        by_place = pods[np.argsort(place[pods], kind="stable")]
        mask[by_place[rank_within_place(place[by_place]) >= budget.allowed - spent[budget]]] = True
    return mask
