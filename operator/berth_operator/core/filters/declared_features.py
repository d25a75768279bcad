"""The node's kubelet declares the features that the pod needs (`status.declaredFeatures`)."""

from typing import Final

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "declared-features"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_FEATURES | Change.NODE_ADDED
TRAITS: Final = Traits(plugin="NodeDeclaredFeatures")
REASON: Final = "node(s) didn't match Pod's required features"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that declare all features that the pod needs."""
    mask = fleet.present
    for feature in request.features:
        mask = mask & fleet.declaring(feature)
    return mask


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected
