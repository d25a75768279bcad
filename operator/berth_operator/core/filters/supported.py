"""The pod uses only fields that this version supports. Otherwise it fits nowhere."""

from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "supported"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change(0)
TRAITS: Final = Traits(of_pod=True, refusal="NotSupported", needed="a pod would run without a feature that it requests")
CLAIMS: Final = (
    "pod uses spec.resourceClaims, which Berth allocates only from pools in claims.drivers or claims.pools of its "
    "configuration"
)


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return all rows, or none if a field of the pod is not supported."""
    rejects = request.unsupported or (request.claims and not fleet.claims.own)
    return np.zeros_like(fleet.present) if rejects else fleet.present


def reasons(_fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows, which names the fields."""
    yield reason(request) if request.unsupported else CLAIMS, rejected


def reason(request: PodRequest) -> str:
    """Return the reason of a request with fields that are not supported."""
    return f"pod uses {' and '.join(request.unsupported)}, which Berth does not support"
