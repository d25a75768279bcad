"""The node has every label of the pod's nodeSelector."""

from typing import Final

from berth_operator.core.filters import node_affinity
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "node-selector"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_LABELS | Change.NODE_ADDED
TRAITS: Final = Traits(plugin="NodeAffinity")
REASON: Final = node_affinity.REASON
"""kube-scheduler has one plugin, and so one reason, for both."""


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with all the labels."""
    mask = fleet.present
    for requirement in request.node_selector:
        mask = mask & fleet.labels.meeting(requirement)
    return mask


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected


def may_help(_fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a label of the selector has changed."""
    return any(requirement.key in event.labels for requirement in request.node_selector)
