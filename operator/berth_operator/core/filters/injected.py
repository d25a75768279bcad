"""Berth has injected the variable for the visible GPUs into the pod's containers.

Without the variable, a container sees no GPU, or all GPUs of its node.
"""

from typing import Final

import numpy as np

from berth_api.admission.injection import VARIABLE
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "injected"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change(0)
TRAITS: Final = Traits(of_pod=True, refusal="NotInjected")
LIMITS: Final = "install the component isolation, or remove {}, then create the pod again"
ADVICE: Final = "apply manifests/base/injection.yaml or the webhook, then create the pod again"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return all rows, or none if a container lacks the variable."""
    return np.zeros_like(fleet.present) if request.uninjected or request.unlimited else fleet.present


def reasons(_fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows, which names the containers and the remedy."""
    if request.uninjected:
        containers = ", ".join(request.uninjected)
        yield f"NotInjected: {VARIABLE} of container {containers} is not Berth's ({ADVICE})", rejected
    else:
        containers = ", ".join(request.unlimited)
        limits = LIMITS.format(request.limited_by or "the request for isolation")
        yield f"NotInjected: container {containers} is not limited to its share ({limits})", rejected
