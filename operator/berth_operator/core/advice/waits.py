"""Why a pod waits and what ends its wait, both for single pods and for members of a gang.

A member is explained together with its gang. If too few members exist, no node matters yet. Otherwise, the first member
without a node is explained, while the others have their nodes.
"""

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final

from berth_api.objects.visibility import ClaimDevices
from berth_operator.core.advice import claim_devices, remedies
from berth_operator.core.advice.assumptions import WhatIfs
from berth_operator.core.advice.explanation import Explanation, explain
from berth_operator.core.advice.gang_explanation import GangExplanation, explain_gang
from berth_operator.core.advice.remedies import Remedy
from berth_operator.core.decision import cycle
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang, not_ready, too_few
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod

MAX_MEMBERS: Final = 16
"""Waiting members of a gang, all of which are placed for an explanation; each takes about two decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A waiting pod, and what its decision depends on in addition to the Fleet."""

    pod: PendingPod
    gang: Gang | None = None
    """All waiting members of its gang, even if they are too few."""
    problem: str = ""
    """Why its gang cannot be decided, apart from missing members."""
    parked: Failure | None = None
    """The last failure of its gang, while nothing has woken the gang."""

    @property
    def lacks_members(self) -> bool:
        """Return whether its gang waits for further members."""
        return self.gang is not None and self.gang.size < self.gang.needed

    @property
    def is_tried(self) -> bool:
        """Return whether changes that may end its wait are tried."""
        return self.gang is None or self.gang.size <= MAX_MEMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a pod waits."""

    explanation: Explanation
    of_gang: GangExplanation | None = None
    claims: ClaimDevices | None = None
    """What the claims of the pod that is explained find, from `Waits.claims`."""

    def explained(self, pod: PendingPod) -> tuple[PendingPod, tuple[Charge, ...]]:
        """Return the pod that is explained for a pod, and what others of its gang are charged meanwhile."""
        if self.of_gang is None or self.of_gang.first is None:
            return pod, ()
        return self.of_gang.first, tuple(placement.charge for placement in self.of_gang.others)


class Waits:
    """Explains waiting pods of one Fleet by one policy."""

    def __init__(self, fleet: Fleet, policy: Policy, budgets: Budgets, in_flight: Collection[str] = ()) -> None:
        """Create it on a copy of the Fleet, which what-ifs modify and restore.

        `in_flight` are UIDs of pods whose Binding is not confirmed yet, which are not evicted.
        """
        self._fleet, self._policy, self._budgets, self._in_flight = fleet, policy, budgets, in_flight

    def why(self, wait: Wait) -> Why:
        """Return why a pod waits.

        Raises:
            PluginFailedError: a plug-in failed.
        """
        pod, gang = wait.pod, wait.gang
        if wait.problem:
            return Why(explanation=Explanation(result=not_ready(wait.problem)))
        if gang is None:
            return Why(explanation=explain(self._fleet, pod, self._policy, self._budgets, self._in_flight))
        if wait.lacks_members:
            few = too_few(gang.key, gang.placed + gang.size, gang.minimum)
            return Why(explanation=Explanation(result=not_ready(few)))
        if gang.size > MAX_MEMBERS:
            alone = explain(self._fleet, pod, self._policy)
            return Why(explanation=alone if wait.parked is None else replace(alone, result=wait.parked))
        of_gang = explain_gang(self._fleet, gang, self._policy)
        explanation = of_gang.explanation or explain(self._fleet, pod, self._policy)
        if isinstance(of_gang.result, Failure) and isinstance(explanation.result, Placement):
            explanation = replace(explanation, result=of_gang.result)
        return Why(explanation=explanation, of_gang=of_gang)

    def claims(self, wait: Wait, why: Why) -> Generator[None, None, ClaimDevices | None]:
        """Return what the claims of a pod find, and yield where the caller may do other work.

        Return None if claims keep it from no node, or no node matters yet.

        Raises:
            PluginFailedError: a plug-in failed.
        """
        if wait.problem or wait.lacks_members:
            return None
        pod, others = why.explained(wait.pod)
        try:
            for charge in others:
                self._fleet.charge(charge)
            with cycle.above_nominees(self._fleet, pod):
                return (yield from claim_devices.of_pod(self._fleet, pod, self._policy))
        finally:
            for charge in others:
                self._fleet.release(charge.uid)

    def remedies(self, wait: Wait, why: Why) -> Iterator[Remedy | None]:
        """Yield what ends the wait, each after a few decisions, and None where the caller may do other work.

        Gangs with more than MAX_MEMBERS waiting members get no what-ifs.

        Raises:
            PluginFailedError: a plug-in failed.
        """
        pod, gang, answer = wait.pod, wait.gang, why.explanation.preemption
        if wait.problem:
            yield from remedies.of_group(wait.problem)
        elif answer is not None and answer.node:
            yield from remedies.of_preemption(answer.node, answer.victims)
        elif not isinstance(why.explanation.result, Placement) and wait.is_tried:
            what_ifs = WhatIfs(self._fleet, gang or pod, self._policy, self._budgets, self._in_flight, asked=pod.uid)
            if gang is not None and wait.lacks_members:
                yield from remedies.of_members(what_ifs, gang, pod)
            else:
                explained, others = why.explained(pod)
                yield from remedies.of_pod(what_ifs, explained, self._policy, others, why.claims)
            if what_ifs.is_unfinished:
                yield remedies.of_unfinished()
