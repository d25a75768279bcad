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
from berth_operator.binding.workloads.promised_places import PromisedPlaces
from berth_operator.core.decision import promise
from berth_operator.core.decision.cycle import Failure, plugin_failure
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.messages import with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.promise import FoundPlaces
from berth_operator.core.decision.reservation_backoff import PATIENCE, Backoffs
from berth_operator.core.decision.workload_unit import unit_of
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.dependence import depends_on
from berth_operator.core.values.quota_workload import CheckAnswer, CheckSettings, CheckState, QuotaWorkload
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

MAX_PLACES: Final = leader_lease.MAX_PLACES
"""Places that are promised at once; further workloads wait until pods have taken theirs. Each adds some 0.03 ms to
a decision of a higher priority that fits nowhere, and nothing to others."""
MAX_WAITING: Final = 1000
"""Workloads that keep their quota while they wait; further ones return it."""
BATCH: Final = 32
"""Workloads that are decided before pods are."""
MAX_TURN: Final = 0.005
"""Seconds after which pods are decided as well."""
PERIOD: Final = 1.0
"""Seconds between two reviews of what waits or is promised, at least."""
SHARE: Final = 100.0
"""The time until the next review, as a multiple of the time that the last one took."""
FIRST_RETRY: Final = 10
MAX_RETRY: Final = 600
"""Seconds until Kueue may reserve quota again; doubled with each retry."""
REPORT: Final = 15.0
"""Seconds between two messages about the progress of a workload that waits."""
AGAIN: Final = 30.0
"""Seconds until places may be gathered for a class of workloads that could not fit in the empty cluster."""
MAX_REFUSED: Final = 1024

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
        self._refused: dict[Hashable, float] = {}
        """Requests of a workload that could not fit in the empty cluster -> when to look again."""
        self._vain = Counter[Hashable]()
        """Requests of a workload -> seconds in which places were gathered for such ones, and none became free."""
        self._backoffs = Backoffs[Hashable]()
        """Of such requests, by the wall clock."""
        self._arrivals = itertools.count()
        self._next_review = cluster.clock()

    # --- following the workloads --------------------------------------------------------------------------------

    def restore(self, inherited: Sequence[PromisedWorkload]) -> None:
        """Promise again what the last leader promised, before any pod is decided."""
        recorded, placed = {each.uid: each for each in inherited}, self._places.placed()
        for workload in self._places.ready(self._settings().promise):
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
            self._places.record(each.workload)
            for each in self._examined.values()
            if each is not self._gathering and self._promises.of(each.workload.key)
        ]

    def follow(self) -> bool:
        """Decide workloads that may fit; return whether others are left."""
        for key in self._cluster.workloads.take_changed():
            self._update(key)
        if self._gathering is not None and self._places.are_outdated():
            self._decide_now(self._gathering)
        is_more = self._decide_some()
        if (now := self._cluster.clock()) >= self._next_review:
            self._review(now)
            counters.PROMISED_PLACES.set(len(self._promises))
            self._next_review = now + max(PERIOD, SHARE * (self._cluster.clock() - now))
        return is_more

    def _update(self, key: str) -> None:
        """Follow a workload that has changed."""
        workload, examined = self._cluster.workloads.by_key.get(key), self._examined.get(key)
        if examined is not None and not _is_same_reservation(examined.workload, workload):
            self._end(examined)
            examined = None
        if workload is None or not workload.has_quota or workload.finished:
            return
        if examined is not None:
            self._shown(examined, workload)
        elif workload.state is CheckState.PENDING and not workload.waits_for_others:
            self._begin(workload)

    def _begin(self, workload: QuotaWorkload) -> None:
        if workload.problem:
            self._send(workload, CheckState.RETRY, workload.problem)
        elif (examined := self._examine(workload, self._places.present(workload))) is not None:
            self._queue.put(examined.unit)
        else:
            self._send(workload, CheckState.READY, "its pods are not scheduled by Berth")

    def _examine(self, workload: QuotaWorkload, present: Mapping[str, int]) -> Examined | None:
        """Begin to examine a workload; return None if Berth schedules none of its pods that are not `present`."""
        unit = unit_of(workload, self._cluster.gangs.schedules, next(self._arrivals), present)
        if unit is None:
            return None
        examined = self._examined[workload.key] = Examined(workload=workload, unit=unit, has_pods=bool(present))
        return examined

    def _shown(self, examined: Examined, workload: QuotaWorkload) -> None:
        """Compare what the API server shows with the last answer."""
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

    def _end(self, examined: Examined) -> None:
        """Stop examining a workload, and give up its places."""
        self._examined.pop(examined.workload.key, None)
        self._stop(examined)

    def _stop(self, examined: Examined) -> None:
        """Decide a workload no longer, and give up its places."""
        self._end_gathering(examined)
        self._queue.remove(examined.unit.uid)
        self._promises.release(examined.workload.key)

    def _end_gathering(self, examined: Examined) -> None:
        if examined is self._gathering:
            self._gathering = None
            self._places.end_reservations()

    # --- decisions ----------------------------------------------------------------------------------------------

    def _decide_some(self) -> bool:
        """Decide workloads in the order of the queue; return whether there may be more."""
        ends_at = self._cluster.clock() + MAX_TURN
        for _ in range(BATCH):
            unit = self._queue.pop(self._cluster.clock())
            if not isinstance(unit, Gang):
                return False
            self._decide(self._examined[unit.membership.group])
            if self._cluster.clock() >= ends_at:
                break
        return True

    def _decide(self, examined: Examined) -> None:
        pods = examined.unit.members
        if why := promise.undecidable(self._cluster.fleet, pods):
            self._finish(examined, CheckState.READY, f"no places are promised: {why}")
        elif not self._may_promise(examined):
            self._queue.back_off(examined.unit, self._cluster.clock())
        else:
            try:
                self._decided(examined, self._place(examined))
            except PluginFailedError as error:
                self._retry(examined, plugin_failure(error).message)

    def _may_promise(self, examined: Examined) -> bool:
        """Return whether there may be more promised places, for all pods of a workload."""
        more = len(examined.unit.members) - len(self._promises.of(examined.workload.key))
        return len(self._promises) + more <= MAX_PLACES or not self._promises

    def _place(self, examined: Examined) -> FoundPlaces:
        """Place the pods of a workload that have no promised place; if it gathers, as many as fit.

        All of them may also take the places of workloads of lower priority.
        """
        if examined is self._gathering:
            with self._cluster.fleet.without(self._places.reserved()):
                found = self._place_missing(examined, partly=True)
        else:
            found = self._place_missing(examined)
        if found.why is None:
            return found
        with self._promises.without_lower(examined.unit.priority) as is_any:
            above = self._place_missing(examined) if is_any else found
        return found if above.why is not None else above

    def _place_missing(self, examined: Examined, *, partly: bool = False) -> FoundPlaces:
        fleet, pods, own = self._cluster.fleet, examined.unit.members, self._promises.of(examined.workload.key)
        missing = [each for each in pods if each.uid not in own]
        found = promise.place_pods(fleet, missing, self._policy, partly=partly)
        if found.why is not None or not own or all(each.gang is None for each in pods):
            return found
        # Members of a gang that were placed one after the other may have GPUs that are not alike.
        with fleet.without(self._promises.places(examined.workload.key)):
            return promise.place_pods(fleet, pods, self._policy)

    def _decided(self, examined: Examined, found: FoundPlaces) -> None:
        if found.why is None:
            self._promises.keep(examined.workload.key, found.placed[:MAX_PLACES])
            self._ready(examined)
            self._make_way(examined)
        elif never := self._why_never(examined):
            self._finish(examined, CheckState.REJECTED, never)
        elif examined is self._gathering:
            self._gather(examined, found, found.why)
        elif self._may_gather(examined):
            self._begin_to_gather(examined)
        elif self._is_soon(examined):
            if math.isinf(examined.until):
                examined.until = self._cluster.clock() + self._settings().pending
            self._wait(examined, found.why, f"Places may be free within {self._settings().pending:.0f} s.")
        else:
            self._retry(examined, found.why.message)

    def _why_never(self, examined: Examined) -> str:
        if examined.may_fit:
            return ""
        grows = self._settings().fleet_grows
        why = promise.why_never(self._cluster.fleet, examined.unit.members, self._policy, fleet_grows=grows)
        examined.may_fit = not why
        return why

    def _is_soon(self, examined: Examined) -> bool:
        """Return whether its pods may fit once those have ended that are known to end soon."""
        if len(self._queue) > MAX_WAITING:
            return False
        gone = self._ending(int(self._cluster.wall() + self._settings().pending))
        members = examined.unit.members
        return bool(gone) and promise.has_capacity(self._cluster.fleet, members, self._policy, gone)

    def _ending(self, by: int) -> list[Charge]:
        """Return the placed pods that have ended by a time, in seconds since 1970, or that end some day."""
        fleet = self._cluster.fleet
        return [each for each in fleet.charges.values() if each.ends <= by or fleet.is_leaving(each)]

    # --- gathering ----------------------------------------------------------------------------------------------

    def _may_gather(self, examined: Examined) -> bool:
        """Return whether places are gathered for a workload: the highest priority, then the first one."""
        other, unit, now = self._gathering, examined.unit, self._cluster.clock()
        if not self._settings().gather or len(unit.members) > MAX_PLACES or examined.has_pods:
            return False
        if other is not None and other.unit.priority >= unit.priority:
            return False
        key = _class_of(unit)
        if self._refused.get(key, now) > now or key in self._backoffs.in_vain(self._cluster.wall()):
            return False
        gone = [each for each in self._ending(ending.NEVER - 1) if not self._waits_for(each, unit)]
        with self._promises.without_lower(unit.priority):
            if promise.has_capacity(self._cluster.fleet, unit.members, self._policy, gone):
                return True
        self._refused = {other: until for other, until in self._refused.items() if until > now}
        if len(self._refused) < MAX_REFUSED:
            self._refused[key] = now + AGAIN
        return False

    def _waits_for(self, charge: Charge, unit: Gang) -> bool:
        """Return whether the end of a placed pod is not known, and depends on a workload's pods."""
        # Most pods are of another namespace.
        if charge.ends < ending.UNKNOWN or not charge.pod.startswith(f"{unit.members[0].namespace}/"):
            return False
        is_waiting = any(depends_on(charge, each) for each in {each.request: each for each in unit.members}.values())
        return is_waiting and not self._cluster.fleet.is_leaving(charge)

    def _begin_to_gather(self, examined: Examined) -> None:
        if (other := self._gathering) is not None:
            self._retry(other, f"places are gathered for a workload of higher priority: {_message(other)}")
        self._gathering = examined
        examined.until = self._cluster.clock() + self._settings().gather
        log.info("gathering places", workload=examined.workload.key, pods=len(examined.unit.members))
        # Again, because its priority may have taken the places of the other one, and now as many as fit.
        self._decided(examined, self._place(examined))

    def _gather(self, examined: Examined, found: FoundPlaces, why: Failure) -> None:
        self._promises.keep(examined.workload.key, found.placed)
        self._places.reserve(examined.workload.key, examined.unit.members)
        kept, pods = len(self._promises.of(examined.workload.key)), len(examined.unit.members)
        examined.gathered = kept if examined.gathered is None else examined.gathered
        self._wait(examined, why, f"Places are gathered: {kept} of {pods} pod(s) have one.")

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
        pause = min(FIRST_RETRY * 2 ** min(workload.retries, 16), MAX_RETRY) if state is CheckState.RETRY else None
        answer = CheckAnswer(workload=workload, state=state, message=message, requeue_after=pause)
        counters.CHECK_ANSWERS.labels(state.value).inc()
        self._answer(answer)
        return answer

    # --- reviews ------------------------------------------------------------------------------------------------

    def _review(self, now: float) -> None:
        """End what has waited for too long, and search lost places again."""
        for late in [each for each in self._examined.values() if each.until <= now]:
            self._out_of_time(late)
        for key, uids in self._places.doubtful().items():
            self._search_again(self._examined[key], uids)
        if self._gathering is not None:
            # Its reserved nodes may have changed, though none of its pods fits yet.
            self._decide_now(self._gathering)

    def _make_way(self, examined: Examined) -> None:
        """Search the places again that a workload of higher priority has taken."""
        for key, uids in self._places.taken_for(examined.workload.key, examined.unit.priority).items():
            self._search_again(self._examined[key], uids)

    def _decide_now(self, examined: Examined) -> None:
        """Decide a workload before others, whether or not it is parked."""
        self._queue.remove(examined.unit.uid)
        self._decide(examined)

    def _out_of_time(self, examined: Examined) -> None:
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
        """Count the time for which places were gathered in vain; after a while such workloads wait for the next time.

        A new leader counts from the beginning.
        """
        key = _class_of(examined.unit)
        if len(self._promises.of(examined.workload.key)) > (examined.gathered or 0):
            del self._vain[key]
            return
        self._vain[key] += max(1, int(seconds))
        if self._vain[key] >= PATIENCE:
            del self._vain[key]
            self._backoffs.add(key, self._cluster.wall())
        if len(self._vain) > MAX_REFUSED:
            self._vain.clear()
        self._backoffs.keep(lambda: {_class_of(each.unit) for each in self._examined.values()})

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


def _is_same_reservation(before: QuotaWorkload, after: QuotaWorkload | None) -> bool:
    if after is None or not after.has_quota or after.finished:
        return False
    return (before.uid, before.since) == (after.uid, after.since)


def _class_of(unit: Gang) -> Hashable:
    return frozenset(Counter(unit.requests).items())


def _message(examined: Examined) -> str:
    return "" if examined.answer is None else examined.answer.message
