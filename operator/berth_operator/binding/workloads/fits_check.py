"""The AdmissionCheck `berth.dev/fits-devices`: a workload of Kueue is admitted once all its pods have places.

The scheduling loop calls `follow` before it takes pods from the queue. `follow` decides the workloads with quota one
after another, by priority and age. If a workload fits, its places are promised and its state becomes Ready. Other
workloads wait for places that become free soon, or return their quota (Retry). For one waiting workload at a time,
places are gathered, so that smaller workloads do not starve it. `core.decision.promise` makes the decision.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from berth_api.objects import leader_lease
from berth_api.objects.leader_lease import PromisedWorkload
from berth_api.values.backoff import ExponentialBackoff
from berth_operator.binding.workloads.promised_places import PromisedPlaces
from berth_operator.core.decision import promise
from berth_operator.core.decision.cycle import Failure, plugin_failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.messages import with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.promise import FoundPlaces
from berth_operator.core.decision.reservation_backoff import PATIENCE, Backoffs
from berth_operator.core.decision.workload_unit import unit_of
from berth_operator.core.fleet.kubelet_allocation import leaves_soon
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.queue.queue import order_of
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.dependence import depends_on
from berth_operator.core.values.quota_workload import CheckAnswer, CheckSettings, CheckState, QuotaWorkload
from berth_operator.core.values.verdict import Change
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

MAX_PLACES: Final = leader_lease.MAX_PLACES
"""Places that are promised at once; further workloads wait until pods have taken theirs. Each adds some 0.03 ms to
a decision of a higher priority that fits nowhere, and nothing to others."""
MAX_WAITING: Final = 1000
"""Workloads that keep their quota while they wait. Further workloads return their quota."""
BATCH: Final = 32
"""Workloads that are decided before pods are."""
MAX_TURN: Final = 0.005
"""Seconds after which pods are decided as well."""
PERIOD: Final = 1.0
"""Seconds between two reviews of what waits or is promised, at least."""
SHARE: Final = 100.0
"""The time until the next review, as a multiple of the time that the last one took."""
RETRIES: Final = ExponentialBackoff(first=10, longest=600)
"""Until Kueue may reserve quota again."""
REPORT: Final = 15.0
"""Seconds between two messages about the progress of a workload that waits."""
AGAIN: Final = 30.0
"""Seconds until places may be gathered for a class of workloads that could not fit in the empty cluster."""
MAX_REFUSED: Final = 1024

TOO_MANY: Final = Failure(
    message=f"at most {MAX_PLACES:,} places are promised at once, and other workloads have them or come first.",
    wakes_on=Change(0),
)
"""Why a workload waits until fewer places are promised; no change of the cluster wakes it."""

NOT_CREATED: Final = "Its pods would not be created."

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Examined:
    """What is known of a workload during one reservation of its quota."""

    workload: QuotaWorkload
    unit: Gang
    answer: CheckAnswer | None = None
    """The last answer."""
    answered_at: float = -math.inf
    until: float = math.inf
    """When it has waited, or its places are kept, for too long."""
    may_fit: bool = False
    """Whether some node could take each of its pods."""
    gathered: int | None = None
    """How many places it had when places began to be gathered for it."""
    is_refused: bool = False
    """Whether it waits for room in the quotas of its namespace."""
    has_pods: bool = False
    """Whether it is an elastic job that grows: Kueue would end the pods that it has with its quota."""


class FitsCheck:
    """Decides the AdmissionCheck of workloads for one term."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        policy: Callable[[str], Policy],
        settings: Callable[[], CheckSettings],
        answer: Callable[[CheckAnswer], None],
    ) -> None:
        """Create the check; `answer` is called with each answer, and must return at once."""
        self._cluster, self._policy, self._settings, self._answer = cluster, policy, settings, answer
        self._queue, self._promises = cluster.workload_queue, cluster.promises
        self._places = PromisedPlaces(cluster=cluster, policy=policy)
        self._examined: dict[str, Examined] = {}
        """namespace/name -> a workload that is undecided, or has promised places."""
        self._gathering: Examined | None = None
        """The workload for which places are gathered."""
        self._first: Examined | None = None
        """The first workload in the queue of those that wait until fewer places are promised."""
        self._refused: dict[Hashable, float] = {}
        """Requests of a workload that could not fit in the empty cluster -> when to look again."""
        self._vain = Counter[Hashable]()
        """Requests of a workload -> seconds for which places were gathered for such workloads, and none became free."""
        self._backoffs = Backoffs[Hashable]()
        """Back-offs of such requests, by the monotonic clock."""
        self._arrivals = itertools.count()
        self._next_review = cluster.clock()

    # --- following the workloads --------------------------------------------------------------------------------

    def restore(self, inherited: Sequence[PromisedWorkload]) -> None:
        """Promise again what the last leader promised, before any pod is decided."""
        recorded, placed = {record.uid: record for record in inherited}, self._places.placed()
        ready = self._places.ready(self._settings().promise)
        # Recorded places first: workloads without a record search for places that are left.
        for workload in sorted(ready, key=lambda workload: workload.uid not in recorded):
            if (examined := self._examine(workload, {})) is None:
                continue
            examined.answer = CheckAnswer(workload=workload, state=CheckState.READY, message=workload.message)
            pods = examined.unit.members
            if promise.undecidable(self._cluster.fleet, pods):
                continue
            if (why := self._places.restore(workload, pods, recorded.get(workload.uid), placed)) is not None:
                self._lost(examined, why)
            elif self._promises.of(workload.key):
                examined.until = self._cluster.clock() + self._settings().promise
        self._places.hand_over_pending()

    def record(self) -> list[PromisedWorkload]:
        """Return the promised places, for the next leader; places that are gathered are none yet."""
        return [
            self._places.record(examined.workload)
            for examined in self._examined.values()
            if examined is not self._gathering and self._promises.of(examined.workload.key)
        ]

    def follow(self) -> bool:
        """Decide workloads that may fit; return whether others are left."""
        for key in self._cluster.workloads.take_changed():
            self._update(key)
        if self._gathering is not None and self._places.are_outdated():
            self._decide_now(self._gathering)
        if self._first is not None and not self._exceeds(self._first):
            self._wake_waiting()
        self._review_rules()
        ends_at, is_more = self._cluster.clock() + MAX_TURN, True
        for _ in range(BATCH):
            unit = self._queue.pop(self._cluster.clock())
            if not isinstance(unit, Gang):
                is_more = False
                break
            self._decide(self._examined[unit.membership.group])
            if self._cluster.clock() >= ends_at:
                break
        if (now := self._cluster.clock()) >= self._next_review:
            # End what has waited for too long, and search lost places again.
            for late in [examined for examined in self._examined.values() if examined.until <= now]:
                self._end_in_time(late)
            for key, uids in self._places.doubtful(self._examined).items():
                self._search_again(self._examined[key], uids)
            if self._gathering is not None:
                # Its reserved nodes may have changed, though none of its pods fits yet.
                self._decide_now(self._gathering)
            self._next_review = now + max(PERIOD, SHARE * (self._cluster.clock() - now))
        if self._cluster.fleet.claims.supply.work.goes_on:
            return self._queue.wake(Change.CLAIM_DEVICES) or is_more
        return is_more

    def _update(self, key: str) -> None:
        """Follow a workload that has changed."""
        workload, examined = self._cluster.workloads.by_key.get(key), self._examined.get(key)
        if workload is None or not workload.has_quota or workload.finished:
            if examined is not None:
                self._end(examined)
            return
        if examined is not None and (examined.workload.uid, examined.workload.since) != (workload.uid, workload.since):
            # Another reservation of quota.
            self._end(examined)
            examined = None
        if examined is None:
            if workload.state is not CheckState.PENDING or workload.waits_for_others:
                return
            if workload.problem:
                self._send(workload, CheckState.RETRY, workload.problem)
            elif (examined := self._examine(workload, self._places.present(workload))) is not None:
                self._queue.put(examined.unit)
            else:
                self._send(workload, CheckState.READY, "its pods are not scheduled by Berth")
            return
        # Compare what the API server shows with the last answer.
        answer, was_admitted = examined.answer, examined.workload.admitted
        examined.workload = workload
        if answer is None or answer.state is CheckState.PENDING:
            return
        if workload.state is CheckState.PENDING:
            # The answer is on its way, or was dropped because the workload had changed.
            self._answer(replace(answer, workload=workload))
        elif workload.state is not CheckState.READY or not self._promises.of(workload.key):
            self._end(examined)
        elif workload.admitted and not was_admitted:
            examined.until = self._cluster.clock() + self._settings().promise

    def _examine(self, workload: QuotaWorkload, present: Mapping[str, int]) -> Examined | None:
        """Begin to examine a workload; return None if Berth schedules none of its pods that are not `present`."""
        unit = unit_of(workload, self._cluster.gangs.schedules, next(self._arrivals), present)
        if unit is None:
            return None
        examined = self._examined[workload.key] = Examined(workload=workload, unit=unit, has_pods=bool(present))
        return examined

    def _end(self, examined: Examined) -> None:
        """Stop examining a workload, and give up its places."""
        self._examined.pop(examined.workload.key, None)
        self._stop(examined)

    def _stop(self, examined: Examined) -> None:
        """Decide a workload no longer, and give up its places."""
        if examined is self._first:
            self._wake_waiting()
        self._end_gathering(examined)
        self._queue.remove(examined.unit.uid)
        self._promises.release(examined.workload.key)

    def _end_gathering(self, examined: Examined) -> None:
        if examined is self._gathering:
            self._gathering = None
            self._places.end_reservations()

    # --- decisions ----------------------------------------------------------------------------------------------

    def _decide(self, examined: Examined) -> None:
        pods = examined.unit.members
        if why := promise.undecidable(self._cluster.fleet, pods):
            self._finish(examined, CheckState.READY, f"no places are promised: {why}")
            return
        if why := self._refusal(examined):
            self._wait_for_quota(examined, why)
            return
        if not self._may_promise(examined):
            return
        try:
            self._decided(examined, self._place(examined))
        except PluginFailedError as error:
            self._retry(examined, plugin_failure(error).message)

    def _refusal(self, examined: Examined) -> str:
        """Return why admission would not create the pods of a workload; empty if it would.

        Pods that exist, which Kueue holds back by scheduling gates, are counted as used.
        """
        missing = examined.unit.members[examined.workload.existing :]
        own = {pod.uid for pod in missing}
        refused = self._cluster.admission_rules.refusal(missing, self._cluster.gangs.not_created(own))
        return "" if refused is None else refused.why

    def _wait_for_quota(self, examined: Examined, why: str) -> None:
        """Keep a workload waiting, without places, until its namespace has room for its pods."""
        self._end_gathering(examined)
        self._promises.release(examined.workload.key)
        if len(self._queue) > MAX_WAITING:
            self._retry(examined, f"{why}. {NOT_CREATED}")
            return
        examined.is_refused = True
        if math.isinf(examined.until):
            examined.until = self._cluster.clock() + self._settings().pending
        self._wait(examined, Failure(message=f"{why}.", wakes_on=Change(0)), NOT_CREATED)

    def _review_rules(self) -> None:
        """Decide the workloads again whose namespaces have more room, and take places back where they have less."""
        rules = self._cluster.admission_rules
        if not (rules.loosened or rules.tightened_for_workloads):
            return
        loosened, tightened = rules.loosened.take(), rules.tightened_for_workloads.take()
        for examined in list(self._examined.values()):
            workload = examined.workload
            if examined.is_refused and workload.namespace in loosened:
                examined.is_refused = False
                self._queue.wake_class(examined.unit.class_key)
            is_ready = examined.answer is not None and examined.answer.state is CheckState.READY
            is_concerned = is_ready and not workload.admitted and workload.namespace in tightened
            if is_concerned and (why := self._refusal(examined)):
                self._retry(examined, f"{why}. {NOT_CREATED}")

    def _may_promise(self, examined: Examined) -> bool:
        """Return whether places may be promised to a workload now; otherwise it waits until fewer are promised.

        Those that come after it in the queue wait, too: small workloads would take each place that becomes available.
        """
        is_behind = self._first is not None and order_of(self._first.unit) < order_of(examined.unit)
        if not is_behind and not self._exceeds(examined):
            if examined is self._first:
                self._wake_waiting()
            return True
        if is_behind and len(self._queue) > MAX_WAITING:
            self._retry(examined, TOO_MANY.message)
            return False
        if not is_behind:
            self._first = examined
        if math.isinf(examined.until):
            # The promises that exist now end before that: their time starts again when Kueue admits their workloads.
            settings = self._settings()
            examined.until = self._cluster.clock() + settings.gather + 2 * settings.promise
        self._wait(examined, TOO_MANY, f"{examined.unit.size:,} place(s) are needed.")
        return False

    def _exceeds(self, examined: Examined) -> bool:
        """Return whether a workload needs more places than may still be promised.

        If no other workload has places, it gets as many as may be promised.
        """
        more = examined.unit.size - len(self._promises.of(examined.workload.key))
        return len(self._promises) + more > MAX_PLACES and any(
            self._promises.of(key) for key, other in self._examined.items() if other is not examined
        )

    def _wake_waiting(self) -> None:
        """Decide the workloads that wait until fewer places are promised, in the order of the queue."""
        self._first = None
        for parked in self._queue.parked():
            if parked.failure is TOO_MANY:
                self._queue.wake_class(parked.unit.class_key)

    def _place(self, examined: Examined) -> FoundPlaces:
        """Place the pods of a workload that have no promised place. While gathering, place as many as fit.

        All of them may also take the places of workloads of lower priority.
        """
        if examined is self._gathering:
            with self._cluster.fleet.without(self._places.reserved()):
                places = self._place_missing(examined, partly=True)
        else:
            places = self._place_missing(examined)
        if places.why is None:
            return places
        with self._promises.without_lower(examined.unit.priority) as is_any:
            above = self._place_missing(examined) if is_any else places
        return places if above.why is not None else above

    def _place_missing(self, examined: Examined, *, partly: bool = False) -> FoundPlaces:
        fleet, pods, own = self._cluster.fleet, examined.unit.members, self._promises.of(examined.workload.key)
        missing = [pod for pod in pods if pod.uid not in own]
        places = promise.place_pods(fleet, missing, self._policy, partly=partly)
        if places.why is not None or not own or all(pod.gang is None for pod in pods):
            return places
        # Members of a gang that were placed one after the other may have GPUs that are not alike.
        with fleet.without(self._promises.places(examined.workload.key)):
            return promise.place_pods(fleet, pods, self._policy)

    def _decided(self, examined: Examined, places: FoundPlaces) -> None:
        """Answer: all pods have places, none ever will, places are gathered, may be free soon, or the quota returns."""
        key, members, settings = examined.workload.key, examined.unit.members, self._settings()
        fleet, clock = self._cluster.fleet, self._cluster.clock
        if places.why is None:
            self._promises.keep(key, places.placed)
            self._ready(examined)
            # Search the places again that it has taken from workloads of lower priority.
            for other, uids in self._places.taken_for(key, examined.unit.priority, self._examined).items():
                self._search_again(self._examined[other], uids)
            return
        if not examined.may_fit:
            if never := promise.why_never(fleet, members, self._policy, fleet_grows=settings.fleet_grows):
                self._finish(examined, CheckState.REJECTED, never)
                return
            examined.may_fit = True
        if examined is self._gathering:
            self._promises.keep(key, places.placed)
            self._places.reserve(key, members)
            kept = len(self._promises.of(key))
            examined.gathered = kept if examined.gathered is None else examined.gathered
            self._wait(examined, places.why, f"Places are gathered: {kept} of {len(members)} pod(s) have one.")
            return
        if self._may_gather(examined):
            if (before := self._gathering) is not None:
                self._retry(before, f"places are gathered for a workload of higher priority: {_message(before)}")
            self._gathering = examined
            examined.until = clock() + settings.gather
            log.info("gathering places", workload=key, pods=len(members))
            # Again, because its priority may have taken the places of the other one, and now as many as fit.
            self._decided(examined, self._place(examined))
            return
        # Its pods may fit once those have ended that are known to end soon.
        gone = self._ending(int(self._cluster.wall() + settings.pending)) if len(self._queue) <= MAX_WAITING else []
        if gone and promise.has_capacity(fleet, members, self._policy, gone):
            if math.isinf(examined.until):
                examined.until = clock() + settings.pending
            self._wait(examined, places.why, f"Places may be free within {settings.pending:.0f} s.")
        else:
            self._retry(examined, places.why.message)

    def _ending(self, by: int) -> list[Charge]:
        """Return the placed pods that have ended by a time, in seconds since 1970, or that are expected to end soon."""
        fleet = self._cluster.fleet
        charges = (charge for charge in fleet.charges.values() if charge.uid not in fleet.overdue)
        return [charge for charge in charges if charge.ends <= by or leaves_soon(fleet, charge)]

    # --- gathering ----------------------------------------------------------------------------------------------

    def _may_gather(self, examined: Examined) -> bool:
        """Return whether places are gathered for a workload: the highest priority, then the first one."""
        other, unit, now = self._gathering, examined.unit, self._cluster.clock()
        if not self._settings().gather or len(unit.members) > MAX_PLACES or examined.has_pods:
            return False
        if other is not None and other.unit.priority >= unit.priority:
            return False
        key = _class_of(unit)
        if self._refused.get(key, now) > now or key in self._backoffs.in_vain(self._cluster.clock()):
            return False
        gone: list[Charge] = []
        requests = {member.request: member for member in unit.members}.values()
        for charge in self._ending(ending.NEVER - 1):
            # Of some placed pods the end is not known, and depends on the workload's own pods. Most pods are of another
            # namespace.
            depends = (
                charge.ends >= ending.UNKNOWN
                and charge.pod.startswith(f"{unit.members[0].namespace}/")
                and any(depends_on(charge, member) for member in requests)
            )
            if not depends or leaves_soon(self._cluster.fleet, charge):
                gone.append(charge)
        with self._promises.without_lower(unit.priority):
            if promise.has_capacity(self._cluster.fleet, unit.members, self._policy, gone):
                return True
        self._refused = {other: until for other, until in self._refused.items() if until > now}
        if len(self._refused) < MAX_REFUSED:
            self._refused[key] = now + AGAIN
        return False

    # --- answers ------------------------------------------------------------------------------------------------

    def _ready(self, examined: Examined, trouble: str = "") -> None:
        """Report that all pods have their places, or which are lost."""
        workload = examined.workload
        examined.until = self._cluster.clock() + self._settings().promise
        message = self._places.note(workload)
        self._end_gathering(examined)
        self._queue.remove(examined.unit.uid)
        examined.answer = self._send(workload, CheckState.READY, "; ".join(filter(None, (message, trouble))))

    def _wait(self, examined: Examined, why: Failure, note: str) -> None:
        """Park a workload, which keeps its quota, and report why from time to time."""
        self._queue.park(examined.unit, why)
        now, message = self._cluster.clock(), with_note(why.message, note)
        is_other = examined.answer is None or examined.answer.message != message
        if is_other and now >= examined.answered_at + REPORT:
            examined.answered_at = now
            examined.answer = self._send(examined.workload, CheckState.PENDING, message)

    def _retry(self, examined: Examined, message: str) -> None:
        self._finish(examined, CheckState.RETRY, message)

    def _finish(self, examined: Examined, state: CheckState, message: str) -> None:
        """End the decision with an answer, and keep no places; if that would end pods, decide again after a while."""
        self._stop(examined)
        examined.until = math.inf
        if state is not CheckState.READY and examined.has_pods:
            state = CheckState.PENDING
            self._queue.back_off(examined.unit, self._cluster.clock())
        examined.answer = self._send(examined.workload, state, message)

    def _send(self, workload: QuotaWorkload, state: CheckState, message: str) -> CheckAnswer:
        pause = int(RETRIES.after(workload.retries + 1)) if state is CheckState.RETRY else None
        answer = CheckAnswer(workload=workload, state=state, message=message, requeue_after=pause)
        counters.CHECK_ANSWERS.labels(state.value).inc()
        self._answer(answer)
        return answer

    # --- reviews ------------------------------------------------------------------------------------------------

    def _decide_now(self, examined: Examined) -> None:
        """Decide a workload before others, whether or not it is parked."""
        self._queue.remove(examined.unit.uid)
        self._decide(examined)

    def _end_in_time(self, examined: Examined) -> None:
        """End the wait, or the promise, of a workload whose time is over."""
        workload, settings = examined.workload, self._settings()
        if examined.answer is None or examined.answer.state is not CheckState.READY:
            if examined is self._gathering:
                self._gathered_for(examined, settings.gather)
            self._retry(examined, _message(examined))
        elif workload.admitted:
            if places := len(self._promises.of(workload.key)):
                log.info("promised places given up", workload=workload.key, places=places)
            self._end(examined)
        else:
            self._retry(examined, f"its places were kept for {settings.promise:.0f} s, but it was not admitted")

    def _gathered_for(self, examined: Examined, seconds: float) -> None:
        """Count the time for which places were gathered in vain. After a while, such workloads must wait.

        A new leader counts from the beginning.
        """
        key = _class_of(examined.unit)
        if len(self._promises.of(examined.workload.key)) > (examined.gathered or 0):
            del self._vain[key]
            return
        self._vain[key] += max(1, int(seconds))
        if self._vain[key] >= PATIENCE:
            del self._vain[key]
            self._backoffs.add(key, self._cluster.clock())
        if len(self._vain) > MAX_REFUSED:
            self._vain.clear()
        self._backoffs.keep(lambda: {_class_of(examined.unit) for examined in self._examined.values()})

    def _search_again(self, examined: Examined, uids: Collection[str]) -> None:
        """Search places again that may be lost."""
        try:
            before, why = self._places.note(examined.workload), self._places.search_again(examined.workload.key, uids)
        except PluginFailedError as error:
            before, why = "", plugin_failure(error)
        if examined is self._gathering:
            # It is decided again, in place of what it has lost.
            self._decide_now(examined)
        elif why is not None:
            self._lost(examined, why)
        elif self._places.note(examined.workload) != before:
            self._ready(examined)

    def _lost(self, examined: Examined, why: Failure) -> None:
        """Report that places were lost and that there are no others."""
        workload = examined.workload
        counters.LOST_PLACES.inc()
        log.warning("promised places lost", workload=workload.key, admitted=workload.admitted, why=why.message)
        if not workload.admitted:
            self._retry(examined, f"promised places were lost: {why.message}")
            return
        kept = len(self._promises.of(workload.key))
        self._ready(examined, f"promised places were lost, {kept} are left, pods without one wait: {why.message}")


def _class_of(unit: Gang) -> Hashable:
    return frozenset(Counter(unit.requests).items())


def _message(examined: Examined) -> str:
    return "" if examined.answer is None else examined.answer.message
