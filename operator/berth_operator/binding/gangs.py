"""Gangs: decided as a whole, bound with one Binding for each member, and aborted if they cannot be completed.

A decided gang is assumed as a whole. First the claims of all members are bound. If this fails, no member has been
bound, and all are forgotten. Then the Bindings of all members are sent concurrently. A member whose Binding is refused
stays assumed, and its Binding is retried until the gang's timeout. Once a second, the keeper deletes the bound members
of gangs that have not formed within their timeout. The keeper acts on the current state only. So it also deletes
members that a previous leader left behind and that are known to be too few.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from berth_api.values import keys
from berth_client.errors import CallError
from berth_client.refusals import is_for_good
from berth_operator.binding import binder
from berth_operator.binding.evictions.deletion import PodReader, unless_gone
from berth_operator.binding.evictions.preemptor import Preemptor
from berth_operator.binding.prebind.changes import GoneError, PreBindError
from berth_operator.binding.prebind.claims import ClaimBinder
from berth_operator.binding.prebind.volumes import VolumeBinder, VolumeError
from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.turn import Turn
from berth_operator.binding.workloads.gang_promises import GangPromises
from berth_operator.core.decision import reservation_note
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang, decide_gang, not_ready
from berth_operator.core.decision.messages import with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.record import RecordError, binding
from berth_operator.core.queue.queue import pause
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.gangs import gangs_of

PERIOD: Final = 1.0
"""Seconds between two checks by the keeper."""
AGAIN: Final = 5.0
"""Seconds until a deletion without effect is sent again."""
REFUSED_AGAIN: Final = 60.0
"""The same if a policy, a webhook or the rights refuse the deletion."""

ReportPlaces = Callable[[Placement], None]
"""Reports on a bound member what is kept for the pods that come later."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Binds(Protocol):
    """The subset of `Scheduler` that binds single pods."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine concurrently with decisions; an unexpected exception ends the process."""

    def leads(self, term: int) -> bool:
        """Return whether we still lead in this term."""

    async def bind(
        self, placement: Placement, body: dict[str, object], term: int
    ) -> tuple[binder.BindOutcome, str] | None:
        """Send a Binding until the answer is definite; return None if the term has ended."""

    def deallocate(self, pods: Sequence[PendingPod], failure: Failure, term: int) -> None:
        """Deallocate the claims of a pod or gang that fits on none of their nodes; the last leader's, too."""

    async def settle(self, placement: Placement, outcome: binder.BindOutcome, why: str, *, term: int) -> None:
        """Apply the outcome of a Binding, after the ResourceClaims of a pod that was refused are released."""


class GangBinder:
    """Decides gangs and binds their members."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        preemptor: Preemptor,
        volume_binder: VolumeBinder,
        claim_binder: ClaimBinder,
        reporter: Reporter,
        attempts: Attempts,
        policy: Callable[[str], Policy],
        lease: str,
        binds: Binds,
        promises: GangPromises,
        turn: Turn,
    ) -> None:
        self._cluster, self._reporter = cluster, reporter
        self._volume_binder, self._claim_binder = volume_binder, claim_binder
        self._preemptor, self._attempts = preemptor, attempts
        self._policy, self._lease, self._binds, self._promises = policy, lease, binds, promises
        self._turn = turn

    def schedule(self, unit: Gang, term: int) -> None:
        """Decide a gang, assume the placements of its members and start to bind them."""
        self._attempts.begin(unit.members)
        gang, not_kept = self._promises.admitted(unit)
        if gang is None:
            self._attempts.unschedulable(unit.members)
            self._cluster.queue.back_off(unit, self._cluster.clock())
            for pod in unit.members:
                self._reporter.unschedulable(pod, Failure(message=f"{unit.key}: {not_kept}", wakes_on=Change(0)))
            return
        policy = self._policy(gang.members[0].scheduler)
        outcome = self._cluster.decide(gang.lowest, functools.partial(decide_gang, self._cluster.fleet, gang, policy))
        if isinstance(outcome, Failure):
            if gang.expected:
                # Members that are gone now had promised places for the pods that come later.
                self._promises.release(gang.membership)
            places = self._promises.may_keep(gang.membership) if gang.expected else 0
            with self._cluster.promises.without_lower(gang.lowest):
                gang, outcome = self._preemptor.preempt_for_gang(gang, outcome, places)
            if gang.expected:
                self._promises.limit_nominations(gang)
            outcome = reservation_note.of_gang(gang, outcome, policy, self._cluster.wall())
            if not_kept:
                # Parked with all its pods: it is decided with them again.
                gang = gang if gang.expected else replace(gang, expected=unit.expected)
                outcome = replace(outcome, message=with_note(outcome.message, not_kept))
            self._attempts.decided(gang.members[0])
            self._attempts.unschedulable(gang.members)
            self._cluster.queue.park(gang, outcome)
            self._cluster.gangs.unschedulable(gang.membership, outcome)
            for pod in gang.members:
                self._reporter.unschedulable(pod, outcome)
            self._binds.deallocate(gang.members, outcome, term)
            self._turn.wait_for_selectors(unit)
            if self._turn.goes_on:
                self._cluster.queue.wake_class(unit.class_key)
            return
        self._attempts.decided(gang.members[0])
        existing = {pod.uid for pod in gang.members}
        later = [placement for placement in outcome if placement.pod.uid not in existing]
        outcome = gang.without_expected(outcome)
        bodies: list[dict[str, object]] = []
        records = gang.records([placement.pod.uid for placement in outcome])
        for placement, record in zip(outcome, records, strict=True):
            try:
                bodies.append(binding(placement, term, self._lease, record, now=time.time_ns()))
            except RecordError as error:
                self._attempts.failed(gang.members)
                self._reporter.refused(placement.pod, str(error))
                self._cluster.gangs.back_off_and_gather(gang.membership)
                return
        self._cluster.placements.assume_all(outcome)
        promised = self._promises.keep(gang, later) if gang.expected else ""
        report: ReportPlaces | None = None
        if note := promised or not_kept:
            report = functools.partial(self._reporter.places_promised, note=note, are_kept=bool(promised))
        self._cluster.nominator.release_later(gang.membership)
        self._binds.start_task(self._bind_members(outcome, bodies, term, report))

    async def _bind_members(
        self,
        placements: Sequence[Placement],
        bodies: Sequence[dict[str, object]],
        term: int,
        report: ReportPlaces | None,
    ) -> None:
        """Bind the volumes and ResourceClaims of all members, and then the members; forget all if a claim fails.

        `report`: reports on the first member what is kept for pods that come later; None if none do.
        """
        claiming = [placement for placement in placements if placement.volumes or placement.claims]
        failed: list[PreBindError] = []
        waits = (self._bind_claims_of(placement, term, failed) for placement in claiming)
        all_bound = True
        for placement, result in zip(claiming, await asyncio.gather(*waits, return_exceptions=True), strict=True):
            if isinstance(result, PreBindError):
                self._reporter.refused(placement.pod, str(result), placement.node)
            elif result is not None and not isinstance(result, GoneError):
                raise result
            all_bound = all_bound and result is None
        # All members have to reach the volumes of claims that were bound for one of them.
        for placement in placements if all_bound else ():
            try:
                self._volume_binder.check(placement)
            except VolumeError as error:
                self._reporter.refused(placement.pod, str(error))
                all_bound = False
        if not all_bound:
            for placement in claiming:
                await self._claim_binder.release(placement, lambda: self._binds.leads(term))
            self._attempts.failed(placement.pod for placement in placements)
            for placement in placements:
                self._cluster.placements.forget(placement.pod.uid)
            for gang in gangs_of(placements):
                self._promises.release(gang)
            return
        self._cluster.gangs.binding_started(placements)
        for placement, body in zip(placements, bodies, strict=True):
            of_first = report if placement is placements[0] else None
            self._binds.start_task(self._bind_member(placement, body, term, of_first))

    async def _bind_claims_of(self, placement: Placement, term: int, failed: list[PreBindError]) -> None:
        """Bind a member's claims; give up when another member fails, which may have to allocate a shared claim."""
        try:
            await self._volume_binder.bind(placement, lambda: self._binds.leads(term))
            await self._claim_binder.bind(placement, lambda: self._binds.leads(term) and not failed)
        except PreBindError as error:
            failed.append(error)
            raise

    async def _bind_member(
        self, placement: Placement, body: dict[str, object], term: int, report: ReportPlaces | None
    ) -> None:
        """Send a member's Binding; retry while it is refused and the gang's timeout has not passed."""
        tries = 0
        while (answer := await self._binds.bind(placement, body, term)) is not None:
            outcome, why = answer
            until = self._cluster.gang_tracker.retry_until(placement.pod.uid) if self._binds.leads(term) else None
            if outcome not in binder.REFUSALS or until is None or self._cluster.clock() >= until:
                await self._binds.settle(placement, outcome, why, term=term)
                if report is not None and outcome is binder.BindOutcome.BOUND:
                    # Not before: a gang that cannot be bound is decided again and again.
                    report(placement)
                return
            tries += 1
            log.warning("bind of a member refused, it is sent again", pod=placement.pod.key, why=why)
            self._reporter.refused(placement.pod, why, placement.node)
            await asyncio.sleep(min(pause(tries, outcome.longest_backoff), max(0.0, until - self._cluster.clock())))


def judge_found(cluster: Cluster, reporter: Reporter) -> None:
    """Judge the gangs that another leader bound, and report the unknown ones, which are kept."""
    for why, members in cluster.gangs.judge():
        log.warning("whether a gang has formed is not known", why=why, kept=[member.pod for member in members])
        for charge in members:
            reporter.unknown_gang(charge, why)


class PodDeleter(PodReader, Protocol):
    """The subset of `kube.KubeClient` that the keeper uses."""

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete a pod if it still has this UID."""


class GangKeeper:
    """Puts gangs back into the queue, reports what gangs lack, and aborts gangs that were bound only in part."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        pods: PodDeleter,
        reporter: Reporter,
        keep_partial: Callable[[str], bool],
        leads: Callable[[], bool],
    ) -> None:
        """Create a keeper.

        `keep_partial` returns for a scheduler name whether the bound members of a gang that cannot be completed stay.
        """
        self._cluster, self._pods, self._reporter = cluster, pods, reporter
        self._keep_partial, self._leads = keep_partial, leads
        self._retry_at: dict[str, float] = {}
        """UID of a pod to delete -> when to send its deletion again if it still exists."""

    async def run(self) -> None:
        """Check gangs until cancelled."""
        while True:
            # Also of scheduler names that the configuration has added.
            judge_found(self._cluster, self._reporter)
            gang_tracker, now = self._cluster.gang_tracker, self._cluster.clock()
            for gang in gang_tracker.overdue(now):
                reason, undone = self._cluster.gangs.abort(gang, keep=self._keep_partial(gang.scheduler))
                counters.GANGS_UNDONE.inc()
                log.warning("gang undone", why=reason, deleted=[charge.pod for charge in undone])
                for charge in undone:
                    self._reporter.undone(charge, reason)
            now = self._cluster.clock()
            for gang in (*gang_tracker.resumed(now), *gang_tracker.completed(now)):
                self._cluster.gangs.gather(gang)
            for lack, pods in gang_tracker.unready(now):
                for pod in pods:
                    self._reporter.unschedulable(pod, not_ready(lack))
            to_delete, now = gang_tracker.to_delete(), self._cluster.clock()
            self._retry_at = {charge.uid: self._retry_at.get(charge.uid, now) for charge in to_delete}
            due = [charge for charge in to_delete if self._retry_at[charge.uid] <= now]
            await asyncio.gather(*(self._delete(charge) for charge in due))
            await asyncio.sleep(PERIOD)

    async def _delete(self, charge: Charge) -> None:
        if not self._leads():
            return
        namespace, name = keys.split(charge.pod)
        self._retry_at[charge.uid] = self._cluster.clock() + AGAIN
        deletion = self._pods.delete_pod(namespace, name, charge.uid)
        try:
            await unless_gone(deletion, self._pods, namespace, name, charge.uid)
        except CallError as error:
            if is_for_good(error):
                self._retry_at[charge.uid] = self._cluster.clock() + REFUSED_AGAIN
            log.warning("member of an undone gang not deleted", pod=charge.pod, error=str(error))
