"""The node is not cordoned (`spec.unschedulable`), unless the pod tolerates that."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest, Taint
from berth_operator.core.verdict import Change, Verdict

NAME: Final = "cordon"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_TAINTS | Change.NODE_ADDED
REASON: Final = "unschedulable"
TAINT: Final = Taint(key="node.kubernetes.io/unschedulable")


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass nodes that are not cordoned, or all if the pod tolerates the cordon."""
    return np.ones_like(fleet.cordoned) if request.tolerates(TAINT) else ~fleet.cordoned


def explain(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count them."""
    return {REASON: int(rejected.sum())}
