"""The node's domains hold no pod that matches the pod's required anti-affinity."""

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

NAME: Final = "pod-anti-affinity"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = (
    Change.POD_DELETED
    | Change.POD_LABELS
    | Change.NAMESPACE_LABELS
    | Change.NODE_LABELS
    | Change.NODE_ADDED
    | Change.NODE_REMOVED
)
TRAITS: Final = Traits(plugin="InterPodAffinity", one_node=False)
REASON: Final = "node(s) didn't match pod anti-affinity rules"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows without a matching pod in their domain; rows without the topology key pass."""
    mask = fleet.present
    for term in request.affinity.required_anti_affinity:
        mask = mask & (
            domains.around(fleet, term.key, fleet.affinity_index.count(PodSelection(peers=(term.peers,)))) == 0
        )
    return mask


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected


def may_help(fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a matching pod has changed or was deleted, or a node has left its domain."""
    pod, left = event.before, event.labels if not event.change & Change.NODE_ADDED else ()
    return any(
        term.key in left or (pod and fleet.affinity_index.includes(PodSelection(peers=(term.peers,)), pod.identity))
        for term in request.affinity.required_anti_affinity
    )
