"""The node's kubelet says Ready.

kube-scheduler leaves this to the taint that the node controller sets a little later; a pod that tolerates that
taint passes here as well.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest, Taint
from berth_operator.core.verdict import Change, Verdict

NAME: Final = "node-ready"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_TAINTS | Change.NODE_ADDED
REASON: Final = "not ready"
TAINT: Final = Taint(key="node.kubernetes.io/not-ready")


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass ready nodes, or all if the pod tolerates those that are not."""
    return np.ones_like(fleet.ready) if request.tolerates(TAINT) else fleet.ready


def explain(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count them."""
    return {REASON: int(rejected.sum())}
