"""The node's domains hold none of the pods that the pod requires to be apart from."""

from collections.abc import Mapping
from typing import Final

from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.peers import domains
from berth_operator.core.peers.wishes import Crowd
from berth_operator.core.request import PodRequest
from berth_operator.core.verdict import Change, Verdict

NAME: Final = "pod-anti-affinity"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = (
    Change.RELEASED
    | Change.GONE
    | Change.POD_LABELS
    | Change.NAMESPACE_LABELS
    | Change.NODE_LABELS
    | Change.NODE_ADDED
    | Change.NODE_REMOVED
)
REASON: Final = "pod anti-affinity does not allow it"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass rows without such a pod in their domain, which includes rows without the key."""
    # Never changed in place: it is the Fleet's own.
    mask = fleet.present
    for each in request.wishes.apart:
        mask = mask & (domains.around(fleet, each.key, fleet.neighbours.count(Crowd(peers=(each.peers,)))) == 0)
    return mask


def explain(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count them."""
    return {REASON: int(rejected.sum())}
