"""Explain why a gang waits: the state of its members, and why the first member without a node has none.

    explain_gang(fleet, gang, policy)  ->  GangExplanation

The first member without a node is explained as a single pod, on a fleet in which the other members have their nodes. So
its nearest nodes lack what the gang lacks.
"""

from dataclasses import dataclass

from berth_operator.core.advice.explanation import Explanation, explain
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import (
    Gang,
    decide_gang,
    lower_priority_nominees,
    place_as_decided,
    with_expected,
)
from berth_operator.core.decision.messages import SCHEDULER_ERROR
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod


@dataclass(frozen=True, slots=True, kw_only=True)
class GangExplanation:
    """Why a gang waits, or where its members fit."""

    result: tuple[Placement, ...] | Failure
    """The decision itself."""
    placed: int = 0
    """How many of the waiting members have a node when as many as possible are placed."""
    first: PendingPod | None = None
    """The first member without a node, with the GPUs that the decision chose for the gang; None if all members have a
    node, or too few exist."""
    explanation: Explanation | None = None
    """Why that member has none while the others have theirs."""
    others: tuple[Placement, ...] = ()
    """Where these others are."""


def explain_gang(fleet: Fleet, gang: Gang, policy: Policy) -> GangExplanation:
    """Explain the decision of a gang. The Fleet is left unchanged.

    Raises:
        PluginFailedError: a plug-in failed.
    """
    result = decide_gang(fleet, gang, policy)
    if not isinstance(result, Failure):
        placed_members = gang.without_expected(result)
        return GangExplanation(result=tuple(placed_members), placed=len(placed_members))
    gang = with_expected(fleet, gang)
    if len(gang.members) < gang.needed or result.condition == SCHEDULER_ERROR:
        return GangExplanation(result=result)
    with fleet.without(lower_priority_nominees(fleet, gang)), fleet.slices_apart(gang.key, gang.held):
        placed, members = place_as_decided(fleet, gang, policy)
        have_nodes = {placement.pod.uid for placement in placed}
        first, explanation = next((member for member in members if member.uid not in have_nodes), None), None
        if first is not None:
            # While the others are charged to their nodes.
            try:
                for placement in placed:
                    fleet.charge(placement.charge)
                explanation = explain(fleet, first, policy)
            finally:
                for placement in placed:
                    fleet.release(placement.pod.uid)
    return GangExplanation(
        result=result, placed=len(placed), first=first, explanation=explanation, others=tuple(placed)
    )
