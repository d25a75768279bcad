"""The pod tolerates every NoSchedule and NoExecute taint of the node, except Berth's own taint for preemptors."""

from typing import Final

from berth_api import names
from berth_operator.core.filters import cordon
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest, Taint
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "taints"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_TAINTS | Change.NODE_ADDED
TRAITS: Final = Traits(plugin="TaintToleration")
REASON: Final = "node(s) had untolerated taint(s)"
PREEMPTING: Final = Taint(key=names.PREEMPTING)
"""Keeps other schedulers off a node while pods leave it. Berth's nominations keep the place from Berth's own pods."""


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows without a taint that the pod does not tolerate."""
    mask = fleet.present
    for taint, rows in fleet.taints().items():
        if repels(taint, request):
            mask = mask & ~rows
    return mask


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected


def repels(taint: Taint, request: PodRequest) -> bool:
    """Return whether a taint keeps the pod off; the filter `cordon` handles the taint of a cordon and reports it."""
    return (
        taint.effect != "PreferNoSchedule" and taint not in (cordon.TAINT, PREEMPTING) and not request.tolerates(taint)
    )
