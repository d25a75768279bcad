"""No pod in the node's domains has a required anti-affinity term that matches the pod."""

from typing import Final

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import domains
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "existing-anti-affinity"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = (
    Change.POD_DELETED | Change.NAMESPACE_LABELS | Change.NODE_LABELS | Change.NODE_ADDED | Change.NODE_REMOVED
)
TRAITS: Final = Traits(plugin="InterPodAffinity", one_node=False)
REASON: Final = "node(s) didn't satisfy existing pods anti-affinity rules"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows whose domains hold no pod with such a term."""
    mask = fleet.present
    for key, holders in fleet.affinity_index.existing_anti_affinity(request.identity):
        mask = mask & (domains.around(fleet, key, holders) == 0)
    return mask


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected


def may_help(fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a pod with such a term was deleted, or a node has left the domain of one."""
    affinity_index, pod = fleet.affinity_index, request.identity
    if event.before and any(affinity_index.matches(term, pod) for term in event.before.affinity.required_anti_affinity):
        return True
    if event.change & Change.NODE_ADDED or not event.labels:
        return False
    return not event.labels.isdisjoint(affinity_index.existing_anti_affinity_keys(pod))
