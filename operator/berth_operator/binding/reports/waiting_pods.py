"""Report waiting pods at a bounded cost: the PodScheduled condition, the nominated node and an Event.

Each pod has one record of what is to be written, and at most one write in flight. A pod's reason may change whenever
anything in the cluster changes, so writes are held back:

* The first reason is written as soon as the bucket allows, before any later reason.
* Another reason is written `SETTLE` seconds after the last change of the reason and of the state that it was decided
  on. A pod has `CREDIT` of these writes and gets a new one every `REFILL` seconds. Without credit, `LONG_SETTLE`
  seconds must have passed. So a state that changes every few seconds does not cost a write each time.
* If the state never settles, a reason is written once it has been unchanged for `STABLE` seconds, or after `MAX_HOLD`
  seconds of change. `QUIET` seconds must have passed since the last write of this pod.
* A changed spec or nominated node is written at once. A change from `Unschedulable` to another reason is also written
  at once, because autoscalers add nodes for `Unschedulable`.

A failed write is retried as long as the pod waits, so conditions end up with the current reason.

Events form series as in client-go's recorder. The second occurrence is written. When the series ends, the last count is
written. Occurrences in between are only counted. Conditions are written before Events. Memory grows only with the
number of waiting pods: each has one record.
"""

import asyncio
import contextlib
import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_client import times
from berth_client.errors import ApiError, CallError, refuser_of
from berth_client.refusals import is_for_good
from berth_operator.binding.reports.events import Event, EventApi, Subject, drop, event_name, microtime
from berth_operator.binding.reports.in_flight_binds import InFlightBinds
from berth_operator.clients.bucket import Bucket
from berth_operator.core.decision.messages import UNSCHEDULABLE
from berth_operator.core.values.request import PendingPod

RATE: Final = 250.0
"""Reports a second, of one status and one Event each; also the largest burst."""
WRITERS: Final = 16
"""Reports in flight: at 250 a second each may take 64 ms."""
PATIENCE: Final = 0.25
"""Seconds for which a report lets binds go first. A pod's first report should come within one second."""
QUIET: Final = 10.0
"""Seconds between two reports of a pod while the state keeps changing."""
SETTLE: Final = 0.5
"""Seconds without a change of reason and state after which another reason is written."""
LONG_SETTLE: Final = 2.5
"""The same for a pod that has no credit left."""
CREDIT: Final = 4
"""Writes after `SETTLE` seconds that a pod may have in quick succession."""
REFILL: Final = 30.0
"""Seconds after which a pod may have one more."""
STABLE: Final = 5.0
"""Seconds that a reason must last while the state keeps changing. They are more than `review.INTERVAL`, so that it was
decided twice."""
MAX_HOLD: Final = 30.0
"""Seconds after which a changed reason is written even if it keeps changing."""
UNKNOWN: Final = -1
"""A generation that no pod has."""
SERIES: Final = 360.0
"""Seconds that a series of Events lasts, like client-go's `finishTime`."""
MIN_PAUSE: Final = 0.01
"""Seconds between two looks at the reports that are held back, at least."""
MAX_RETRY: Final = 60.0
"""Seconds between two attempts at a report that fails."""
MAX_CONFLICTS: Final = 4
"""Failures of one report, of any kind, after which a conflict shows that the pod was replaced."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class WaitingPodApi(EventApi, Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def patch_event(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        """Patch an events.k8s.io/v1 Event."""

    async def patch_pod_status(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        """Patch a pod's status by strategic merge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a pod waits."""

    message: str
    condition: str
    """Reason of the PodScheduled condition."""
    event: str
    """Reason of the Event."""
    refused_on: str = field(default="", compare=False)
    """The node that the pod was decided for, if the API server refused the Binding; not written."""


@dataclass(slots=True, eq=False)
class _Series:
    """Events of one pod with one reason, shown as one Event, which keeps the note of the first occurrence."""

    event: Event
    began: float
    count: int = 0
    recorded: int = 0
    """The count that the API server shows; 0 while there is no Event."""

    def due(self) -> float:
        """Return when to write the count; infinity if it has been written."""
        if self.recorded == self.count:
            return math.inf
        return -math.inf if self.recorded < 2 else self.began + SERIES  # noqa: PLR2004 - a series begins with two

    def shown(self) -> dict[str, Any]:
        """Return the field `series`, empty for a single Event."""
        return {"series": {"count": self.count, "lastObservedTime": microtime()}} if self.count > 1 else {}


@dataclass(slots=True, eq=False)
class _Record:
    """A waiting pod: what must be written, and what has been written."""

    pod: PendingPod
    written: str
    """The message of the condition; empty while there is none."""
    written_reason: str
    """The reason of the condition."""
    generation: int
    """The pod's generation when the condition was written; `UNKNOWN` after a write without an answer."""
    reason: Reason | None = None
    nominated_node: str | None = None
    """The nominated node to write; None if it has been written."""
    reported_at: float = -math.inf
    changed_at: float = -math.inf
    """When the reason last changed."""
    decided_at: float = -math.inf
    """When the reason was last decided, changed or not."""
    differs_since: float = -math.inf
    """When the reason began to differ from the written one."""
    series: dict[str, _Series] = field(default_factory=dict)
    """Event reason -> its series: at most one for each `Reason.event`."""
    counted: str = ""
    """The message that the series counted last."""
    credit: float = CREDIT
    """Writes after `SETTLE` seconds that were left at `credit_at`."""
    credit_at: float = -math.inf
    failures: int = 0
    refused: str = ""
    """Why the API server refuses the condition until a person acts; empty if it does not."""
    retry_at: float = -math.inf
    in_flight: bool = False
    ready_at: float = 0.0

    @property
    def is_first(self) -> bool:
        """Return whether nothing has been reported about this pod yet."""
        return not self.written

    @property
    def differs(self) -> bool:
        """Return whether the condition does not state the reason."""
        if self.reason is None:
            return False
        written = self.written_reason, self.written, self.generation
        return (self.reason.condition, self.reason.message, self.pod.generation) != written

    def events_due(self) -> float:
        """Return when the next count of Events may be written; infinity if there is none."""
        return max(self.retry_at, min((event_series.due() for event_series in self.series.values()), default=math.inf))

    def status_due(self, state_changed_at: float) -> float:
        """Return when the status may be written; infinity if it states all, or waits for another decision."""
        condition = "" if self.reason is None else self.reason.condition
        was_unschedulable = self.written_reason == UNSCHEDULABLE != condition
        is_urgent = self.is_first or self.pod.generation != self.generation or was_unschedulable
        if self.nominated_node is not None or (self.differs and is_urgent):
            return self.retry_at
        if not self.differs:
            return math.inf
        settled = math.inf
        if self.decided_at >= state_changed_at:
            # The reason is of the current state.
            since = max(state_changed_at, self.changed_at)
            has_credit_at = self.credit_at + (1.0 - self.credit) * REFILL
            settled = min(max(since + SETTLE, has_credit_at), since + LONG_SETTLE)
        unsettled = max(self.reported_at + QUIET, min(self.changed_at + STABLE, self.differs_since + MAX_HOLD))
        return max(self.retry_at, min(settled, unsettled))

    def change(self, pod: PendingPod, reason: Reason, now: float) -> bool:
        """Set the pod's current reason; return whether the due writes may change."""
        differed, self.pod, self.decided_at = self.differs, pod, now
        if self.reason != reason:
            self.changed_at = now
        self.reason = reason
        if self.differs and not differed:
            self.differs_since = now
        return differed or self.differs

    def written_at(self, now: float) -> None:
        """Record that the condition was written."""
        # A reason that changed during the write counts as different from now on.
        self.reported_at = self.differs_since = now
        self.credit = max(0.0, min(CREDIT, self.credit + (now - self.credit_at) / REFILL) - 1.0)
        self.credit_at = now

    def count(self, now: float) -> None:
        """Count the reason as an Event, once for each time that it is reported."""
        if self.reason is None or self.reason.message in (self.counted, self.written):
            return
        self.counted = self.reason.message
        series = self.series.get(self.reason.event)
        if series is None or now >= series.began + SERIES:
            event = Event(
                subject=Subject.of(self.pod),
                name=event_name(self.pod.name),
                type="Warning",
                reason=self.reason.event,
                action="Scheduling",
                note=self.reason.message,
            )
            series = self.series[self.reason.event] = _Series(event=event, began=now)
        series.count += 1

    def patch(self) -> dict[str, Any]:
        """Return the patch of the pod's status, empty if nothing differs.

        The condition is as kube-scheduler writes it; an existing one keeps its transition time.
        """
        status: dict[str, Any] = {}
        if self.nominated_node is not None:
            status["nominatedNodeName"] = self.nominated_node or None
        if self.reason is not None and self.differs:
            condition: dict[str, Any] = {
                "type": "PodScheduled",
                "status": "False",
                "reason": self.reason.condition,
                "message": self.reason.message,
            }
            if self.pod.generation:
                condition["observedGeneration"] = self.pod.generation
            if self.is_first:
                condition["lastTransitionTime"] = times.time(times.now())
            status["conditions"] = [condition]
        return status


class WaitingPods:
    """The records of all waiting pods, and the tasks that write them."""

    def __init__(
        self,
        *,
        api: WaitingPodApi,
        instance: str,
        in_flight_binds: InFlightBinds,
        clock: Callable[[], float],
        state_changed_at: Callable[[], float],
    ) -> None:
        """Create the records; `state_changed_at` returns when something last changed that may change reasons."""
        self._api, self._instance, self._in_flight_binds = api, instance, in_flight_binds
        self._clock, self._state_changed_at = clock, state_changed_at
        self._records: dict[str, _Record] = {}
        """UID -> record of a waiting pod; `_first`, `_updates` and `_events` are subsets, and `_held` has more UIDs."""
        self._first: dict[str, _Record] = {}
        """Ready for the pod's first report; the longest ready comes first."""
        self._updates: dict[str, _Record] = {}
        """Ready for a later status."""
        self._events: dict[str, _Record] = {}
        """Ready for Events alone."""
        self._held: dict[str, float] = {}
        """UID -> when the record is due, if that is later."""
        self._dues: list[tuple[float, str]] = []
        """Heap of (when it is due, UID). Entries are skipped if the record is no longer held until then."""
        self._sooner = asyncio.Event()
        """Set when another record is the first that is due."""
        self._ready = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held by the task that takes the next record."""

    def __len__(self) -> int:
        return len(self._records)

    def refusals(self, uid: str) -> Iterator[str]:
        """Yield sentences about the writes that the API server refuses for a waiting pod: Binding and condition."""
        if (record := self._records.get(uid)) is None:
            return
        if record.reason is not None and record.reason.refused_on:
            yield f"decided for {record.reason.refused_on}, {_refused(record.reason.message)}"
        if record.refused:
            yield f"its condition cannot be written, {_refused(record.refused)}"

    def waits(self, pod: PendingPod, reason: Reason) -> None:
        """Report why a pod waits."""
        record = self._record(pod)
        if record.change(pod, reason, self._clock()):
            self._plan(record)

    def nominated_node_changed(self, pod: PendingPod) -> None:
        """Report a pod's nominated node, or that it has none any more."""
        record = self._record(pod)
        record.nominated_node = pod.nominated_node
        self._plan(record)

    def is_nomination_written(self, uid: str) -> bool:
        """Return whether the API server shows a waiting pod's nominated node; False once the pod waits no more."""
        record = self._records.get(uid)
        return record is not None and record.nominated_node is None

    def dismiss(self, uid: str) -> None:
        """Drop the record of a pod that no longer waits."""
        for records in (self._records, self._first, self._updates, self._events, self._held):
            records.pop(uid, None)

    def _record(self, pod: PendingPod) -> _Record:
        if (record := self._records.get(pod.uid)) is None:
            record = self._records[pod.uid] = _Record(
                pod=pod, written=pod.last_message, written_reason=pod.last_reason, generation=pod.generation
            )
        return record

    # --- when -------------------------------------------------------------------------------------------------

    def _plan(self, record: _Record) -> None:
        """Sort a record into the subset for its due time; a record in flight is sorted when its write has ended."""
        uid = record.pod.uid
        if record.in_flight or self._records.get(uid) is not record:
            return
        now, status_due, events_due = self._clock(), self._status_due(record), record.events_due()
        ready: dict[str, _Record] | None = None
        if status_due <= now:
            ready = self._first if record.is_first else self._updates
        elif events_due <= now:
            ready = self._events
        for other in (self._first, self._updates, self._events):
            if other is not ready:
                other.pop(uid, None)
        if ready is not None:
            if uid not in ready:
                self._held.pop(uid, None)
                record.ready_at = now
                ready[uid] = record
                self._ready.set()
            return
        # It is planned again when it is due.
        due = min(status_due, events_due)
        if due == math.inf:
            self._held.pop(uid, None)
        elif self._held.get(uid) != due:
            self._held[uid] = due
            heapq.heappush(self._dues, (due, uid))
            if self._dues[0] == (due, uid):
                self._sooner.set()
            if len(self._dues) > 2 * len(self._held) + 100:  # most are of pods that wait no more
                self._dues = [(due, uid) for uid, due in self._held.items()]
                heapq.heapify(self._dues)

    def _status_due(self, record: _Record) -> float:
        return record.status_due(self._state_changed_at())

    async def _release_held(self) -> None:
        while True:
            self._sooner.clear()
            pause = max(MIN_PAUSE, self._dues[0][0] - self._clock()) if self._dues else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._sooner.wait()
            now = self._clock()
            while self._dues and self._dues[0][0] <= now:
                due, uid = heapq.heappop(self._dues)
                if self._held.get(uid) == due:
                    del self._held[uid]
                    self._plan(self._records[uid])

    async def _next(self, bucket: Bucket) -> _Record:
        """Wait for a ready record and a token. The record is taken last, so that it is the most urgent one."""
        async with self._turn:
            while True:
                while not (ready := self._most_urgent()):
                    self._ready.clear()
                    await self._ready.wait()
                await self._in_flight_binds.wait(next(iter(ready.values())).ready_at + PATIENCE - self._clock())
                await asyncio.sleep(bucket.delay())
                if ready := self._most_urgent():
                    return ready.pop(next(iter(ready)))

    def _most_urgent(self) -> dict[str, _Record]:
        return self._first or self._updates or self._events

    # --- writing ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write until cancelled."""
        bucket = Bucket(rate=RATE, clock=self._clock)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._release_held())
            for _ in range(WRITERS):
                tasks.create_task(self._write_all(bucket))

    async def _write_all(self, bucket: Bucket) -> None:
        while True:
            record = await self._next(bucket)
            record.in_flight = True
            failure: CallError | None = None
            try:
                await self._write_status(record)
            except CallError as error:
                failure = error
            record.refused = str(failure) if is_for_good(failure) and not _is_over(record, failure) else ""
            # Another pod's condition is more urgent than an Event, which is then written later. But if no condition can
            # be written, the Event alone shows why the pod waits.
            if record.refused or (failure is None and not (self._first or self._updates)):
                try:
                    await self._write_events(record)
                except CallError as error:
                    failure = failure or error
            if failure is None:
                record.failures, record.retry_at = 0, -math.inf
            else:
                self._failed(record, failure)
            record.in_flight = False
            self._plan(record)

    async def _write_status(self, record: _Record) -> None:
        """Write the status, unless the state has changed since the record was ready."""
        if self._status_due(record) > (now := self._clock()):
            return
        record.count(now)
        pod, reason, nominated_node = record.pod, record.reason, record.nominated_node
        if not (status := record.patch()):
            return
        # The UID prevents writing to a new pod of the same name.
        patch = {"metadata": {"uid": pod.uid}, "status": status}
        await self._api.patch_pod_status(pod.namespace, pod.name, patch)
        if record.nominated_node == nominated_node:
            record.nominated_node = None
        if reason is not None and "conditions" in status:
            record.written, record.written_reason = reason.message, reason.condition
            record.generation = pod.generation
            record.written_at(self._clock())

    async def _write_events(self, record: _Record) -> None:
        """Write the counts that are due, unless the pod no longer waits."""
        for series in list(record.series.values()):
            if series.due() > self._clock() or self._records.get(record.pod.uid) is not record:
                continue
            event, count = series.event, series.count
            if series.recorded:
                try:
                    await self._api.patch_event(event.subject.namespace, event.name, series.shown())
                except ApiError as error:
                    if not error.is_missing:
                        raise
                    series.recorded = 0  # the Event was deleted
            if not series.recorded:
                try:
                    await self._api.create_event(event.subject.namespace, event.body(self._instance) | series.shown())
                except ApiError as error:
                    if error.status == HTTPStatus.CONFLICT:
                        count = 1  # an answer was lost, and the Event exists as it was first sent
                    elif error.is_refused and not error.is_missing:
                        # By a quota or a policy. Another try would delay the pod's next status.
                        drop(event, error)
                    else:
                        raise
            series.recorded = count

    def _failed(self, record: _Record, error: CallError) -> None:
        """Drop the record if its pod is gone or bound; otherwise retry later."""
        pod = record.pod
        if _is_over(record, error):
            log.debug("report no longer needed", pod=pod.key, error=str(error))
            if self._records.get(pod.uid) is record:
                self.dismiss(pod.uid)
            return
        # A policy may refuse the conditions of all pods. Their retries must not keep the writers from other pods.
        growth = 8.0 if is_for_good(error) else 2.0
        pause = min(MAX_RETRY, growth**record.failures)
        if not record.failures:
            log.warning("report failed, trying again", pod=pod.key, error=str(error), again_in=pause)
        if not error.is_refused:
            # It may have been written: a reason that was written before differs again.
            record.generation = UNKNOWN
        record.failures = min(record.failures + 1, 10)
        record.retry_at = self._clock() + pause


def _is_over(record: _Record, error: CallError | None) -> bool:
    """Return whether a failed report is no longer needed, because its pod is gone or bound.

    After a conflict, the pod may have been replaced by another. But a webhook may refuse with the same status, and the
    API server answers so if others write the pod all the time. So a few are tried again.
    """
    if error is None:
        return False
    is_gone = error.is_missing or (error.status == HTTPStatus.CONFLICT and record.failures >= MAX_CONFLICTS)
    return is_gone or (error.status == HTTPStatus.UNPROCESSABLE_ENTITY and "nominatedNodeName" in str(error))


def _refused(message: str) -> str:
    refuser = refuser_of(message)
    return f"refused by {refuser}: {message}" if refuser else f"refused: {message}"
