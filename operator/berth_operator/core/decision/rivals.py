"""Whether pods of higher priority took the place that was freed for a pod or gang, and nothing else did.

*Rivals* are pods of ours above a pod or gang that came to its nominated nodes, or are nominated there. Without them, it
fits if nothing else is in its way. Then the place was not lost: Berth gave it away.
"""

from collections.abc import Sequence

from berth_operator.core.claims.bounds.work import Work
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.departures import MAX_WORK, Departures
from berth_operator.core.decision.gang import Gang, decide_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import nominated_fit
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod


def took_place(fleet: Fleet, pod: PendingPod, policy: Policy, rivals: Sequence[Charge]) -> bool:
    """Return whether a pod would fit on its nominated node without its rivals."""
    stage = _without(fleet, rivals)
    return nominated_fit(stage, pod, policy, pod.nominated_node) is not None


def took_places(fleet: Fleet, gang: Gang, policy: Policy, rivals: Sequence[Charge]) -> bool:
    """Return whether a gang would fit without its rivals."""
    stage = _without(fleet, rivals)
    try:
        return not isinstance(decide_gang(stage, gang, policy), Failure)
    except PluginFailedError:
        return False


def _without(fleet: Fleet, rivals: Sequence[Charge]) -> Fleet:
    """Return a copy of the Fleet that rivals have left, in which the work for claims is bounded."""
    stage = fleet.copy(until_changes=True)
    stage.claims.supply.work = Work(MAX_WORK)
    for rival in rivals:
        stage.withdraw(rival.uid)
    Departures(stage).leave([rival for rival in rivals if rival.uid in stage.charges])
    return stage
