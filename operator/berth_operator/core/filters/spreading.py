"""What topology spread constraints count and how they weigh it, for the filter and the scores alike."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.selectors import EVERYTHING, NOTHING, LabelSelector
from berth_operator.core.filters import node_affinity, node_selector
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.tally import Counts
from berth_operator.core.values.affinity import Peers, PodSelection, Spread
from berth_operator.core.values.request import PodRequest

HOSTNAME: Final = "kubernetes.io/hostname"
"""Its domains are nodes: kube-scheduler counts on the node itself there, whatever the policies and the value."""

Amounts = npt.NDArray[np.float64]


def crowd(request: PodRequest, spread: Spread) -> PodSelection:
    """Return the pods that count: of the pod's namespace, not terminating.

    An empty selector matches every pod, but kube-scheduler lets none count then, only the pod itself.
    """
    return _living(request, NOTHING if spread.selector == EVERYTHING else spread.selector)


def _living(request: PodRequest, selector: LabelSelector) -> PodSelection:
    return PodSelection(peers=(Peers(selector=selector, namespaces=(request.identity.namespace,)),), living=True)


def alike(fleet: Fleet, request: PodRequest) -> Counts | None:
    """Return how many pods there are per row over which a pod is spread that says nothing of it; None of one that does.

    They are the replicas of its controller, and for a pod without one those behind the same Services.
    """
    if request.affinity.spread or request.affinity.preferred_spread:
        return None
    if request.identity.controller:
        return fleet.affinity_index.replicas.count(request.identity.controller)
    selector = fleet.affinity_index.services.beside(request.identity)
    return None if selector is NOTHING else fleet.affinity_index.count(_living(request, selector))


def eligible(fleet: Fleet, request: PodRequest, spread: Spread, keyed: Mask) -> Mask:
    """Return those of the keyed rows that the constraint's policies let in."""
    mask = keyed.copy()
    if spread.honor_affinity:
        mask &= node_selector.passes(fleet, request) & node_affinity.passes(fleet, request)
    if spread.honor_taints:
        mask &= _tolerated(fleet, request)
    return mask


def _tolerated(fleet: Fleet, request: PodRequest) -> Mask:
    """Return rows without an untolerated taint; the cordon counts by its taint here, not by the Node's field."""
    mask = fleet.present.copy()
    for taint, rows in fleet.taints().items():
        if taint.effect != "PreferNoSchedule" and not request.tolerates(taint):
            mask &= ~rows
    return mask


def crowding(counts: Counts, domains: int, max_skew: int) -> Amounts:
    """Weigh how many pods are around; the logarithm keeps a key of few, full domains from drowning one of many."""
    weighed: Amounts = counts * np.log(domains + 2) + (max_skew - 1)
    return weighed


def normalised(total: Amounts, candidates: Mask) -> Amounts:
    """Turn whole crowding into scores: the emptiest candidate has the most."""
    among = total[candidates]
    lowest, highest = among.min(initial=np.inf), among.max(initial=0.0)
    if highest == 0:
        return np.where(candidates, 100.0, 0.0)
    # All are whole numbers, and small: rounding makes no quotient whole that is not.
    return np.where(candidates, np.floor(100.0 * (highest + lowest - total) / highest), 0.0)
