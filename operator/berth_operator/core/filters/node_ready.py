"""The node's kubelet says Ready.

kube-scheduler leaves this to the taint that the node controller sets a little later: one for nodes that say that they
are not ready, another for those that nobody hears of. A pod that tolerates that taint passes here as well.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest, Taint
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "node-ready"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_TAINTS | Change.NODE_ADDED
REASON: Final = "node(s) were not ready"
NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready")
UNREACHABLE: Final = Taint(key="node.kubernetes.io/unreachable")


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass ready nodes, and of the others those of a kind that the pod tolerates."""
    unreachable, other = request.tolerates(UNREACHABLE), request.tolerates(NOT_READY)
    if not unreachable and not other:
        return fleet.ready
    return fleet.ready | np.where(fleet.unreachable, unreachable, other)


def explain(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count them."""
    return {REASON: int(rejected.sum())}
