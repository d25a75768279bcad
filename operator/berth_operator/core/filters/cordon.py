"""The node is not cordoned, unless the pod tolerates cordons.

A cordon is `spec.unschedulable` and the taint that the node controller derives from it. The two are set and removed a
moment apart. Both have the same reason, so that a user sees one change instead of two.
"""

from typing import Final

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest, Taint
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "cordon"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_TAINTS | Change.NODE_ADDED
TRAITS: Final = Traits(plugin="NodeUnschedulable", transient=True)
REASON: Final = "node(s) were unschedulable"
TAINT: Final = Taint(key="node.kubernetes.io/unschedulable")


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that are not cordoned, or all if the pod tolerates the cordon."""
    if request.tolerates(TAINT):
        return fleet.present
    tainted = fleet.taints().get(TAINT)
    return ~fleet.cordoned if tainted is None else ~(fleet.cordoned | tainted)


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected
