"""Explain node by node why a pod fits nowhere now, by the filters of its decision.

    explain(fleet, pod, policy)  ->  Explanation

A node has a reason from every filter that rejects it. The pod's condition counts the first of them. Both come from the
same call, so they always agree. A node that lacks only amounts is *near*, and `lacking` lists the amounts. An
explanation costs about ten decisions, however large the fleet is.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth_api.objects.visibility import LackingNode, ReasonGroup
from berth_operator.core.advice import empty_nodes, lacking
from berth_operator.core.decision import cycle, preemption
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import Filter
from berth_operator.core.filters.reasons import join_reasons
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PendingPod, PodRequest

MAX_NEAREST: Final = 5
"""Nodes whose lack is computed."""
MAX_NAMES: Final = 100
"""Names of nodes of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionAnswer:
    """Whether evicting pods of lower priority would help. It names no pod."""

    node: str = ""
    """The node that would be nominated; empty if evictions do not help."""
    victims: int = 0
    message: str = ""
    """Why evictions do not help, in kube-scheduler's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a pod fits nowhere, or where it fits."""

    result: Placement | Failure
    """The decision itself."""
    groups: Sequence[ReasonGroup] = ()
    """The largest first. Nodes that pass every filter are in none: nominated pods keep them."""
    nearest: Sequence[LackingNode] = ()
    """The nodes with the fewest missing cards, then with the least of the scarcest resource missing, then by name."""
    fits_when_empty: int | None = None
    """The number of nodes that would take the pod if they were in service (ready, not cordoned, reporting) and had no
    other pods. Affinity to other pods is ignored. None if no node matters yet."""
    not_searched: int = 0
    """The number of further nodes for which that is not known, because a bound ended the search for devices."""
    preemption: PreemptionAnswer | None = None
    """None if it was not considered, or the policy never evicts pods."""


def explain(
    fleet: Fleet, pod: PendingPod, policy: Policy, budgets: Budgets | None = None, in_flight: Collection[str] = ()
) -> Explanation:
    """Explain the decision of a pod. The Fleet is left unchanged.

    Without `budgets`, preemption is not considered. `in_flight` are UIDs of pods whose Binding is not confirmed yet.
    These pods are not evicted.

    Raises:
        PluginFailedError: a plug-in failed.
    """
    result = cycle.decide(fleet, pod, policy)
    if isinstance(result, Placement) or pod.error:
        return Explanation(result=result)
    answer = None
    if budgets is not None and policy.preemption and fleet.present.any():
        chosen = None
        if preemption.not_tried(fleet, pod, policy, result) is None:
            chosen = preemption.preempt(fleet, pod, policy, budgets, in_flight)
        if chosen is not None:
            answer = PreemptionAnswer(node=chosen.nominee.node, victims=len(chosen.victims))
        else:
            why_not = preemption.why_not(fleet, pod, policy, result, in_flight)
            answer = PreemptionAnswer(message=f"{why_not} {pod.backoff.note}" if pod.backoff else why_not)
    request, order, local = pod.request, policy.filters_of(pod.request), {filter_.NAME for filter_ in policy.local}
    with cycle.above_nominees(fleet, pod):
        empty = empty_nodes.of_pod(fleet, pod, policy, order)
        when_empty = empty.rows
        # Those of them that no filter rejects except those of free resources and devices.
        near = when_empty
        for filter_ in order:
            if filter_.NAME not in local:
                near = near & filter_.passes(fleet, request)
        if request.devices:
            of_cards = fleet.has_device & fleet.fresh & fleet.suits_vendor(request.devices)
            for part in request.devices.parts:
                of_cards = of_cards & (fleet.cards[part.type].unknown == 0)
            without_grants = extended_resources.rows_without_grants(fleet, request)
            near = near & (of_cards if without_grants is None else of_cards | without_grants)
        lacks = (
            lacking.lack(fleet, row, request, policy)
            for row in lacking.ranked(fleet, request, near)[:MAX_NEAREST].tolist()
        )
        return Explanation(
            result=result,
            groups=_groups(fleet, request, order),
            nearest=[lack for lack in lacks if lack is not None],
            fits_when_empty=int(when_empty.sum()),
            not_searched=int(empty.not_searched.sum()),
            preemption=answer,
        )


def _groups(fleet: Fleet, request: PodRequest, order: Sequence[Filter]) -> list[ReasonGroup]:
    # (filter, reason, rows, whether the filter is the first to reject these rows).
    steps: list[tuple[Filter, str, Mask, bool]] = []
    left = fleet.present.copy()
    for filter_, passes in cycle.in_order(request, order):
        rejected = fleet.present & ~passes(fleet, request)
        for rows, is_first in ((rejected & left, True), (rejected & ~left, False)):
            if rows.any():
                reasons = filter_.reasons(fleet, request, rows)
                steps += [(filter_, reason, of_reason, is_first) for reason, of_reason in reasons]
        left &= ~rejected
    rows_of = _merged((reason, rows) for _, reason, rows, _ in steps)
    counted_of = _merged((reason, rows) for _, reason, rows, is_first in steps if is_first)
    filters_of = _merged((filter_.NAME, rows) for filter_, _, rows, _ in steps)
    groups = []
    for _, rows in join_reasons(iter(rows_of.items())) if rows_of else ():
        first, names = int(rows.argmax()), sorted(fleet.names[row] for row in np.flatnonzero(rows).tolist())
        groups.append(
            ReasonGroup(
                reasons=[reason for reason, mask in rows_of.items() if mask[first]],
                counted=[reason for reason, mask in counted_of.items() if mask[first]],
                filters=[name for name, mask in filters_of.items() if mask[first]],
                count=len(names),
                nodes=names[:MAX_NAMES],
            )
        )
    return sorted(groups, key=lambda group: (-group["count"], group["reasons"]))


def _merged(pairs: Iterator[tuple[str, Mask]]) -> dict[str, Mask]:
    """Return the rows of each text; texts keep their order."""
    merged: dict[str, Mask] = {}
    for text, rows in pairs:
        merged[text] = merged[text] | rows if text in merged else rows
    return {text: rows for text, rows in merged.items() if rows.any()}
