"""The sets of victims with which a gang may fit, the cheapest first, by a best-first search over the nodes.

    VictimSets(fleet, classes, lower, ...).cheapest(rows)  ->  Iterator[victims]

Array expressions count, for each set of a node's pods, how many members of each class the node can take without them. A
count is never too low. So a decision has to try only the sets that are yielded here.

A state of the search is a choice of sets for the first nodes. States are compared by a lower bound for the cost of all
victims: for the members that do not fit yet, the other nodes' prices are added, as if a part of a set could be evicted.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from operator import add, ge, sub
from typing import Final, NamedTuple

import numpy as np

from berth_operator.core import allocators
from berth_operator.core.claims.bounds.errors import NoWorkError
from berth_operator.core.decision import capacity
from berth_operator.core.decision.budgets import Budget, Budgets
from berth_operator.core.decision.claim_bounds import LOWEST_PRIORITY, OFFSET
from berth_operator.core.decision.cycle import feasible
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.victims import is_local
from berth_operator.core.decision.what_if import WhatIf
from berth_operator.core.fleet import claim_counts, extended_resources
from berth_operator.core.fleet.arrays.column_cache import ALL
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PodRequest

MAX_SETS: Final = 2**12
"""Sets of pods that are counted, on all nodes together: as many as 16 nodes with 8 pods each have."""
MAX_STATES: Final = 2**12
"""States of one search. They take up to 0.1 s."""

Cost = tuple[int, int, int]
"""Violated budgets, highest priority and sum of priorities, as kube-scheduler compares them. The lowest is best."""
Level = tuple[bool, int]
"""Whether a budget protects a pod that allows no eviction, and the pod's priority."""
Counts = tuple[int, ...]
"""How many members of each class fit, each class alone, and then how many units of resources and cards are free for
members of several classes. Each number is at most what all members need."""


class VictimCosts:
    """The costs of sets of victims, in addition to the pods that are being evicted from a Fleet."""

    def __init__(self, fleet: Fleet, budgets: Budgets) -> None:
        self._budgets = budgets
        self._spent = budgets.spent(fleet) if budgets else Counter[Budget]()

    def of(self, victims: Sequence[Charge]) -> Cost:
        """Return the cost of victims on any nodes."""
        return self.violations(victims), *by_priority(victims)

    def violations(self, victims: Sequence[Charge]) -> int:
        """Return how many victims violate a budget; the most important ones use up the budgets."""
        return self._budgets.violations(sorted(victims, key=importance), self._spent) if self._budgets else 0

    def level(self, charge: Charge) -> Level:
        """Return the level of a pod. It costs no less than a pod of a lower level."""
        protecting = self.protecting(charge)
        return any(self._spent[budget] >= budget.allowed for budget in protecting), charge.priority

    def protecting(self, charge: Charge) -> tuple[Budget, ...]:
        """Return the budgets that count a pod."""
        return self._budgets.counting(charge) if self._budgets else ()


class Rules(NamedTuple):
    """What decides which pods may be evicted, and how they are compared."""

    policy: Policy
    budgets: Budgets
    costs: VictimCosts
    in_flight: Collection[str]
    """UIDs of pods whose Binding is not confirmed yet. They are not evicted."""


def by_priority(victims: Sequence[Charge]) -> tuple[int, int]:
    """Return the highest priority, and the sum of priorities, of which each counts as positive."""
    highest = max((victim.priority for victim in victims), default=LOWEST_PRIORITY)
    return highest, sum(victim.priority + OFFSET for victim in victims)


def importance(charge: Charge) -> tuple[int, int]:
    """Return the sort key of pods, the most important first."""
    return -charge.priority, charge.started


def number_of_sets(lower: Sequence[Charge]) -> int:
    """Return how many sets these pods have, each of pods of one node."""
    return sum(2**pods for pods in Counter(charge.node for charge in lower).values())


class _Set(NamedTuple):
    """Pods of one node, and how many members it can take without them."""

    victims: tuple[Charge, ...]
    counts: Counts
    highest: int
    weight: int
    """The sum of the victims' priorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node with potential victims."""

    row: int
    sets: Sequence[_Set]
    """The sets to try; the first is empty."""
    up_to: Sequence[Counts]
    """How many members it can take without all pods up to each level."""


class _Goal(NamedTuple):
    """What is enough for a gang."""

    requests: Sequence[PodRequest]
    """The members' classes, and then the units."""
    limits: Counts
    """What all members need."""
    enough: Counts
    """How many members must fit, and how many of each unit the needed members take at least."""

    @classmethod
    def of(cls, fleet: Fleet, classes: Mapping[PodRequest, int], needed: int) -> "_Goal":
        """Return the goal for members with these requests."""
        taken = defaultdict[PodRequest, list[int]](list)
        # The count of a single class shows what its members take together.
        for request, members in classes.items() if len(classes) > 1 else ():
            for unit, number in _units(fleet, request):
                taken[unit] += [number] * members
        everyone = sum(classes.values())
        least = {
            unit: sum(sorted((*numbers, *[0] * (everyone - len(numbers))))[:needed]) for unit, numbers in taken.items()
        }
        return cls([*classes, *least], (*classes.values(), *least.values()), (needed, *least.values()))

    def reached(self, counts: Counts) -> Counts:
        """Return how many members fit, and how many of each unit are free."""
        classes = len(self.limits) - len(self.enough) + 1
        return sum(counts[:classes]), *counts[classes:]

    def missing(self, counts: Counts) -> Counts:
        """Return how much more is needed; negative numbers are more than enough."""
        return tuple(map(sub, self.enough, self.reached(counts)))


def _takes_any_cards(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether it makes no difference for members which of the free cards are free."""
    devices = request.devices
    return not (devices.joint or devices.partition or devices.topology) and all(
        (part.whole or part.count == 1)
        and not (part.every or part.functions or part.scope or part.exclusive)
        and not allocators.in_subdevices(fleet, part)
        for part in devices.parts
    )


def _units(fleet: Fleet, request: PodRequest) -> Iterator[tuple[PodRequest, int]]:
    """Yield the requests for one unit of what a member requests, and how many it takes."""
    if extended_resources.rows_by_class(fleet, request) or extended_resources.rows_by_count(fleet, request) is not None:
        return
    for name, amount in request.resources:
        yield PodRequest(resources=((name, 1),)), amount
    for part in request.devices.parts:
        devices = replace(request.devices, parts=(replace(part, count=1),), joint=None, partition=None, topology=None)
        yield PodRequest(devices=devices, model=request.model), part.count


class VictimSets:
    """The sets of victims for one gang on one copy of the Fleet."""

    def __init__(
        self,
        fleet: Fleet,
        classes: Mapping[PodRequest, tuple[int, Mask]],
        lower: Sequence[Charge],
        *,
        needed: int,
        shared: Collection[str],
        rules: Rules,
    ) -> None:
        """Count the members that fit without each set of pods.

        Args:
            fleet: the copy, without the pods that are leaving.
            classes: how many members have each request, and the rows that could take one if no other pods were there.
            lower: the placed pods that may be victims.
            needed: how many members must fit.
            shared: claims (namespace/name) that several members use.
            rules: the policy, and the costs of victims.
        """
        self._fleet, self._policy, self._costs, self._shared = fleet, rules.policy, rules.costs, shared
        self._goal = _Goal.of(fleet, {request: number for request, (number, _) in classes.items()}, needed)
        self._usable = np.array([usable for _, usable in classes.values()])
        self._cards_are_alike = all(_takes_any_cards(fleet, request) for request in classes)
        self._is_simple = self._cards_are_alike and len(classes) == 1 and is_local(fleet, self._goal.requests[0])
        """Whether the counts alone decide how many members fit."""
        placed = fleet.placed_pods.current(fleet)
        pods = fleet.placed_pods.numbers_of(charge.uid for charge in lower)
        # The youngest first: of sets that are alike, the first is tried.
        pods = pods[np.lexsort((-pods, -placed.started[pods], placed.rows[pods]))]
        rows, first, number = np.unique(placed.rows[pods], return_index=True, return_counts=True)
        sizes = 1 << number
        nodes = {node for claim in fleet.claims.left_behind() for node in claim.nodes} & fleet.rows.keys()
        self._left_behind = np.zeros(len(fleet.names), np.bool_)
        self._left_behind[[fleet.rows[node] for node in nodes]] = True
        """Rows with devices that no pod uses any more."""
        everywhere = np.arange(len(fleet.names))
        self._staying = self._counts(fleet, everywhere, np.zeros(len(everywhere), np.int64))
        """The counts of each row without victims: shape (counts, rows)."""
        by_set = self._counts_by_set(pods, rows, first, sizes).T.tolist()
        of_row = [[placed.charges[pod] for pod in pods[at : at + size]] for at, size in zip(first, number, strict=True)]
        self._levels = sorted({rules.costs.level(charge) for charges in of_row for charge in charges})
        self._nodes = [
            self._node(row, charges, list(map(tuple, by_set[end - size : end])))
            for row, charges, size, end in zip(rows.tolist(), of_row, sizes, np.cumsum(sizes), strict=True)
        ]

    def cheapest(self, rows: Mask) -> Iterator[list[Charge]]:
        """Yield the sets of victims on some rows without which enough members may fit there, the cheapest first.

        Raises:
            NoWorkError: the search has tried MAX_STATES states.
        """
        nodes = [node for node in self._nodes if rows[node.row]]
        others = rows.copy()
        others[[node.row for node in nodes]] = False
        base = np.minimum(self._staying[:, others].sum(axis=1), self._goal.limits)
        search = _Search(nodes, self._goal, self._levels, self._costs)
        return search.sets(tuple(base.tolist()))

    # --- how many members fit -------------------------------------------------------------------------------------

    def _counts(self, fleet: Fleet, rows: Indices, freed: Column) -> Column:
        """Return the counts of each row of a Fleet or what-if: shape (counts, rows).

        `rows` are its rows in the Fleet, and `freed` how many devices for claims the victims there have.
        """
        limits, usable = np.array(self._goal.limits)[:, np.newaxis], self._usable[:, rows]
        counts: Column = np.repeat(limits, len(rows), axis=1)
        takes_any: Mask = np.logical_or.reduce(usable)
        for line, request in enumerate(self._goal.requests):
            # What DeviceClasses provide is not counted.
            if not extended_resources.rows_by_class(self._fleet, request):
                fits = feasible(fleet, request, self._policy.local) if line < len(usable) else takes_any
                counts[line] = capacity.of_class(fleet, request, fits)
                # A gang gets few slices of a card.
                for part in request.devices.parts:
                    if allocators.in_subdevices(fleet, part):
                        units = allocators.subdevices_apart(fleet, request, part, ALL)
                        counts[line] = np.minimum(counts[line], units.sum(axis=1) // part.count)
            if claim_counts.is_searched(self._fleet, request):
                with_devices = claim_counts.pods_once_freed(self._fleet, request, self._shared, rows, freed)
                counts[line] = np.minimum(counts[line], np.where(self._left_behind[rows], limits[line], with_devices))
        counts[: len(usable)] *= usable
        at_most: Column = np.minimum(counts, limits)
        return at_most

    def _counts_by_set(self, pods: Indices, rows: Indices, first: Indices, sizes: Column) -> Column:
        """Return the counts without each set of pods, row by row: shape (counts, sets).

        Set i of a row has the row's pod b if bit b of i is set.
        """
        placed = self._fleet.placed_pods.current(self._fleet)
        of_set = np.repeat(np.arange(len(rows)), sizes)
        bits = np.arange(len(of_set)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        what_if, freed = WhatIf(self._fleet, rows[of_set], placed), np.zeros(len(of_set), np.int64)
        for bit in range(int(sizes.max(initial=1)).bit_length() - 1):
            at = np.flatnonzero(bits >> bit & 1)
            leaving = pods[first[of_set[at]] + bit]
            what_if.take(at, leaving)
            freed[at] += placed.devices[leaving]
        return self._counts(what_if.fleet, rows[of_set], freed)

    def _node(self, row: int, pods: Sequence[Charge], counts: Sequence[Counts]) -> _Node:
        levels = [self._costs.level(pod) for pod in pods]
        up_to = [counts[sum(1 << bit for bit, own in enumerate(levels) if own <= level)] for level in self._levels]
        alike = list(map(self._alike, pods))
        sets: dict[object, _Set] = {}
        for number, of_set in enumerate(counts):
            bits = [bit for bit in range(len(pods)) if number >> bit & 1]
            key = of_set, frozenset(Counter(alike[bit] for bit in bits).items())
            if key not in sets:
                victims = tuple(pods[bit] for bit in bits)
                sets[key] = _Set(victims, of_set, *by_priority(victims))
        tried = list(sets.values())
        if self._is_simple and not any(map(self._costs.protecting, pods)):
            tried = _useful(tried)
        return _Node(row=row, sets=tried, up_to=up_to)

    def _alike(self, charge: Charge) -> object:
        """Return a value that is equal for pods of a node that could be exchanged."""
        cost = charge.priority, self._costs.protecting(charge)
        if self._is_simple:
            return cost
        if not self._cards_are_alike:
            return charge.uid
        amounts = tuple((grant.type, grant.counted) for grant in charge.grants)
        return *cost, charge.identity, charge.affinity, charge.ports, charge.mounts, charge.resources, amounts


def _useful(sets: Sequence[_Set]) -> list[_Set]:
    """Return the sets without those of which another one frees as much and costs no more."""
    kept: list[_Set] = []
    for set_ in sorted(sets, key=lambda set_: (set_.weight, set_.highest)):
        if not any(other.highest <= set_.highest and all(map(ge, other.counts, set_.counts)) for other in kept):
            kept.append(set_)
    return kept


class _Price(NamedTuple):
    """The least sum of priorities for one more step of a count."""

    slope: Fraction
    gain: int
    weight: int


class _State(NamedTuple):
    """Sets of the first nodes. The fields until `number` compare states, the best first."""

    bound: Cost
    """A lower bound for the cost of all victims."""
    unfilled: int
    """The negative number of members that fit on these nodes: few nodes with many members come first."""
    undecided: int
    """The number of further nodes."""
    number: int
    chosen: _Set
    """All victims, and the counts of these nodes and of nodes without potential victims."""


class _After(NamedTuple):
    """A node and those after it."""

    staying: Counts
    """Their counts without victims."""
    up_to: Sequence[Counts]
    """Their counts without all pods up to each level."""
    prices: Sequence[Sequence[_Price]]
    """For each number of the goal, what more of it costs at least, the cheapest first."""


class _Search:
    """One search over some nodes."""

    def __init__(self, nodes: Sequence[_Node], goal: _Goal, levels: Sequence[Level], costs: VictimCosts) -> None:
        self._goal, self._levels, self._costs = goal, levels, costs
        # Of equal costs, those on few nodes are found first.
        self._nodes = sorted(nodes, key=lambda node: -goal.reached(node.up_to[-1])[0])
        none = (0,) * len(goal.limits)
        after = [_After(none, [none] * len(levels), [[]] * len(goal.enough))]
        for node in reversed(self._nodes):
            after.append(self._with(node, after[-1]))
        self._after = after[::-1]
        self._states: list[_State] = []
        self._tried = 0

    def _with(self, node: _Node, after: _After) -> _After:
        staying = self._goal.reached(node.sets[0].counts)
        gains = [tuple(map(sub, self._goal.reached(set_.counts), staying)) for set_ in node.sets]
        prices = []
        for at, (further, enough) in enumerate(zip(after.prices, self._goal.enough, strict=True)):
            own = _prices([(of_set[at], set_.weight) for of_set, set_ in zip(gains, node.sets, strict=True)])
            prices.append(_cheapest([*further, *own], enough))
        return _After(
            staying=self._sum(node.sets[0].counts, after.staying),
            up_to=[self._sum(*pair) for pair in zip(node.up_to, after.up_to, strict=True)],
            prices=prices,
        )

    def sets(self, base: Counts) -> Iterator[list[Charge]]:
        """Yield the sets, the cheapest first. `base` has the counts of nodes without potential victims."""
        self._push(0, _Set((), base, LOWEST_PRIORITY, 0))
        while self._states:
            state = heapq.heappop(self._states)
            victims, counts, highest, weight = state.chosen
            if not state.undecided:
                yield sorted(victims, key=importance)
                continue
            at = len(self._nodes) - state.undecided
            for more in self._nodes[at].sets:
                both = (*victims, *more.victims), self._sum(counts, more.counts)
                self._push(at + 1, _Set(*both, max(highest, more.highest), weight + more.weight))

    def _push(self, at: int, chosen: _Set) -> None:
        """Add the state before a node, unless too few members fit whatever else leaves."""
        bound = self._bound(self._after[at], chosen)
        if bound is None:
            return
        self._tried += 1
        if self._tried > MAX_STATES:
            raise NoWorkError("the search for victims is not finished")
        fit = self._goal.reached(chosen.counts)[0]
        heapq.heappush(self._states, _State(bound, -fit, len(self._nodes) - at, self._tried, chosen))

    def _bound(self, after: _After, chosen: _Set) -> Cost | None:
        """Return a lower bound for the cost of victims and those on the nodes after them; None if no set suffices."""
        violations, highest, weight = self._costs.violations(chosen.victims), chosen.highest, chosen.weight
        missing = self._goal.missing(self._sum(chosen.counts, after.staying))
        if max(missing) <= 0:
            return violations, highest, weight

        def suffices(level: int) -> bool:
            return max(self._goal.missing(self._sum(chosen.counts, after.up_to[level]))) <= 0

        # Pods up to the highest priority of a victim cost nothing in this respect.
        known = bisect_right(self._levels, (False, highest))
        if not (known and suffices(known - 1)):
            needed = bisect_left(range(known, len(self._levels)), x=True, key=suffices) + known
            if needed == len(self._levels):
                return None
            violates, priority = self._levels[needed]
            violations, highest = violations + violates, max(highest, priority)
        return violations, highest, weight + max(map(_least, after.prices, missing))

    def _sum(self, counts: Counts, more: Counts) -> Counts:
        return tuple(map(min, map(add, counts, more), self._goal.limits))


def _prices(points: Sequence[tuple[int, int]]) -> Iterator[_Price]:
    """Yield what more costs at least, given (gain, weight) of all sets of a node: their lower convex hull."""
    left = [point for point in points if point[0] > 0]
    gain = weight = 0
    while left:
        slope, to = min((Fraction(more - weight, far - gain), (far, more)) for far, more in left)
        yield _Price(slope, to[0] - gain, to[1] - weight)
        gain, weight = to
        left = [point for point in left if point[0] > gain]


def _cheapest(prices: list[_Price], enough: int) -> list[_Price]:
    """Return the cheapest prices for so many."""
    prices.sort()
    gains = accumulate(price.gain for price in prices)
    return [price for price, gain in zip(prices, gains, strict=True) if gain - price.gain < enough]


def _least(prices: Sequence[_Price], missing: int) -> int:
    """Return the least sum of priorities for so many more."""
    weight = 0
    for price in prices:
        if missing <= price.gain:
            return weight + max(int(price.slope * missing), 0)
        missing, weight = missing - price.gain, weight + price.weight
    return weight
