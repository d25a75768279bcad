"""The scheduling loop: take the next pod, decide, assume, and bind concurrently.

Deciding is serial, because each decision must see the one before. Binding is concurrent, because an assumed charge
already keeps the cards. The loop runs for one term of leadership and sends nothing once the term has ended.
"""

import asyncio
import contextlib
import functools
import itertools
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from berth_api.objects.leader_lease import VERSION, LeaderLeaseStatus
from berth_operator.binding import binder
from berth_operator.binding.evictions.preemptor import Preemptor
from berth_operator.binding.gangs import GangBinder, judge_found
from berth_operator.binding.prebind.changes import GoneError, PreBindError
from berth_operator.binding.prebind.claims import ClaimBinder
from berth_operator.binding.prebind.volumes import VolumeBinder
from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.recent_binds import RecentBinds
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.reserver import Reserver
from berth_operator.binding.selectors.slow import SlowSelectors
from berth_operator.binding.turn import Turn
from berth_operator.binding.workloads.fits_check import FitsCheck
from berth_operator.binding.workloads.gang_promises import GangPromises
from berth_operator.core.decision import assigned, promise_note
from berth_operator.core.decision.cycle import Failure, Placement, decide, plugin_failure
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.decision.messages import with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.record import RecordError, binding
from berth_operator.core.filters import dynamic_resources
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.quota_workload import CheckSettings
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

DRAIN: Final = 5.0
"""Seconds that a process waits for answers to its binds before it exits."""
MIN_WAIT: Final = 0.001
"""Seconds; the rest of a back-off may be shorter than the resolution of the loop's clock."""
MAX_BINDS: Final = 256
"""Binds in flight at once; deciding waits while there are more."""
REPORTED_SENDS: Final = 3
"""Sends of a Binding after which a server error is reported on the pod."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def _at_once(_term: int) -> None:
    """Wait for nothing."""


class Scheduler:
    """Decides and binds for one term, each pod by the policy of its scheduler name."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        preemptor: Preemptor,
        pods: binder.PodBinder,
        volume_binder: VolumeBinder,
        claim_binder: ClaimBinder,
        reporter: Reporter,
        attempts: Attempts,
        policy: Callable[[str], Policy],
        lease: str,
        term: Callable[[], int | None],
        confirmed: Callable[[int], Awaitable[None]] = _at_once,
        work: asyncio.Event,
        inherited: Callable[[], LeaderLeaseStatus],
        fits: FitsCheck | None = None,
        promise_seconds: Callable[[], float] = lambda: CheckSettings().promise,
        slow: SlowSelectors | None = None,
        wall: Callable[[], float] = time.time,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """Create a scheduler.

        `confirmed` waits while the term may have ended unnoticed. `work` is set whenever a pod may be decided. `wall`
        returns seconds since 1970. `inherited` returns the record of the last leader, once the first lists are read.
        `fits` decides Kueue's Workloads, if any have our AdmissionCheck. `promise_seconds` returns for how long places
        are kept for pods that controllers create after others. `slow` evaluates selectors that take long; without it,
        the loop does. `cpu` returns the seconds of CPU time of the loop's thread.
        """
        self._cluster, self._pods, self._reporter = cluster, pods, reporter
        self._volume_binder, self._claim_binder = volume_binder, claim_binder
        self._preemptor, self._policy, self._lease, self._term = preemptor, policy, lease, term
        self._confirmed = confirmed
        self._fits, self._inherited, self._work, self._attempts = fits, inherited, work, attempts
        self._turn = Turn(cluster, cpu=cpu, slow=slow)
        self.reserver = Reserver(cluster=cluster, reporter=reporter, policy=policy, wall=wall)
        self._binds = asyncio.Semaphore(MAX_BINDS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._logged_failures: dict[str, str] = {}
        """Device type -> the last failure of its plug-in that was logged."""
        self._restored: int | None = None
        """The term in which the last leader's places were restored."""
        self._unanswered = False
        """Whether a Binding without an answer may still be executed."""
        self.turn_at = cluster.clock()
        """When the loop last ran, for the liveness probe."""
        self.recent_binds = RecentBinds()
        self._promises = GangPromises(cluster=cluster, policy=policy, seconds=promise_seconds, reporter=reporter)
        self._gangs = GangBinder(
            cluster=cluster,
            preemptor=preemptor,
            volume_binder=volume_binder,
            claim_binder=claim_binder,
            reporter=reporter,
            attempts=attempts,
            policy=policy,
            lease=lease,
            binds=self,
            promises=self._promises,
            turn=self._turn,
        )

    async def run(self) -> None:
        """Schedule until cancelled, or until the term ends."""
        term = self._term()
        inherited = self._inherited()
        self._cluster.gangs.restore_succeeded(inherited.succeeded_members)
        judge_found(self._cluster, self._reporter)
        self._preemptor.restore(inherited.lost_places)
        if self._fits is not None:
            self._fits.restore(inherited.promised_places)
        self._promises.restore(inherited.promised_gangs)
        self.reserver.restore(inherited)
        self._restored = term
        queue, turn = self._cluster.queue, self._turn
        while term is not None and self.leads(term):
            if self._failure is not None:
                raise self._failure
            self._work.clear()
            self.turn_at = self._cluster.clock()
            self._follow()
            turn.begin()
            is_more = self._fits is not None and self._fits.follow()
            while not turn.is_over():
                # Acquired before a unit is popped: nothing may change the unit between the queue and its decision.
                await self._binds.acquire()
                if (unit := turn.next_unit()) is None:
                    self._binds.release()
                    break
                is_bound = False
                with turn.deciding(unit), self._plugin_failures(unit):
                    if isinstance(unit, PendingPod):
                        is_bound = self._schedule_pod(unit, term)
                    else:
                        # Each member acquires its own slot to bind.
                        self._gangs.schedule(unit, term)
                if not is_bound:
                    self._binds.release()
            else:
                is_more = True
            turn.end()
            if is_more or queue.has_costly() or turn.review.wakes_one() or self._cluster.search_on():
                await asyncio.sleep(0)
                continue
            # Sleep until there is work or a back-off ends, for a second at most, to check the term.
            due, seconds = queue.next_due(), turn.review.due_in()
            if due is not None:
                seconds = min(seconds, due - self._cluster.clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(1.0, max(MIN_WAIT, seconds))):
                    await self._work.wait()

    def record(self, term: int) -> LeaderLeaseStatus | None:
        """Return what the leader of a term leaves to the next; None if it has not restored the last one's record.

        Raises:
            ValueError: the definition of the LeaderLease does not allow it.
        """
        if term != self._restored:
            return None
        return LeaderLeaseStatus(
            version=VERSION,
            node_reservations=list(self.reserver.reservations()),
            reservation_backoffs=list(self.reserver.backoffs()),
            promised_places=[] if self._fits is None else self._fits.record(),
            promised_gangs=self._promises.record(),
            lost_places=self._preemptor.progress.record(),
            succeeded_members=self._cluster.gang_tracker.record(),
        )

    async def drain(self) -> bool:
        """Stop waiting for volumes and claims, wait for the binds in flight, and return whether all were answered."""
        self._volume_binder.end()
        self._claim_binder.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN)
        return not (self._tasks or self._unanswered or self._claim_binder.unanswered)

    @contextlib.contextmanager
    def _plugin_failures(self, unit: PendingPod | Gang) -> Iterator[None]:
        """Return a context that backs off a unit for which a plug-in fails, and reports the failure.

        The unit's nominations are withdrawn. Nothing has been assumed or evicted yet: plug-ins only read the state.
        """
        try:
            yield
        except PluginFailedError as error:
            counters.PLUGIN_FAILURES.labels(error.device_type).inc()
            self._attempts.failed(pods_of(unit))
            # Logged once, not for every pod and attempt.
            if self._logged_failures.get(error.device_type) != str(error):
                self._logged_failures[error.device_type] = str(error)
                log.exception("plug-in failed", why=str(error))
            if isinstance(unit, Gang):
                self._cluster.gangs.back_off_and_gather(unit.membership)
            else:
                self._cluster.queue.back_off(self._preemptor.withdraw_nomination(unit), self._cluster.clock())
            for pod in pods_of(unit):
                self._reporter.unschedulable(pod, plugin_failure(error))

    def _follow(self) -> None:
        """Apply what events have changed since the last turn."""
        self._cluster.refresh_devices()
        self._preemptor.progress.follow()
        self.reserver.follow()
        self._promises.follow()

    def _schedule_pod(self, pod: PendingPod, term: int) -> bool:
        """Decide one pod, assume the placement and start to bind it; return whether a bind was started.

        A pod that fits nowhere is parked with its class, which waits for the same changes.
        """
        self._attempts.begin((pod,))
        queue = self._cluster.queue
        if queue.is_outdated(pod):
            self._turn.review.renew(pod.class_key)
        outcome: Placement | Failure | None = queue.parked_failure(pod)
        if outcome is None:
            policy = self._policy(pod.scheduler)
            outcome = self._cluster.decide(pod.priority, functools.partial(decide, self._cluster.fleet, pod, policy))
            if isinstance(outcome, Failure) and pod.lifetime:
                outcome = self.reserver.backfill(pod, policy) or outcome
            if isinstance(outcome, Failure):
                with self._cluster.promises.without_lower(pod.priority):
                    pod, outcome = self._preemptor.preempt_for(pod, outcome)
                outcome = self.reserver.explained(pod, outcome, policy)
                if kept := self._cluster.promises.number_of(pod.request):
                    note = promise_note.KEPT.format(kept)
                    outcome = replace(outcome, message=with_note(outcome.message, note))
        self._attempts.decided(pod)

        if isinstance(outcome, Failure):
            self._attempts.unschedulable((pod,))
            if self._turn.goes_on:
                queue.put_back(pod)
                self._reporter.unschedulable(pod, outcome)
                return False
            # Those of its class that were woken with it are parked, too, and each reports why it waits.
            followers = [follower for unit in queue.park(pod, outcome) for follower in pods_of(unit)]
            for parked in (pod, *followers):
                self._reporter.unschedulable(parked, self.reserver.annotated(parked, outcome))
                # One by one: what equal pods share stays, as with kube-scheduler.
                self.deallocate((parked,), outcome, term)
            self._turn.wait_for_selectors(pod)
            return False

        try:
            body = binding(outcome, term, self._lease, now=time.time_ns())
        except RecordError as error:
            self._attempts.failed((pod,))
            # Not parked with its class: another pod of the class may have fewer annotations and fit.
            queue.back_off(pod, self._cluster.clock())
            self._reporter.refused(pod, str(error))
            return False
        self._cluster.placements.assume(outcome)
        if outcome.volumes or outcome.claims:
            self.start_task(self._bind_claims_and_pod(outcome, body, term))
        else:
            self.start_task(self._bind_pod(outcome, body, term, has_slot=True))
        return True

    def deallocate(self, pods: Sequence[PendingPod], failure: Failure, term: int) -> None:
        """Deallocate the claims of a pod or gang that fits on none of their nodes; the last leader's, too.

        Claims for extended resources are deleted.
        """
        claims = self._cluster.fleet.claims
        claiming = [pod for pod in pods if pod.request.claims or claims.extended_of(pod.uid)]
        if claiming and dynamic_resources in failure.rejected_by and self._turn.is_complete:
            self.start_task(self._claim_binder.deallocate(claiming, lambda: self.leads(term)))

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine concurrently with decisions; an unexpected exception ends the process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def leads(self, term: int) -> bool:
        """Return whether we still lead in this term."""
        return self._term() == term

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A bug: `run` raises it, which restarts the process.
            self._failure = error
            self._work.set()

    async def _bind_claims_and_pod(self, placement: Placement, body: dict[str, object], term: int) -> None:
        """Bind a pod's volumes, then its ResourceClaims, and then the pod."""
        # Binding volumes may take minutes, and must not block the binds of other pods.
        self._binds.release()
        await self._confirmed(term)
        try:
            await self._volume_binder.bind(placement, lambda: self.leads(term))
            await self._claim_binder.bind(placement, lambda: self.leads(term))
        except GoneError:
            self._attempts.failed((placement.pod,))
            self._cluster.placements.forget(placement.pod.uid)
        except PreBindError as error:
            self.apply_outcome(placement, binder.refused(error.__cause__), str(error))
        else:
            await self._bind_pod(placement, body, term)

    async def _bind_pod(
        self, placement: Placement, body: dict[str, object], term: int, *, has_slot: bool = False
    ) -> None:
        """Send a Binding, and apply its outcome."""
        if (answer := await self.bind(placement, body, term, has_slot=has_slot)) is not None:
            await self.settle(placement, *answer, term=term)

    async def bind(
        self, placement: Placement, body: dict[str, object], term: int, *, has_slot: bool = False
    ) -> tuple[binder.BindOutcome, str] | None:
        """Send a Binding until the answer is definite, and return the answer; None if the term has ended.

        A refusal is definite only if no earlier send may still be executed. Each send has a slot of its own, so that
        Bindings that always fail do not keep the slots from others. `has_slot`: whether the slot for the first send has
        been acquired.
        """
        pod, pause, on_its_way_until = placement.pod, binder.BACKOFF.first, -math.inf
        sums = self._cluster.node_cache.raised_sums
        if (wait := sums.wait_seconds(placement.node, dict(pod.request.resources))) > 0:
            # Without a slot: all pods that wait for a new node would take them.
            if has_slot:
                self._binds.release()
            has_slot = False
            await asyncio.sleep(wait)
        for sends in itertools.count(1):
            if not has_slot:
                await self._binds.acquire()
            has_slot = False
            self._reporter.in_flight_binds.begin()
            try:
                await self._confirmed(term)
                if not self.leads(term):
                    break
                outcome, why = await binder.send(self._pods, placement, body, may_be_bound=sends > 1)
            finally:
                self._binds.release()
                self._reporter.in_flight_binds.end()
            if outcome in binder.INDEFINITE:
                self._unanswered = True
                on_its_way_until = self._cluster.clock() + binder.REQUEST_TIMEOUT
            elif outcome not in binder.REFUSALS or self._cluster.clock() >= on_its_way_until:
                return outcome, why
            log.warning("bind may still be executed, sending it again", pod=pod.key, outcome=outcome.value, error=why)
            is_answered = outcome is not binder.BindOutcome.UNANSWERED
            if sends >= REPORTED_SENDS and is_answered and pod.uid in self._cluster.pending:
                self._reporter.refused(pod, why, placement.node)
            await asyncio.sleep(pause)
            pause = binder.BACKOFF.following(pause)
        return None

    async def settle(self, placement: Placement, outcome: binder.BindOutcome, why: str, *, term: int) -> None:
        """Apply the outcome of a Binding, after the ResourceClaims of a pod that was refused are released."""
        if placement.claims and outcome in binder.REFUSALS:
            await self._claim_binder.release(placement, lambda: self.leads(term))
        self.apply_outcome(placement, outcome, why)

    def apply_outcome(self, placement: Placement, outcome: binder.BindOutcome, why: str) -> None:
        """Apply the outcome of a Binding: confirm the pod, or forget it and report why it was not bound."""
        pod = placement.pod
        counters.BINDS.labels(outcome.label).inc()
        if outcome is binder.BindOutcome.BOUND:
            self._attempts.bound(pod)
            self.recent_binds.keep(placement)
            self._cluster.placements.finish_binding(pod.uid)
            self._reporter.scheduled(placement, assigned.devices(self._cluster.fleet, placement))
            return
        self._attempts.failed((pod,))
        log.warning("bind failed", pod=pod.key, node=placement.node, outcome=outcome.value, why=why)
        self._cluster.placements.forget(pod.uid, outcome.longest_backoff)
        # After our term the next leader reports the pod, which may be bound by now.
        if outcome in binder.REFUSALS and self._term() is not None:
            self._reporter.refused(pod, why, placement.node)
