"""What a topology spread constraint counts, for the filter and the score alike."""

from berth_api.selectors import EVERYTHING, NOTHING
from berth_operator.core.cards import Mask
from berth_operator.core.filters import node_affinity, node_selector
from berth_operator.core.fleet import Fleet
from berth_operator.core.peers.wishes import Crowd, Peers, Spread
from berth_operator.core.request import PodRequest


def crowd(request: PodRequest, spread: Spread) -> Crowd:
    """Give the pods that count: of the pod's namespace, not terminating.

    An empty selector matches every pod, but kube-scheduler lets none count then, only the pod itself.
    """
    selector = NOTHING if spread.selector == EVERYTHING else spread.selector
    return Crowd(peers=(Peers(selector=selector, namespaces=(request.identity.namespace,)),), living=True)


def eligible(fleet: Fleet, request: PodRequest, spread: Spread, keyed: Mask) -> Mask:
    """Give those of the keyed rows that the constraint's policies let in."""
    mask = keyed.copy()
    if spread.honor_affinity:
        mask &= node_selector.passes(fleet, request) & node_affinity.passes(fleet, request)
    if spread.honor_taints:
        mask &= _tolerated(fleet, request)
    return mask


def _tolerated(fleet: Fleet, request: PodRequest) -> Mask:
    """Give rows without an untolerated taint; the cordon counts by its taint here, not by the Node's field."""
    mask = fleet.present.copy()
    for taint, rows in fleet.taints().items():
        if taint.effect != "PreferNoSchedule" and not request.tolerates(taint):
            mask &= ~rows
    return mask
