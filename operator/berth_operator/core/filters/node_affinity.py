"""The node matches one of the terms of the pod's required node affinity."""

from typing import Final

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import node_terms
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "node-affinity"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_LABELS | Change.NODE_ADDED
TRAITS: Final = Traits(plugin="NodeAffinity")
REASON: Final = "node(s) didn't match Pod's node affinity/selector"
NOT_NAMED: Final = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
"""Reason for nodes whose names the terms exclude: kube-scheduler filters only the named ones (PreFilterResult)."""


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that at least one term matches, or all if the pod has no required node affinity."""
    if request.node_affinity is None:
        return fleet.present
    return node_terms.any_of(fleet, request.node_affinity)


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield the rows whose names the terms exclude, and the other rows."""
    others = rejected & ~named(fleet, request)
    yield NOT_NAMED, others
    yield REASON, rejected & ~others


def named(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that the terms select by name, or all if a term selects no names."""
    return node_terms.named(fleet, request.node_affinity or ())


def may_help(_fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a label of the affinity's terms has changed."""
    terms = request.node_affinity or ()
    return any(requirement.key in event.labels for term in terms for requirement in term.labels)
