"""Choose the pods of lower priority to evict from a node so that a pod fits there.

    preempt(fleet, pod, policy, budgets, unconfirmed)  ->  Preemption | None

The steps follow kube-scheduler's DefaultPreemption. A node is a candidate if every filter that rejects it is
resolvable. All pods of lower priority are removed from a candidate. If the pod then fits, as many of them as possible
are reprieved: first the pods that a PodDisruptionBudget protects, then by priority and age. The rest are the victims.
So each victim frees something that the pod needs: its cpu, its port, or its cards. Candidates are compared by the
number of budget violations, the highest priority of a victim, the sum of priorities, and the number of victims. The
lowest value is best in all of these. Last, the start times of the most important victims are compared, and the latest
is best.

Unlike kube-scheduler, Berth evaluates every node instead of a tenth of them. It then searches the best nodes for
smaller sets of victims (docs/decisions/0008-preemption.md). Pods that are already leaving cost nothing.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from berth_operator.core import filters
from berth_operator.core.decision import cycle
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.departures import Departures
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.messages import cut, fit_error, with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.victims import Preemption, VictimSearch, excerpt_without, is_local, nominee_on
from berth_operator.core.decision.what_if import WhatIf, one_pod_per_place
from berth_operator.core.filters import Filter
from berth_operator.core.filters.reasons import count_reasons
from berth_operator.core.fleet import claim_counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_leftover, leaves_soon
from berth_operator.core.fleet.nodes.cards import Indices, Mask
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values import releases
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import Verdict

NEVER: Final = "not eligible due to preemptionPolicy=Never."
TERMINATING: Final = "not eligible due to a terminating pod on the nominated node."
PAUSED: Final = "not eligible due to a pause after rejections by the nominated node's kubelet."
BACKING_OFF: Final = "not eligible due to the back-off of its preemption."
NOT_HELPFUL: Final = "Preemption is not helpful for scheduling"
NO_VICTIMS: Final = "No preemption victims found for incoming pod"
NODE_BACKS_OFF: Final = "node(s) are in the back-off of the pod's preemption"


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

    `in_flight` are UIDs of pods whose Binding is not confirmed yet. They are not evicted. `within` restricts the
    candidate nodes to a mask.
    """
    if not policy.preemption or not pod.preempts or pod.backoff.everywhere or not has_lower(fleet, pod.priority):
        return None
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        lower = _potential_victims(fleet, pod, policy, in_flight, within)
        return VictimSearch(fleet, pod, policy, lower, budgets).best() if lower.any() else None


def ranked_rows(
    fleet: Fleet, pod: PendingPod, policy: Policy, budgets: Budgets, in_flight: Collection[str] = frozenset()
) -> Indices:
    """Return the rows where evictions would let a pod fit, the best first, considering only the row's own pods."""
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        lower = _potential_victims(fleet, pod, policy, in_flight)
        return VictimSearch(fleet, pod, policy, lower, budgets).ranked() if lower.any() else np.zeros(0, np.intp)


def victims_by_rank(
    fleet: Fleet, pod: PendingPod, policy: Policy, budgets: Budgets, in_flight: Collection[str] = frozenset()
) -> list[list[Charge]]:
    """Return the victims on each of these rows, the best row first."""
    with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
        lower = _potential_victims(fleet, pod, policy, in_flight)
        if not lower.any():
            return []
        search = VictimSearch(fleet, pod, policy, lower, budgets)
        by_node = search.victims_by_node()
        return [by_node[fleet.names[row]] for row in search.ranked()]


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
        settled = [filter_ for filter_ in policy.filters_of(pod.request) if filter_.VERDICT is Verdict.UNRESOLVABLE]
        passes = cycle.feasible(fleet, pod.request, settled)
        rows = np.array(
            [row for name in proposed if (row := fleet.rows.get(name)) is not None and passes[row]], np.intp
        )
        uids = {uid for uids in proposed.values() for uid in uids}
        lower = preemptible_below(fleet, pod.priority, set(in_flight) - uids)
        lower &= np.isin(fleet.placed_pods.current(fleet).rows, rows)
        search = VictimSearch(fleet, pod, policy, lower, budgets, proposed=uids, rows=rows)
        return search.victims_by_node()


def violations(fleet: Fleet, victims: Sequence[Charge], budgets: Budgets) -> int:
    """Return how many of the victims on one node violate a PodDisruptionBudget."""
    return budgets.violations(victims, budgets.spent(fleet))


def _potential_victims(
    fleet: Fleet, pod: PendingPod, policy: Policy, in_flight: Collection[str], within: Mask | None = None
) -> Mask:
    """Return for each placed pod whether it may be a victim on a row where evictions may help."""
    rows = candidate_rows(fleet, pod.request, policy)
    rows[_rows_of(fleet, pod.backoff.nodes)] = False
    if within is not None:
        rows &= within
    lower = preemptible_below(fleet, pod.priority, in_flight)
    lower &= rows[fleet.placed_pods.current(fleet).rows]
    return lower


def _rows_of(fleet: Fleet, nodes: Collection[str]) -> list[int]:
    """Return the rows of the nodes that are known."""
    return [fleet.rows[node] for node in nodes if node in fleet.rows]


def preemptible_below(fleet: Fleet, priority: int, in_flight: Collection[str]) -> Mask:
    """Return for each placed pod whether it is confirmed, may be deleted, is not overdue, and below a priority."""
    placed = fleet.placed_pods.current(fleet)
    mask = np.zeros(len(placed.charges), np.bool_)
    mask[fleet.placed_pods.numbers()] = True
    # Another deletion would not help a pod that does not end.
    mask[fleet.placed_pods.numbers_of([*in_flight, *fleet.overdue, *fleet.undeletable])] = False
    mask &= placed.priority < priority
    return mask


def without_lower_priority(fleet: Fleet, priority: int, in_flight: Collection[str] = frozenset()) -> Fleet:
    """Return a Fleet without the pods below a priority; only the resources and devices in it are valid."""
    placed = fleet.placed_pods.current(fleet)
    what_if = WhatIf(fleet, np.arange(len(fleet.names)), placed)
    for pods in one_pod_per_place(np.flatnonzero(preemptible_below(fleet, priority, in_flight)), placed.rows):
        what_if.take(placed.rows[pods], pods)
    return what_if.fleet


def has_lower(fleet: Fleet, priority: int) -> bool:
    """Return whether any placed pod is below a priority."""
    return any(placed < priority for placed in fleet.priorities)


def nominated_fit(
    fleet: Fleet, pod: PendingPod, policy: Policy, node: str, movable: Collection[str] = frozenset()
) -> Charge | None:
    """Return a pod's charge on its nominated node once the leaving pods of lower priority are gone; None if unfit.

    Devices that deleted pods still hold count as leaving, too. A victim is charged until its node's agent reports that
    kubelet has released its devices. What is overdue does not count.

    `movable` are UIDs of further pods that may leave, if their priority is not higher.

    A pause after rejections by its kubelet does not count: the pod waits for its end.

    If pods on other nodes matter and some pods are still leaving, only the filters whose answer no eviction can change
    are run. The other filters run once the pods are gone, as in kube-scheduler.

    If a plug-in fails, the result is also None: no capacity can be kept, and the pod's decision reports the error.
    """
    row = fleet.rows.get(node)
    if row is None:
        return None
    try:
        with fleet.without(fleet.lower_priority_nominees(pod.uid, pod.priority)):
            gone = leaving(fleet, fleet.on_node(node), pod.priority)
            moved = set(movable) - fleet.overdue - {charge.uid for charge in gone}
            gone += [
                charge for charge in fleet.on_node(node) if charge.priority <= pod.priority and charge.uid in moved
            ]
            order = [filter_ for filter_ in policy.filters_of(pod.request) if not filter_.TRAITS.ends_by_itself]
            if claim_counts.is_searched(fleet, pod.request):
                what_if = Departures.for_pod(fleet, pod.request)
                what_if.leave(gone)
                fits = what_if.fits(row, pod.request, order)
                return nominee_on(what_if.fleet, row, pod, policy) if fits else None
            after = excerpt_without(fleet, row, gone, with_cards=bool(pod.request.devices.parts))
            others = [filter_ for filter_ in order if filter_ not in policy.local]
            if gone and not is_local(fleet, pod.request):
                others = [filter_ for filter_ in others if filter_.VERDICT is Verdict.UNRESOLVABLE]
            fits = cycle.feasible(after, pod.request, policy.local)[0]
            fits = fits and cycle.feasible(fleet, pod.request, others)[row]
            return nominee_on(after, 0, pod, policy) if fits else None
    except PluginFailedError:
        return None


def leaving(fleet: Fleet, charges: Iterable[Charge], priority: int) -> list[Charge]:
    """Return the pods below a priority that are terminating or being evicted, and what deleted pods still hold.

    What is overdue is left out.
    """
    return [
        charge
        for charge in charges
        if leaves_soon(fleet, charge) and (charge.priority < priority or is_leftover(charge))
    ]


def is_taken(fleet: Fleet, pod: PendingPod, policy: Policy, node: str) -> bool:
    """Return whether other pods are all that a pod does not fit on a node for: evictions may change each rejection."""
    row = fleet.rows.get(node)
    if row is None or not fleet.present[row]:
        return False
    return all(filters.could_pass(each, fleet, pod.request)[row] for each in policy.filters_of(pod.request))


def nominated_pods(pods: Iterable[PendingPod]) -> list[PendingPod]:
    """Return the pods with a nominated node, in the order in which capacity is kept for them."""
    with_node = (pod for pod in pods if pod.nominated_node)
    return sorted(with_node, key=lambda pod: (-pod.priority, pod.created, pod.arrived, pod.uid))


class WithoutLowerPriority:
    """A snapshot of one node's capacity for pods of each priority, if all pods of lower priority were evicted."""

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
        if not all(may_free_devices(self._fleet, request, self._node, priority) for request in set(unit.requests)):
            return False
        if priority not in self._stages:
            lower = [charge for charge in self._fleet.on_node(self._node) if charge.priority < priority]
            self._stages[priority] = excerpt_without(self._fleet, self._fleet.rows[self._node], lower)
        return any(
            filters.has_capacity(pod_filters, self._stages[priority], request, 0) for request in set(unit.requests)
        )


def may_free_devices(fleet: Fleet, request: PodRequest, node: str, priority: int) -> bool:
    """Return whether the pods of a node below a priority hold as many devices as a request's claims lack there."""
    if not claim_counts.is_searched(fleet, request):
        return True
    missing = int(claim_counts.missing_devices(fleet, request)[fleet.rows[node]])
    lower = [charge for charge in fleet.on_node(node) if charge.priority < priority]
    held = sum(fleet.claimed_devices(charge.uid) for charge in lower)
    held += sum(len(claim.devices) for claim in fleet.claims.left_behind() if node in claim.nodes)
    return missing <= held or any(charge.grants for charge in lower)


def found(fleet: Fleet, preemption: Preemption) -> str:
    """Return the message that kube-scheduler shows for a pod for which victims were just chosen."""
    if fleet.kubernetes < releases.PREEMPTION_FOUND:
        return TERMINATING
    node, victims = preemption.nominee.node, len(preemption.victims)
    return f"found a potential placement for pod on node {node}, preempting {victims} victims"


def add_preemption(failure: Failure, text: str) -> Failure:
    """Return a failure with the result of preemption added to its message."""
    return replace(failure, message=cut(f"{failure.message} preemption: {text}"))


def not_tried(fleet: Fleet, pod: PendingPod, policy: Policy, failure: Failure) -> Failure | None:
    """Return the failure, with the reason, of a pod that is not eligible for preemption; None if it is eligible."""
    if not policy.preemption or not fleet.present.any():
        return failure
    may_help = pod.preempts and not pod.backoff.everywhere and has_lower(fleet, pod.priority)
    return None if may_help else not_helpful(fleet, pod, policy, failure)


def not_helpful(
    fleet: Fleet, pod: PendingPod, policy: Policy, failure: Failure, in_flight: Collection[str] = frozenset()
) -> Failure:
    """Return a failure with the reasons why evictions help on no node, or are not tried there now."""
    failure = add_preemption(failure, why_not(fleet, pod, policy, failure, in_flight))
    return replace(failure, message=with_note(failure.message, pod.backoff.note)) if pod.backoff else failure


def why_not(
    fleet: Fleet, pod: PendingPod, policy: Policy, failure: Failure, in_flight: Collection[str] = frozenset()
) -> str:
    """Return the reasons why evictions help on no node, counted as in kube-scheduler's dry run."""
    if not pod.preempts:
        return NEVER
    if pod.backoff.everywhere:
        return BACKING_OFF
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
    # The rows that kube-scheduler's dry run would try: their first rejection is resolvable.
    resolvable = np.zeros(len(fleet.names), np.bool_)
    for filter_, rejected in cycle.rejections(fleet, request, pod_filters):
        resolvable |= rejected & ~filters.unresolvable(filter_, fleet, request, rejected)
    lower = np.zeros(len(fleet.names), np.bool_)
    lower[fleet.placed_pods.current(fleet).rows[preemptible_below(fleet, pod.priority, in_flight)]] = True
    counts = Counter(
        {NOT_HELPFUL: int((fleet.present & ~resolvable).sum()), NO_VICTIMS: int((resolvable & ~lower).sum())}
    )
    left = resolvable & lower
    if left.any():
        without = without_lower_priority(fleet, pod.priority, in_flight)
        # Filters that read the unchanged Fleet and are resolvable run last: they may reject because of the victims.
        for filter_ in sorted(
            pod_filters, key=lambda filter_: filter_ not in policy.local and filter_.VERDICT is Verdict.UNSCHEDULABLE
        ):
            view = without if filter_ in policy.local else fleet
            rejected = left & ~filter_.passes(view, request)
            if rejected.any():
                counts += count_reasons(filter_.reasons(view, request, rejected))
                left &= ~rejected
        backs_off = np.zeros(len(fleet.names), np.bool_)
        backs_off[_rows_of(fleet, pod.backoff.nodes)] = True
        counts[NODE_BACKS_OFF] += int((left & backs_off).sum())
        counts[NO_VICTIMS] += int((left & ~backs_off).sum())
    return counts


# --- candidates ---------------------------------------------------------------------------------------------------


def candidate_rows(fleet: Fleet, request: PodRequest, policy: Policy) -> Mask:
    """Return the rows where evictions may help: a filter whose answer they can change rejects the row, and no other."""
    passes_all, mask = fleet.present.copy(), fleet.present.copy()
    only_capacity = is_local(fleet, request)
    for filter_, passes in cycle.in_order(request, policy.filters_of(request)):
        passed = passes(fleet, request)
        passes_all &= passed
        # A later filter counts as well as the first: whatever it rejects, its node would lose pods in vain.
        is_final = filter_.VERDICT is Verdict.UNRESOLVABLE or (only_capacity and filter_ not in policy.local)
        mask &= passed if is_final else filters.could_pass(filter_, fleet, request)
    return mask & ~passes_all
