"""The node's domains hold pods that match the pod's required affinity.

A placed pod counts only if it matches all terms. The first pod of a group with affinity to itself would never find a
matching pod. So if no pod in any domain counts and the pod matches its own terms, every node with all topology keys
passes.
"""

from typing import Final

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import domains
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
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
"""Includes deleted pods: the last pod that counts may have been where the new pod cannot go."""
TRAITS: Final = Traits(plugin="InterPodAffinity", one_node=False, transient=True)
REASON: Final = "node(s) didn't match pod affinity rules"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows whose domains of all terms hold a pod that counts."""
    terms = request.affinity.required_affinity
    if not terms:
        return fleet.present
    mask = domains.members_of_all(fleet, {term.key for term in terms})
    selection = PodSelection(peers=tuple(term.peers for term in terms))
    totals = [domains.around(fleet, term.key, fleet.affinity_index.count(selection)) for term in terms]
    if fleet.affinity_index.includes(selection, request.identity) and not any(total.any() for total in totals):
        return mask
    for counts in totals:
        mask &= counts > 0
    return mask


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected


def may_help(fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether an event concerns a pod that counts, or a topology key of a term."""
    terms = request.affinity.required_affinity
    if not terms:
        return False
    selection = PodSelection(peers=tuple(term.peers for term in terms))
    if any(fleet.affinity_index.includes(selection, pod.identity) for pod in event.pods):
        return True
    return any(term.key in event.labels for term in terms)
