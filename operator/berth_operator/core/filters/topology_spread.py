"""The pod would not violate a topology spread constraint (DoNotSchedule).

    pods in the node's domain + the pod itself, if it counts - pods in the emptiest domain <= maxSkew

Pods and domains count only on eligible nodes. An eligible node has the keys of all constraints, and the constraint's
node policies include it. With fewer domains than `minDomains`, the emptiest domain counts as 0.
"""

from typing import Final

from berth_operator.core.filters import spreading
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import domains
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.affinity import TopologySpreadConstraint
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "topology-spread"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = (
    Change.POD_ASSIGNED
    | Change.POD_DELETED
    | Change.POD_LABELS
    | Change.NODE_LABELS
    | Change.NODE_TAINTS
    | Change.NODE_ADDED
    | Change.NODE_REMOVED
)
"""Includes assigned pods: the other domains can take more once the emptiest domain is fuller, or is removed."""
TRAITS: Final = Traits(plugin="PodTopologySpread", one_node=False, partly_unresolvable=True)
UNEVEN: Final = "node(s) didn't match pod topology spread constraints"
UNLABELLED: Final = f"{UNEVEN} (missing required label)"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that have all keys and violate no constraint."""
    constraints = request.affinity.topology_spread
    if not constraints:
        return fleet.present
    keyed = domains.members_of_all(fleet, {constraint.key for constraint in constraints})
    mask = keyed.copy()
    for constraint in constraints:
        mask &= _skew(fleet, request, constraint, keyed) <= constraint.max_skew
    return mask


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with the keys of all constraints: no eviction adds a missing key."""
    if not (constraints := request.affinity.topology_spread):
        return fleet.present
    return domains.members_of_all(fleet, {constraint.key for constraint in constraints})


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield for each row the first constraint that it violates: because its key is missing, or by the skew."""
    left, constraints = rejected.copy(), request.affinity.topology_spread
    keyed = domains.members_of_all(fleet, {constraint.key for constraint in constraints})
    for constraint in constraints:
        lacking = left & ~domains.members(fleet, constraint.key)
        uneven = left & ~lacking & (_skew(fleet, request, constraint, keyed) > constraint.max_skew)
        yield UNLABELLED, lacking
        yield UNEVEN, uneven
        left &= ~(lacking | uneven)


def may_help(_fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether an event changes the counted pods or the eligible nodes."""
    constraints = request.affinity.topology_spread
    for pod in event.pods:
        if pod.identity.namespace == request.identity.namespace:
            labels = dict(pod.identity.labels)
            if any(constraint.selector.matches(labels) for constraint in constraints):
                return True
    if event.change & Change.NODE_TAINTS and any(constraint.honor_taints for constraint in constraints):
        return True
    if not event.labels:
        return False
    # The node labels that decide which nodes are eligible, and to which domain they belong.
    keys = {constraint.key for constraint in constraints}
    if any(constraint.honor_affinity for constraint in constraints):
        terms = (request.node_selector, *(term.labels for term in request.node_affinity or ()))
        keys.update(requirement.key for requirements in terms for requirement in requirements)
    return not event.labels.isdisjoint(keys)


def _skew(fleet: Fleet, request: PodRequest, constraint: TopologySpreadConstraint, keyed: Mask) -> domains.Amounts:
    """Return for each row how many more pods its domain would have than the emptiest domain."""
    eligible = spreading.eligible(fleet, request, constraint, keyed)
    counts = domains.sums(
        fleet, constraint.key, eligible * fleet.affinity_index.count(spreading.counted_pods(request, constraint))
    )
    exists = domains.sums(fleet, constraint.key, eligible) > 0
    emptiest = counts[exists].min() if exists.sum() >= constraint.min_domains else 0.0
    counts_itself = constraint.selector.matches(dict(request.identity.labels))
    return counts[fleet.labels.column(constraint.key).numbers] + counts_itself - emptiest
