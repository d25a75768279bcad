"""The node's condition Ready is true.

kube-scheduler relies on taints that the node controller sets a little later. One taint is for nodes that report that
they are not ready, and another for nodes that do not report. A pod that tolerates the node's taint passes here as well.
"""

from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest, Taint
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "node-ready"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_TAINTS | Change.NODE_ADDED
TRAITS: Final = Traits(transient=True)
REASON: Final = "node(s) were not ready"
NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready")
UNREACHABLE: Final = Taint(key="node.kubernetes.io/unreachable")


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the ready rows, and the others whose taint the pod tolerates."""
    unreachable, other = request.tolerates(UNREACHABLE), request.tolerates(NOT_READY)
    if not unreachable and not other:
        return fleet.ready
    return fleet.ready | np.where(fleet.unreachable, unreachable, other)


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected
