"""Simulate pending pods: would they fit, where, and how much capacity would be left.

    simulate(fleet, units, policies)  ->  Simulation

The units pass through a queue like the operator's, and the same `decide` and `decide_gang` decide them on a copy of the
Fleet. Each placement is charged before the next decision, and units that wait for another pod are decided again when it
is placed. No time passes: no pod ends, no pod is evicted, and all members of a gang are assumed to exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from berth_operator.core.advice.free_report import Left, Place, free_capacity, unused
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide, plugin_failure
from berth_operator.core.decision.gang import Gang, decide_gang, pods_of
from berth_operator.core.decision.gang_preemption import preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import (
    TERMINATING,
    add_preemption,
    nominated_fit,
    nominated_pods,
    not_helpful,
    not_tried,
    preempt,
)
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.queue import queueing_hints
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result for one pod."""

    pod: PendingPod
    result: Placement | Failure

    @property
    def fits(self) -> bool:
        """Return whether the pod is placed."""
        return isinstance(self.result, Placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The results for all pods, and the free capacity before and after."""

    outcomes: tuple[Outcome, ...]
    """The placed pods in the order of the decisions, then the others."""
    before: Mapping[Place, Left]
    after: Mapping[Place, Left]
    unused: frozenset[str]
    """Nodes with cards, none of which a pod uses at the end."""
    emptied: frozenset[str]
    """Nodes among them whose cards are used now."""


def simulate(
    fleet: Fleet,
    units: Sequence[PendingPod | Gang],
    policies: Mapping[str, Policy],
    *,
    budgets: Budgets | None = None,
    gone: Iterable[str] = (),
) -> Simulation:
    """Decide all units without the pods `gone` (UIDs); the Fleet is left as it is.

    `policies` must have the policy of every scheduler name among the units' pods.
    """
    what_if = fleet.copy()
    for uid in gone:
        what_if.release(uid)
    outcomes = _Run(what_if, policies, budgets or Budgets()).run(units)
    left = unused(what_if)
    return Simulation(
        outcomes=outcomes,
        before=free_capacity(fleet),
        after=free_capacity(what_if),
        unused=frozenset(left),
        emptied=frozenset(left - unused(fleet)),
    )


class _Run:
    """One run of the queue until no unit is active."""

    def __init__(self, fleet: Fleet, policies: Mapping[str, Policy], budgets: Budgets) -> None:
        self._fleet, self._policies, self._budgets = fleet, policies, budgets
        self._queue: Queue[PendingPod | Gang] = Queue()
        self._placed: list[Outcome] = []
        self._waiting: dict[str, tuple[PendingPod | Gang, Failure]] = {}
        """UID of a unit -> the unit and why it waits."""

    def run(self, units: Sequence[PendingPod | Gang]) -> tuple[Outcome, ...]:
        """Decide until no unit is left that may fit."""
        self._keep_for_nominees(units)
        for new_unit in units:
            self._queue.put(new_unit)
        while (unit := self._queue.pop(0.0)) is not None:
            outcome = self._queue.parked_failure(unit) or self._decide_or_fail(unit)
            if isinstance(outcome, Failure):
                self._queue.park(unit, outcome)
                self._waiting[unit.uid] = unit, outcome
            else:
                self._queue.remove(unit.uid)
                self._waiting.pop(unit.uid, None)
                self._place(unit, outcome)
        waiting = [Outcome(pod=pod, result=why) for unit, why in self._waiting.values() for pod in pods_of(unit)]
        return (*self._placed, *waiting)

    def _keep_for_nominees(self, units: Iterable[PendingPod | Gang]) -> None:
        for pod in nominated_pods(each for unit in units for each in pods_of(unit)):
            if (kept := nominated_fit(self._fleet, pod, self._policies[pod.scheduler], pod.nominated_node)) is not None:
                self._fleet.nominate(kept)

    def _decide_or_fail(self, unit: PendingPod | Gang) -> Sequence[Placement] | Failure:
        try:
            return self._decide(unit)
        except PluginFailedError as error:
            return plugin_failure(error)

    def _decide(self, unit: PendingPod | Gang) -> Sequence[Placement] | Failure:
        policy = self._policies[pods_of(unit)[0].scheduler]
        if isinstance(unit, Gang):
            placements = decide_gang(self._fleet, unit, policy)
            return self._add_gang_victims(unit, placements, policy) if isinstance(placements, Failure) else placements
        outcome = decide(self._fleet, unit, policy)
        return [outcome] if isinstance(outcome, Placement) else self._add_victims(unit, outcome, policy)

    def _add_victims(self, pod: PendingPod, failure: Failure, policy: Policy) -> Failure:
        """Return the failure with the pods that the operator would evict for the pod."""
        if pod.error:
            return failure
        if (why := not_tried(self._fleet, pod, policy, failure)) is not None:
            return why
        if (preemption := preempt(self._fleet, pod, policy, self._budgets)) is None:
            return not_helpful(self._fleet, pod, policy, failure)
        if not preemption.victims:
            return add_preemption(failure, TERMINATING)
        victims = ", ".join(each.pod for each in preemption.victims)
        return add_preemption(failure, f"{victims} would be evicted from node {preemption.nominee.node}.")

    def _add_gang_victims(self, gang: Gang, failure: Failure, policy: Policy) -> Failure:
        """Return the failure with the pods that the operator would evict for the gang."""
        preemption = preempt_gang(self._fleet, gang, policy, self._budgets)
        if preemption is None or not preemption.victims:
            return failure
        victims = ", ".join(sorted(f"{each.pod} on {each.node}" for each in preemption.victims))
        return add_preemption(failure, f"{victims} would be evicted for all members.")

    def _place(self, unit: PendingPod | Gang, placements: Sequence[Placement]) -> None:
        for placement in placements:
            self._fleet.charge(placement.charge)
            self._placed.append(Outcome(pod=placement.pod, result=placement))
        if isinstance(unit, Gang) and (rest := _without(unit, placements)).members:
            self._queue.put(rest)
        for placement in placements:
            event = ClusterEvent(change=Change.POD_ASSIGNED, node=placement.node, after=placement.charge)
            self._queue.wake(Change.POD_ASSIGNED, queueing_hints.EventHint(self._fleet, event))


def _without(gang: Gang, placements: Sequence[Placement]) -> Gang:
    """Return the gang of the remaining members once some are placed."""
    placed = {each.pod.uid for each in placements}
    return replace(
        gang,
        members=tuple(each for each in gang.members if each.uid not in placed),
        placed=gang.placed + len(placements),
        nodes=(*gang.nodes, *(each.node for each in placements)),
        held=(*gang.held, *(each.pod.uid for each in placements)),
    )
