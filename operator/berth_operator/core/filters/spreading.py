"""Count and weigh pods for topology spread constraints. The filter and the scores share this code."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.values.selectors import EVERYTHING, NOTHING, LabelSelector
from berth_operator.core.filters import node_affinity, node_selector, taints
from berth_operator.core.fleet.arrays.tally import Counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.affinity import Peers, PodSelection, TopologySpreadConstraint
from berth_operator.core.values.request import PodRequest

HOSTNAME: Final = "kubernetes.io/hostname"
"""The key whose domains are nodes: kube-scheduler counts per node, regardless of node policies and label values."""

Amounts = npt.NDArray[np.float64]


def counted_pods(request: PodRequest, constraint: TopologySpreadConstraint) -> PodSelection:
    """Return the selection of pods that count: in the pod's namespace, matching, and not terminating.

    An empty selector matches every pod; however, kube-scheduler then counts no pod but the new pod itself.
    """
    return _counted(request, NOTHING if constraint.selector == EVERYTHING else constraint.selector)


def _counted(request: PodRequest, selector: LabelSelector) -> PodSelection:
    return PodSelection(
        peers=(Peers(selector=selector, namespaces=(request.identity.namespace,)),), exclude_terminating=True
    )


def default_spread_counts(fleet: Fleet, request: PodRequest) -> Counts | None:
    """Return for each row the number of pods that the default spread counts; None if it does not apply to the pod.

    These are the replicas of the pod's controller or, for a pod without a controller, the pods of the same Services.
    """
    if request.affinity.topology_spread or request.affinity.preferred_topology_spread:
        return None
    if request.identity.controller:
        return fleet.affinity_index.replicas.count(request.identity.controller)
    selector = fleet.affinity_index.services.selector_of(request.identity)
    return None if selector is NOTHING else fleet.affinity_index.count(_counted(request, selector))


def eligible(fleet: Fleet, request: PodRequest, constraint: TopologySpreadConstraint, keyed: Mask) -> Mask:
    """Return the rows among `keyed` that the constraint's node policies include."""
    mask = keyed.copy()
    if constraint.honor_affinity:
        mask &= node_selector.passes(fleet, request) & node_affinity.passes(fleet, request)
    if constraint.honor_taints:
        # A cordon counts by its taint, not by `spec.unschedulable`.
        mask &= fleet.present
        for taint, rows in fleet.taints().items():
            if taint.effect != "PreferNoSchedule" and taint != taints.PREEMPTING and not request.tolerates(taint):
                mask &= ~rows
    return mask


def score_for_count(counts: Counts, domains: int, max_skew: int) -> Amounts:
    """Weigh pod counts; the logarithm balances keys with few, full domains and keys with many domains."""
    weighed: Amounts = counts * np.log(domains + 2) + (max_skew - 1)
    return weighed


def normalised(total: Amounts, candidates: Mask) -> Amounts:
    """Return scores from integral crowding: the emptiest candidate has the highest score."""
    candidate_totals = total[candidates]
    lowest, highest = candidate_totals.min(initial=np.inf), candidate_totals.max(initial=0.0)
    if highest == 0:
        return np.where(candidates, 100.0, 0.0)
    # All values are small integers, so rounding errors cannot turn a fractional quotient into an integer.
    return np.where(candidates, np.floor(100.0 * (highest + lowest - total) / highest), 0.0)
