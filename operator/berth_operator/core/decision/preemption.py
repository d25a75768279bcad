"""Choose the pods of lower priority to evict from a node so that a pod fits there.

    preempt(fleet, pod, policy, budgets, unconfirmed)  ->  Preemption | None

The steps are those of kube-scheduler's DefaultPreemption. A node is a candidate if the first filter that rejects it is
resolvable. All pods of lower priority are removed there. If the pod then fits, as many as possible are reprieved:
first those that a PodDisruptionBudget protects, then by priority and age. The rest are the victims, so each of them
frees something that the pod needs: its cpu, its port, or its cards. Candidates are compared by the number of budget
violations, the highest priority of a victim, the sum of priorities, the number of victims (the lowest is best in all
of these), and the start time of the most important victims (the latest is best).

Unlike kube-scheduler it evaluates every node instead of a tenth of them, and then searches the best nodes for smaller
sets of victims (docs/decisions/0008-preemption.md). Pods that are already leaving cost nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth_operator.core import filters
from berth_operator.core.decision import cycle
from berth_operator.core.decision.budgets import Budget, Budgets
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.messages import cut, fit_error
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.what_if import WhatIf, one_pod_per_place, rank_within_place, sets
from berth_operator.core.filters import Filter
from berth_operator.core.filters.reasons import count_reasons
from berth_operator.core.fleet.cards import Column, Indices, Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.placed_pods import PlacedPods
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import Verdict

MAX_TRIALS: Final = 2**13
"""What-ifs that the search for fewer victims may evaluate; they take about 10 ms."""
MAX_COUPLED_NODES: Final = 100
"""Nodes that are evaluated if pods on other nodes matter, because each of them needs a what-if of the whole Fleet."""

NEVER: Final = "not eligible due to preemptionPolicy=Never."
TERMINATING: Final = "not eligible due to a terminating pod on the nominated node."
NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
NO_VICTIMS: Final = "No preemption victims found for incoming pod"

LOWEST_PRIORITY: Final = -(2**62)
"""The highest priority of an empty set of victims; lower than any priority."""
OFFSET: Final = 2**31
"""Added to each priority in sums, so that every victim counts as positive; as in kube-scheduler."""

Keys = tuple[Column, ...]
"""Keys by which nodes are compared, the most important first: shape (nodes,) each; the lowest value is best."""


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


def preempt(
    fleet: Fleet,
    pod: PendingPod,
    policy: Policy,
    budgets: Budgets,
    in_flight: Collection[str] = frozenset(),
    *,
    within: Mask | None = None,
) -> Preemption | None:
    """Choose a node and its victims for a pod that fits nowhere; return None if evictions would not help.

    `in_flight` are UIDs of pods whose Binding is not confirmed yet; they are not evicted. `within` restricts the
    candidate nodes to a mask.
    """
    if not policy.preemption or not pod.preempts or not has_lower(fleet, pod.priority):
        return None
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        lower = _potential_victims(fleet, pod, policy, in_flight, within)
        return _Search(fleet, pod, policy, lower, budgets).best() if lower.any() else None


def ranked_rows(
    fleet: Fleet, pod: PendingPod, policy: Policy, budgets: Budgets, in_flight: Collection[str] = frozenset()
) -> Indices:
    """Return the rows where evictions would let a pod fit, the best first, considering only the row's own pods."""
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        lower = _potential_victims(fleet, pod, policy, in_flight)
        return _Search(fleet, pod, policy, lower, budgets).ranked() if lower.any() else np.zeros(0, np.intp)


def more_victims(
    fleet: Fleet,
    pod: PendingPod,
    policy: Policy,
    budgets: Budgets,
    proposed: Mapping[str, Collection[str]],
    *,
    in_flight: Collection[str] = frozenset(),
) -> dict[str, list[Charge]]:
    """Return for each node with proposed victims (UIDs) which other pods have to go as well, so that a pod fits there.

    Nodes where the pod does not fit even without all pods of lower priority are left out. Only resources, devices and
    what no eviction changes are considered.
    """
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        settled = [each for each in policy.filters_of(pod.request) if each.VERDICT is Verdict.UNRESOLVABLE]
        passes = cycle.feasible(fleet, pod.request, settled)
        rows = np.array(
            [row for name in proposed if (row := fleet.rows.get(name)) is not None and passes[row]], np.intp
        )
        uids = {uid for uids in proposed.values() for uid in uids}
        lower = _preemptible_below(fleet, pod.priority, set(in_flight) - uids)
        lower &= np.isin(fleet.placed_pods.current(fleet).rows, rows)
        search = _Search(fleet, pod, policy, lower, budgets, proposed=uids, rows=rows)
        return search.victims_by_node()


def violations(fleet: Fleet, victims: Sequence[Charge], budgets: Budgets) -> int:
    """Return how many of the victims on one node violate a PodDisruptionBudget."""
    allowed = Counter({budget: budget.allowed for victim in victims for budget in budgets.counting(victim)})
    allowed.subtract(budgets.spent(fleet))
    violating = 0
    for victim in victims:
        protecting = budgets.counting(victim)
        violating += any(allowed[budget] <= 0 for budget in protecting)
        allowed.subtract(protecting)
    return violating


def _potential_victims(
    fleet: Fleet, pod: PendingPod, policy: Policy, in_flight: Collection[str], within: Mask | None = None
) -> Mask:
    """Return for each placed pod whether it may be a victim on a row where evictions may help."""
    rows = candidate_rows(fleet, pod.request, policy)
    if within is not None:
        rows &= within
    lower = _preemptible_below(fleet, pod.priority, in_flight)
    lower &= rows[fleet.placed_pods.current(fleet).rows]
    return lower


def _preemptible_below(fleet: Fleet, priority: int, in_flight: Collection[str]) -> Mask:
    """Return for each placed pod whether it is confirmed and below a priority."""
    placed = fleet.placed_pods.current(fleet)
    mask = np.zeros(len(placed.charges), np.bool_)
    mask[fleet.placed_pods.numbers()] = True
    mask[fleet.placed_pods.numbers_of(in_flight)] = False
    mask &= placed.priority < priority
    return mask


def without_lower_priority(fleet: Fleet, priority: int, in_flight: Collection[str] = frozenset()) -> Fleet:
    """Return a Fleet without the pods below a priority; only the resources and devices in it are valid."""
    placed = fleet.placed_pods.current(fleet)
    what_if = WhatIf(fleet, np.arange(len(fleet.names)), placed)
    for pods in one_pod_per_place(np.flatnonzero(_preemptible_below(fleet, priority, in_flight)), placed.rows):
        what_if.take(placed.rows[pods], pods)
    return what_if.fleet


def has_lower(fleet: Fleet, priority: int) -> bool:
    """Return whether any placed pod is below a priority."""
    return any(each < priority for each in fleet.priorities)


def nominated_fit(
    fleet: Fleet, pod: PendingPod, policy: Policy, node: str, movable: Collection[str] = frozenset()
) -> Charge | None:
    """Return a pod's charge on its nominated node once the leaving pods of lower priority are gone; None if unfit.

    `movable` are UIDs of further pods that may leave, if their priority is not higher.

    If pods on other nodes matter and some pods are still leaving, only the filters whose answer no eviction can change
    are run; the others run once the pods are gone, as in kube-scheduler.

    If a plug-in fails, the result is None as well: no capacity can be kept, and the pod's decision reports the error.
    """
    row = fleet.rows.get(node)
    if row is None:
        return None
    try:
        with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
            gone = [
                each
                for each in fleet.on_node(node)
                if (each.priority < pod.priority and fleet.is_leaving(each))
                or (each.priority <= pod.priority and each.uid in movable)
            ]
            return _fit_without(fleet, row, pod, policy, gone)
    except PluginFailedError:
        return None


def _fit_without(fleet: Fleet, row: int, pod: PendingPod, policy: Policy, leaving: Sequence[Charge]) -> Charge | None:
    after = _excerpt_without(fleet, row, leaving)
    other_filters = [each for each in policy.filters_of(pod.request) if each not in policy.local]
    if leaving and not is_local(fleet, pod.request):
        other_filters = [each for each in other_filters if each.VERDICT is Verdict.UNRESOLVABLE]
    fits = (
        cycle.feasible(after, pod.request, policy.local)[0] and cycle.feasible(fleet, pod.request, other_filters)[row]
    )
    return _nominee(after, 0, pod, policy, fleet.names[row]) if fits else None


def nominated_pods(pods: Iterable[PendingPod]) -> list[PendingPod]:
    """Return the pods with a nominated node, in the order in which capacity is kept for them."""
    with_node = (each for each in pods if each.nominated_node)
    return sorted(with_node, key=lambda each: (-each.priority, each.created, each.arrived, each.uid))


class WithoutLowerPriority:
    """The capacity of one node for pods of each priority if all pods below were evicted; a snapshot."""

    def __init__(self, fleet: Fleet, node: str) -> None:
        self._fleet, self._node = fleet, node
        self._stages: dict[int, Fleet] = {}

    def may_take(self, unit: PendingPod | Gang, deleted: Charge, pod_filters: Sequence[Filter]) -> bool:
        """Return whether a unit without victims may find some now that a pod is gone that it could not evict.

        `pod_filters` are the filters that may reject the unit.
        """
        priority = unit.lowest if isinstance(unit, Gang) else unit.priority
        if deleted.priority < priority:
            return False
        if priority not in self._stages:
            lower = [each for each in self._fleet.on_node(self._node) if each.priority < priority]
            self._stages[priority] = _excerpt_without(self._fleet, self._fleet.rows[self._node], lower)
        return any(filters.has_capacity(pod_filters, self._stages[priority], each, 0) for each in set(unit.requests))


def add_preemption(failure: Failure, text: str) -> Failure:
    """Return a failure with the result of preemption added to its message."""
    return replace(failure, message=cut(f"{failure.message} preemption: {text}"))


def not_tried(fleet: Fleet, pod: PendingPod, policy: Policy, failure: Failure) -> Failure | None:
    """Return the failure, with the reason, of a pod that is not eligible for preemption; None if it is eligible."""
    if not policy.preemption or not fleet.present.any():
        return failure
    return None if pod.preempts and has_lower(fleet, pod.priority) else not_helpful(fleet, pod, policy, failure)


def not_helpful(
    fleet: Fleet, pod: PendingPod, policy: Policy, failure: Failure, in_flight: Collection[str] = frozenset()
) -> Failure:
    """Return a failure with the reasons why evictions help on no node."""
    return add_preemption(failure, why_not(fleet, pod, policy, failure, in_flight))


def why_not(
    fleet: Fleet, pod: PendingPod, policy: Policy, failure: Failure, in_flight: Collection[str] = frozenset()
) -> str:
    """Return the reasons why evictions help on no node, counted as in kube-scheduler's dry run."""
    if not pod.preempts:
        return NEVER
    nodes = int(fleet.present.sum())
    if has_lower(fleet, pod.priority):
        with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
            counts = _dry_run(fleet, pod, policy, in_flight)
    else:
        counts = Counter({NOT_HELPFUL: failure.unresolvable, NO_VICTIMS: nodes - failure.unresolvable})
    return fit_error(nodes, +counts)


def _dry_run(fleet: Fleet, pod: PendingPod, policy: Policy, in_flight: Collection[str]) -> Counter[str]:
    """Count the nodes by the reason why the pod would not fit even without all pods of lower priority."""
    request, pod_filters = pod.request, policy.filters_of(pod.request)
    resolvable = _resolvable(fleet, request, pod_filters)
    lower = np.zeros(len(fleet.names), np.bool_)
    lower[fleet.placed_pods.current(fleet).rows[_preemptible_below(fleet, pod.priority, in_flight)]] = True
    counts = Counter(
        {NOT_HELPFUL: int((fleet.present & ~resolvable).sum()), NO_VICTIMS: int((resolvable & ~lower).sum())}
    )
    left = resolvable & lower
    if left.any():
        without = without_lower_priority(fleet, pod.priority, in_flight)
        # Filters that read the unchanged Fleet and are resolvable run last: they may reject because of the victims.
        for filter_ in sorted(
            pod_filters, key=lambda each: each not in policy.local and each.VERDICT is Verdict.UNSCHEDULABLE
        ):
            view = without if filter_ in policy.local else fleet
            rejected = left & ~filter_.passes(view, request)
            if rejected.any():
                counts += count_reasons(filter_.reasons(view, request, rejected))
                left &= ~rejected
        counts[NO_VICTIMS] += int(left.sum())
    return counts


def _resolvable(fleet: Fleet, request: PodRequest, pod_filters: Sequence[Filter]) -> Mask:
    """Return the rows that kube-scheduler's dry run would try: their first rejection is resolvable."""
    mask = np.zeros(len(fleet.names), np.bool_)
    for filter_, rejected in cycle.rejections(fleet, request, pod_filters):
        mask |= rejected & ~filters.unresolvable(filter_, fleet, request, rejected)
    return mask


# --- candidates ---------------------------------------------------------------------------------------------------


def candidate_rows(fleet: Fleet, request: PodRequest, policy: Policy) -> Mask:
    """Return the rows where evictions may help: the first rejection is of pods, and the empty node would pass."""
    mask = np.zeros(len(fleet.names), np.bool_)
    for filter_, rejected in cycle.rejections(fleet, request, policy.filters_of(request)):
        if filter_.VERDICT is Verdict.UNSCHEDULABLE:
            mask |= rejected
    for filter_ in policy.filters_of(request):
        if (bounded := filters.as_bounded(filter_)) is not None:
            mask &= bounded.could_pass(fleet, request)
    return mask


def is_local(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether only the resources and devices of a row's own pods decide whether the pod fits there."""
    affinity = request.affinity
    if (
        request.ports
        or request.mounts
        or affinity.required_affinity
        or affinity.required_anti_affinity
        or affinity.topology_spread
    ):
        return False
    return not any(True for _ in fleet.affinity_index.existing_anti_affinity(request.identity))


def _excerpt_without(fleet: Fleet, row: int, removed: Sequence[Charge]) -> Fleet:
    what_if = WhatIf(fleet, np.array([row]), PlacedPods.of(fleet, removed))
    for pod in range(len(removed)):
        what_if.take(np.array([0]), np.array([pod]))
    what_if.let_go(0, np.arange(len(removed)))
    return what_if.fleet


def _nominee(stage: Fleet, at: int, pod: PendingPod, policy: Policy, node: str) -> Charge:
    grants = policy.choose(stage, at, pod.request)
    return Placement(pod=pod, node=node, grants=grants).charge


# --- the search ---------------------------------------------------------------------------------------------------


class _Search:
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
        self._going = np.flatnonzero(lower & leaving)
        self._base = WhatIf(fleet, self._rows, placed)
        """All places without the pods that are already leaving."""
        for pods in one_pod_per_place(self._going, self._sorts_by):
            self._base.take(self._place[pods], pods)
        ranked = self._by_importance(np.flatnonzero(lower & ~leaving))
        self._violating = _violating(fleet, placed, ranked, self._place, budgets)
        self._staying = ranked[np.argsort(~self._violating[ranked], kind="stable")]
        """The potential victims, in the order in which they are reprieved."""

    def _by_importance(self, pods: Indices) -> Indices:
        """Return pods by importance: the highest priority first, then the earliest start."""
        order = np.lexsort((self._placed.started[pods], -self._placed.priority[pods]))
        return pods[order]

    def ranked(self) -> Indices:
        """Return the rows where the pod would fit, the best first."""
        fits, victims = self._reprieve_all()
        return self._rows[self._order(victims, fits)]

    def victims_by_node(self) -> dict[str, list[Charge]]:
        """Return each node where the pod would fit, with its victims without those that go in any case."""
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
        if is_local(self._fleet, self._request):
            return self._preemption(self._smaller_set(order, victims) or self._choice(order[0], victims))
        return self._best_by_all_filters(order, victims)

    # --- all places at once -------------------------------------------------------------------------------------

    def _reprieve_all(self) -> tuple[Mask, Mask]:
        """Return the places where the pod would fit by the row's own pods, and the pods to evict there."""
        what_if = WhatIf(self._base.fleet, np.arange(len(self._rows)), self._placed)
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
        order = np.lexsort(keys[::-1])
        return order[fits[order]]

    def _keys(self, of: Indices, pods: Indices, sets: int) -> Keys:
        """Return the keys by which sets of victims are compared; `of` has the set of each pod."""
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
        """Search the best places for a smaller set of victims: reprieving one by one need not find the smallest."""
        pods = np.flatnonzero(victims)
        violations, highest, _, number, _ = self._keys(self._place[pods], pods, len(self._rows))
        best = order[0]
        equal = (violations[order] == violations[best]) & (highest[order] == highest[best])
        finalists = order[equal & (number[order] > 1)]
        allowed = self._staying[self._placed.priority[self._staying] <= highest[best]]
        if not violations[best]:
            allowed = allowed[~self._violating[allowed]]
        current, trials = self._choice(best, victims), MAX_TRIALS
        for size in range(1, int(number[best]) + 1 if finalists.size else 0):
            places, candidates = sets(self._sorts_by, allowed, finalists, size, trials)
            better = self._best_of([*self._fitting(places, candidates), current])
            trials -= len(candidates)
            if better is not current:
                return better
        return None

    def _fitting(self, places: Indices, sets: Indices) -> Iterator[_Choice]:
        """Yield the sets without which the pod fits."""
        what_if, all_whatifs = WhatIf(self._base.fleet, places, self._placed), np.arange(len(places))
        for pods in sets.T:
            what_if.take(all_whatifs, pods)
        for at in np.flatnonzero(what_if.fits(self._request, self._policy)).tolist():
            yield _Choice(place=int(places[at]), victims=sets[at])

    def _best_of(self, choices: Sequence[_Choice]) -> _Choice:
        of = np.repeat(np.arange(len(choices)), [len(each.victims) for each in choices])
        pods = np.concatenate([each.victims for each in choices])
        places = np.array([each.place for each in choices])
        return choices[int(np.lexsort((places, *self._keys(of, pods, len(choices))[::-1]))[0])]

    # --- one place at a time ------------------------------------------------------------------------------------

    def _best_by_all_filters(self, order: Indices, victims: Mask) -> Preemption | None:
        """Evaluate the best places by all filters, until none of the others can be better."""
        whole, best = self._fleet.copy(), None
        for place in order[:MAX_COUPLED_NODES].tolist():
            least = self._choice(place, victims)
            if best is not None and self._key(best) <= self._lower_bound(least):
                break
            exact = self._exact_choice(whole, least)
            if exact is not None:
                best = exact if best is None else self._best_of([best, exact])
        return None if best is None else self._preemption(best)

    def _key(self, choice: _Choice) -> tuple[int, ...]:
        """Return the keys by which choices are compared, without the age of the victims."""
        of = np.zeros(len(choice.victims), np.intp)
        return tuple(int(each[0]) for each in self._keys(of, choice.victims, 1)[:-1])

    def _lower_bound(self, least: _Choice) -> tuple[int, ...]:
        """Return a lower bound of the key of any choice on a place, from the victims for its resources and cards.

        Further victims may make some of these unnecessary, so only one victim of the highest priority is certain.
        """
        violations, highest, *_ = self._key(least)
        if violations or not len(least.victims):
            return min(violations, 1), LOWEST_PRIORITY
        return 0, highest, highest + OFFSET, 1

    def _exact_choice(self, whole: Fleet, least: _Choice) -> _Choice | None:
        """Return the victims on a place, `least` if they suffice; None if the pod does not fit without all of them."""
        row, necessary = self._rows[least.place], set(least.victims.tolist())
        going = self._going[self._place[self._going] == least.place].tolist()
        potential = self._staying[self._place[self._staying] == least.place].tolist()
        with released(whole, [self._placed.charges[each] for each in (*going, *potential)]):
            if not cycle.feasible(whole, self._request, self._filters)[row]:
                return None
            spared = [each for each in potential if each not in necessary]
            if self._reprieve(whole, row, spared):
                return least
            victims = [each for each in potential if not self._reprieve(whole, row, [each])]
        return _Choice(place=least.place, victims=np.array(victims, np.intp))

    def _reprieve(self, whole: Fleet, row: int, pods: Sequence[int]) -> bool:
        """Charge pods to their row again unless the new pod then fails to fit; return whether it fits."""
        for pod in pods:
            whole.charge(self._placed.charges[pod])
        fits = bool(cycle.feasible(whole, self._request, self._filters)[row])
        for pod in () if fits else pods:
            whole.release(self._placed.charges[pod].uid)
        return fits

    # --- the outcome --------------------------------------------------------------------------------------------

    def _preemption(self, choice: _Choice) -> Preemption:
        what_if = WhatIf(self._base.fleet, np.array([choice.place]), self._placed)
        for pod in choice.victims:
            what_if.take(np.array([0]), np.array([pod]))
        going = self._going[self._place[self._going] == choice.place]
        what_if.let_go(0, np.concatenate((choice.victims, going)))
        node = self._fleet.names[self._rows[choice.place]]
        return Preemption(
            nominee=_nominee(what_if.fleet, 0, self._pod, self._policy, node),
            victims=tuple(self._placed.charges[each] for each in self._by_importance(choice.victims)),
            violations=int(self._violating[choice.victims].sum()),
        )


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


def _violating(fleet: Fleet, placed: PlacedPods, ranked: Indices, place: Indices, budgets: Budgets) -> Mask:
    """Return the pods whose eviction would violate a budget; more important pods of a row use it up first.

    This is kube-scheduler's rule, too.
    """
    mask = np.zeros(len(placed.charges), np.bool_)
    if not budgets:
        return mask
    spent = budgets.spent(fleet)
    for budget, protected in _protected(placed, ranked, budgets).items():
        pods = np.array(protected, np.intp)
        by_place = pods[np.argsort(place[pods], kind="stable")]
        mask[by_place[rank_within_place(place[by_place]) >= budget.allowed - spent[budget]]] = True
    return mask


def _protected(placed: PlacedPods, ranked: Indices, budgets: Budgets) -> dict[Budget, list[int]]:
    """Return the pods that each budget protects, the most important first."""
    by_budget: defaultdict[Budget, list[int]] = defaultdict(list)
    for pod in ranked.tolist():
        for budget in budgets.counting(placed.charges[pod]):
            by_budget[budget].append(pod)
    return by_budget
