"""Nodes that would take a pod if no pods were there: for pods with ResourceClaims, the search for devices decides.

    of_pod(fleet, pod, policy, order)  ->  EmptyNodes

Counts of devices are upper bounds: they do not compare capacities, constraints, or the requests of a pod with each
other. So the search runs on each node, in a copy of the Fleet whose nodes are in service and empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth_operator.core.advice import new_nodes
from berth_operator.core.claims.bounds.work import Work
from berth_operator.core.decision.policy import Policy
from berth_operator.core.filters import Filter, dynamic_resources
from berth_operator.core.fleet import claim_choice, claim_counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PendingPod

MAX_NODES: Final = 32
"""Nodes on which devices are searched for one pod."""
MAX_WORK: Final = 20_000
"""Work of these searches, as in `dra.work`: about 40 ms. For 32 nodes of eight cards, they take 25 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyNodes:
    """Which nodes would take a pod if they were in service and had no other pods."""

    rows: Mask
    """The rows that would take it."""
    not_searched: Mask
    """The rows for which that is not known, because a bound ended the search."""


def of_pod(fleet: Fleet, pod: PendingPod, policy: Policy, order: Sequence[Filter]) -> EmptyNodes:
    """Return which nodes would take a pod. Affinity to other pods is ignored. The Fleet is left unchanged."""
    suits = new_nodes.suiting(fleet, pod.request, order)
    by_counts, otherwise = suits.get(dynamic_resources.NAME, fleet.present), fleet.present
    for name, passes in suits.items():
        if name != dynamic_resources.NAME:
            otherwise = otherwise & passes
    rows, none = otherwise & by_counts, np.zeros_like(fleet.present)
    if not claim_counts.is_searched(fleet, pod.request):
        return EmptyNodes(rows=rows, not_searched=none)
    not_counted = claim_counts.rows_not_counted(fleet, pod.request)
    searched = np.flatnonzero(rows & ~not_counted)[:MAX_NODES].tolist()
    not_searched = otherwise & (by_counts | not_counted)
    not_searched[searched] = False
    found, ended = _search(fleet, pod, policy, searched) if searched else ([], [])
    rows = none
    rows[found] = True
    not_searched[ended] = True
    return EmptyNodes(rows=rows, not_searched=not_searched)


def _search(fleet: Fleet, pod: PendingPod, policy: Policy, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the rows where the search finds devices, and the rows where it ended at a bound."""
    empty = _emptied(fleet, pod, rows)
    local = [filter_ for filter_ in policy.local if filter_ in policy.filters_of(pod.request)]
    found, ended = list[int](), list[int]()
    for place, row in enumerate(rows):
        if empty.claims.supply.work.is_over():
            ended += rows[place:]
            break
        if not all(bool(filter_.passes(empty, pod.request)[row]) for filter_ in local):
            continue
        grants = policy.choose(empty, row, pod.request)
        if claim_choice.choose(empty, row, pod, grants, first_fit=policy.takes_first_devices) is not None:
            found.append(row)
        elif empty.claims.supply.work.is_over() or empty.names[row] in claim_counts.nodes_not_searched(
            empty, pod.request
        ):
            ended.append(row)
        if claim_counts.refusal(empty, pod.request):
            break
    return found, ended


def _emptied(fleet: Fleet, pod: PendingPod, rows: Sequence[int]) -> Fleet:
    """Return a copy of the Fleet in which these rows are in service and no pod and no other claim holds anything."""
    empty = fleet.copy(until_changes=True)
    for name in map(fleet.names.__getitem__, rows):
        for charge in (*empty.nominees_on(name), *empty.on_node(name)):
            empty.withdraw(charge.uid)
            empty.release(charge.uid)
        if empty.has_device[empty.rows[name]]:
            empty.set_fresh(name, fresh=True)
    own = [state for state in claim_counts.states(empty, pod.request) if state.allocation]
    empty.claims.supply = empty.claims.supply.emptied(own)
    empty.claims.supply.work = Work(MAX_WORK)
    return empty
