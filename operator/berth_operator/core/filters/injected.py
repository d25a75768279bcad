"""The pod's containers see what it is given: without the variable a container sees no GPU, or every one of its node."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from berth_api.injection import VARIABLE
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "injected"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change(0)
ADVICE: Final = "apply manifests/base/injection.yaml or the webhook, then create the pod again"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass everywhere unless a container lacks the variable."""
    return np.zeros_like(fleet.present) if request.uninjected else fleet.present


def explain(_fleet: Fleet, request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Name the containers, and what to do."""
    containers = ", ".join(request.uninjected)
    return {f"NotInjected: {VARIABLE} of container {containers} is not Berth's ({ADVICE})": int(rejected.sum())}
