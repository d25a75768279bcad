"""The node's domains hold the pods that the pod requires to be near.

One placed pod must match all terms to count. The first pod of a group that wants to be near its own kind would never
find one: while no pod in any domain counts, and it would count itself, any node with all the keys will do.
"""

from collections.abc import Mapping
from typing import Final

from berth_operator.core.fleet import domains
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import PodSelection
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "pod-affinity"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = (
    Change.POD_ASSIGNED
    | Change.POD_LABELS
    | Change.POD_DELETED
    | Change.NAMESPACE_LABELS
    | Change.NODE_LABELS
    | Change.NODE_ADDED
    | Change.NODE_REMOVED
)
"""Also a release: the last pod that counts may have been where the new pod cannot go."""
REASON: Final = "node(s) didn't match pod affinity rules"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows whose domains all hold a pod that counts."""
    terms = request.affinity.near
    if not terms:
        return fleet.present
    mask = domains.members_of_all(fleet, {each.key for each in terms})
    crowd = PodSelection(peers=tuple(each.peers for each in terms))
    totals = [domains.around(fleet, each.key, fleet.affinity_index.count(crowd)) for each in terms]
    if fleet.affinity_index.includes(crowd, request.identity) and not any(each.any() for each in totals):
        return mask
    for each in totals:
        mask &= each > 0
    return mask


def explain(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count them."""
    return {REASON: int(rejected.sum())}


def may_help(fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether an event concerns pods that count, or a domain."""
    terms = request.affinity.near
    if not terms:
        return False
    crowd = PodSelection(peers=tuple(each.peers for each in terms))
    if any(fleet.affinity_index.includes(crowd, pod.identity) for pod in event.pods):
        return True
    return any(each.key in event.labels for each in terms)
