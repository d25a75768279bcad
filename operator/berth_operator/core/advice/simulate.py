"""Simulate pending pods: whether they would fit, where, and how much capacity would be left.

    simulate(fleet, units, policies)  ->  Simulation

The units pass through the queue of an operator that has just become the leader. The same `decide` and `decide_gang`
decide them on a copy of the Fleet. Before the first decision, the capacity of nominations and of the leader's node
reservations is set aside. Each placement is charged before the next decision. If a unit waits for another pod, it is
decided again when that pod is placed. Pods that would be evicted are only marked: their capacity is kept for the pod
that preempts them. No time passes, so no pod ends.
All members of a gang are assumed to exist. Pods that a controller creates later are not placed, but their places are
kept, as the operator promises them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from berth_operator.core.advice.free_report import Left, Place, free_capacity, unused
from berth_operator.core.advice.simulated_queue import SimulatedQueue, Unit
from berth_operator.core.claims.bounds.errors import NoWorkError
from berth_operator.core.decision import promise, reservation, reservation_note
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide, plugin_failure
from berth_operator.core.decision.gang import Gang, decide_gang, pods_of
from berth_operator.core.decision.gang_preemption import NO_VICTIMS, may_preempt, pods_awaited, preempt_gang
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import (
    NEVER,
    TERMINATING,
    add_preemption,
    nominated_fit,
    nominated_pods,
    not_helpful,
    not_tried,
    preempt,
)
from berth_operator.core.decision.reservation import NodeReservation, reserve
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change

NO_NODES: Final[Mapping[str, str]] = MappingProxyType({})


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
    """Nodes whose cards no pod uses at the end."""
    emptied: frozenset[str]
    """Nodes among them whose cards are used now."""
    evicted: tuple[Charge, ...] = ()
    """Pods that would be evicted for pods that wait. What happens once they have ended is not simulated."""


def simulate(
    fleet: Fleet,
    units: Sequence[Unit],
    policies: Mapping[str, Policy],
    *,
    budgets: Budgets | None = None,
    gone: Iterable[str] = (),
    now: float = 0.0,
    reserved: Mapping[str, str] = NO_NODES,
) -> Simulation:
    """Decide all units without the pods `gone` (UIDs). The Fleet is left unchanged.

    `policies` must have the policy of every scheduler name among the units' pods. `now` is in seconds since 1970; it
    determines which pods have waited long enough to keep a node reservation. `reserved` has the reserved nodes by the
    UIDs of their pods.
    """
    what_if = fleet.copy()
    for uid in gone:
        what_if.release(uid)
    run = _Run(what_if, units, policies, budgets or Budgets(), now=now, reserved=reserved)
    outcomes = run.run()
    left = unused(what_if)
    return Simulation(
        outcomes=outcomes,
        before=free_capacity(fleet),
        after=free_capacity(what_if),
        unused=frozenset(left),
        emptied=frozenset(left - unused(fleet)),
        evicted=tuple(run.evicted.values()),
    )


class _Run:
    """One run of the queue until no unit is active."""

    def __init__(
        self,
        fleet: Fleet,
        units: Sequence[Unit],
        policies: Mapping[str, Policy],
        budgets: Budgets,
        *,
        now: float,
        reserved: Mapping[str, str],
    ) -> None:
        self._fleet, self._policies, self._budgets, self._now = fleet, policies, budgets, now
        self._reserved = reserved
        self._queue = SimulatedQueue(fleet, units)
        self._placed: list[Outcome] = []
        self._waiting: dict[str, tuple[Unit, Failure]] = {}
        """UID of a unit -> the unit and why it waits."""
        self._reservations: dict[str, NodeReservation] = {}
        """UID of a pod -> its node reservation."""
        self.evicted: dict[str, Charge] = {}
        """UID -> pod that would be evicted."""
        self._victims: dict[str, str] = {}
        """UID of a unit -> the text about the pods that would be evicted for it."""

    def run(self) -> tuple[Outcome, ...]:
        """Decide until no unit is left that may fit."""
        # What the last leader kept: the capacity of nominated nodes, for a gang on all its nodes or on none, and node
        # reservations.
        waiting = nominated_pods(self._queue.pods())
        for pod in waiting:
            if (nominee := self._nominated_fit(pod)) is not None:
                self._queue.nominate(pod, nominee)
        for uid, count in Counter(self._queue.unit_of(pod.uid) for pod in waiting).items():
            if isinstance(self._queue.unit(uid), Gang) and len(self._queue.nominees(uid)) < count:
                self._queue.withdraw_unit(uid)
        pods = [pod for pod in self._queue.pods() if pod.uid in self._reserved]
        for pod in reservation.may_keep(self._fleet, pods, self._policies.__getitem__, self._now):
            if (kept := self._search(pod, self._reserved[pod.uid])) is not None:
                self._queue.reserve(pod, kept.nominee)
                self._reservations[pod.uid] = kept

        self._queue.start()
        self._decide_active()
        # Each parked class is decided once more, as the operator does: only preemption can have another result then.
        for class_key in self._queue.classes() if self.evicted else ():
            self._queue.review(class_key)
            self._decide_active()
        self._queue.confirm()
        self._decide_active()
        left = [
            Outcome(pod=pod, result=reservation_note.annotated(pod, why, self._reservations))
            for unit, why in self._waiting.values()
            for pod in pods_of(unit)
        ]
        return (*self._placed, *left)

    def _decide_active(self) -> None:
        while (unit := self._queue.pop()) is not None:
            outcome: Sequence[Placement] | Failure | None = self._queue.parked_failure(unit)
            if outcome is None:
                try:
                    outcome = self._decide(unit)
                except PluginFailedError as error:
                    outcome = plugin_failure(error)
            if isinstance(outcome, Failure):
                now = self._queue.unit(unit.uid)
                for parked in (now, *self._queue.park(now, outcome)):
                    self._waiting[parked.uid] = parked, outcome
            else:
                self._waiting.pop(unit.uid, None)
                self._queue.placed(unit, outcome)
                self._placed += [Outcome(pod=placement.pod, result=placement) for placement in outcome]
                self._renew({placement.node for placement in outcome})

    # --- node reservations ------------------------------------------------------------------------------------

    def _search(self, pod: PendingPod, node: str) -> NodeReservation | None:
        try:
            return reserve(self._fleet, pod, self._policies[pod.scheduler], self._now, node=node)
        except PluginFailedError:
            # The pod's decision reports the error.
            return None

    def _renew(self, nodes: Collection[str]) -> None:
        """Drop the reservations that have ended, and search again for reservations on nodes with new pods."""
        for uid, kept in list(self._reservations.items()):
            if uid not in self._fleet.nominees:
                del self._reservations[uid]
            elif kept.node in nodes and isinstance(pod := self._queue.unit(uid), PendingPod):
                new = self._search(pod, kept.node)
                if new is not None and new.is_taken_by_higher(kept):
                    new = self._search(pod, "")
                if new is None:
                    del self._reservations[uid]
                    self._queue.put(self._queue.withdraw(pod))
                    continue
                self._reservations[uid] = new
                if new.nominee != kept.nominee:
                    self._queue.put(self._queue.reserve(pod, new.nominee))

    # --- decisions --------------------------------------------------------------------------------------------

    def _decide(self, unit: Unit) -> Sequence[Placement] | Failure:
        policy = self._policies[pods_of(unit)[0].scheduler]
        if isinstance(unit, Gang):
            placements = decide_gang(self._fleet, unit, policy)
            if isinstance(placements, Failure):
                return self._preempt_for_gang(unit, placements, policy)
            existing = {member.uid for member in unit.members}
            later = [placement.charge for placement in placements if placement.pod.uid not in existing]
            self._queue.keep_later(unit, later)
            return unit.without_expected(placements)
        outcome = decide(self._fleet, unit, policy)
        if isinstance(outcome, Failure) and unit.lifetime:
            outcome = reservation.backfill(self._fleet, unit, policy, self._reservations, self._now) or outcome
        if isinstance(outcome, Placement):
            return [outcome]
        failure = self._preempt_for(unit, outcome, policy)
        return reservation_note.explained(self._fleet, unit, failure, policy, self._reservations)

    def _nominated_fit(self, pod: PendingPod) -> Charge | None:
        return nominated_fit(self._fleet, pod, self._policies[pod.scheduler], pod.nominated_node)

    def _preempt_for(self, pod: PendingPod, failure: Failure, policy: Policy) -> Failure:
        """Keep a node for a pod, and return its failure with the pods that the operator would evict for it."""
        if pod.error:
            return failure
        if pod.nominated_node and (nominee := self._nominated_fit(pod)) is not None:
            self._queue.nominate(pod, nominee)
            return add_preemption(failure, self._victims.get(pod.uid, TERMINATING))
        if (why := not_tried(self._fleet, pod, policy, failure)) is not None:
            self._withdraw_nomination(pod)
            return why
        in_flight = self._queue.in_flight
        preemption = preempt(self._fleet, pod, policy, self._budgets, in_flight)
        if preemption is None:
            self._withdraw_nomination(pod)
            return _until_evictable(not_helpful(self._fleet, pod, policy, failure, in_flight), in_flight)
        node = preemption.nominee.node
        self._queue.displace(node, pod.priority)
        self._queue.nominate(pod, preemption.nominee)
        self._evict(preemption.victims)
        victims = ", ".join(victim.pod for victim in preemption.victims)
        self._victims[pod.uid] = f"{victims} would be evicted from node {node}." if victims else TERMINATING
        return add_preemption(failure, self._victims[pod.uid])

    def _preempt_for_gang(self, gang: Gang, failure: Failure, policy: Policy) -> Failure:
        """Keep nodes for a gang, and return its failure with the pods that the operator would evict for it."""
        if left := pods_awaited(self._fleet, gang, policy, self._queue.nominees(gang.uid)):
            text = f"pod group is waiting for preemption to complete ({left} pod(s) left)."
            return add_preemption(failure, self._victims.get(gang.uid, text))
        if not may_preempt(self._fleet, gang, policy):
            return self._without_nominations(gang, failure)
        if not all(member.preempts for member in gang.members):
            return self._without_nominations(gang, add_preemption(failure, NEVER))
        if promise.exceeds(self._fleet, gang, self._queue.may_keep(gang)):
            return self._without_nominations(gang, add_preemption(failure, promise.NO_PLACES_LEFT))
        in_flight = self._queue.in_flight
        preemption, why_none = None, NO_VICTIMS
        try:
            preemption = preempt_gang(self._fleet, gang, policy, self._budgets, in_flight)
        except NoWorkError as error:
            why_none = str(error)
        if preemption is None:
            why = add_preemption(failure, why_none)
            return self._without_nominations(gang, _until_evictable(why, in_flight))
        members = {member.uid: member for member in gang.members}
        for nominee in preemption.nominees:
            self._queue.displace(nominee.node, gang.lowest)
            if nominee.uid in members:
                self._queue.nominate(members[nominee.uid], nominee)
        self._queue.keep_later(gang, [nominee for nominee in preemption.nominees if nominee.uid not in members])
        self._evict(preemption.victims)
        victims = ", ".join(sorted(f"{victim.pod} on {victim.node}" for victim in preemption.victims))
        if not victims:
            return failure
        self._victims[gang.uid] = f"{victims} would be evicted for all members."
        return add_preemption(failure, self._victims[gang.uid])

    def _evict(self, victims: Iterable[Charge]) -> None:
        for victim in victims:
            self._fleet.mark_leaving(victim.uid)
            self.evicted[victim.uid] = victim

    def _withdraw_nomination(self, pod: PendingPod) -> None:
        if pod.nominated_node:
            self._queue.withdraw(pod)

    def _without_nominations(self, gang: Gang, failure: Failure) -> Failure:
        for pod in gang.members:
            self._withdraw_nomination(pod)
        self._queue.release_later(gang.uid)
        return failure


def _until_evictable(failure: Failure, in_flight: Collection[str]) -> Failure:
    """Wake the unit also when pods become evictable."""
    return replace(failure, wakes_on=failure.wakes_on | Change.EVICTABLE | (Change.BOUND if in_flight else Change(0)))
