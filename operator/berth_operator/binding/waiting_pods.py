"""What waiting pods show: PodScheduled condition, nominated node and an Event, at a bounded cost.

Each pod has one record of what is to be written, and at most one write in flight. A pod's reason may change whenever
anything in the cluster changes, so writes are held back:

* the first reason is written as soon as the bucket allows, before any later one;
* another reason is written once it has stood for `SETTLE` seconds, or after `MAX_HOLD` seconds of change, and
  `QUIET` seconds after the last write of this pod;
* a changed spec or nominated node is written at once, and so is that the pod is no longer `Unschedulable`, because
  autoscalers add nodes for that reason.

A failed write is retried as long as the pod waits, so conditions end up with the current reason.

Events form series as in client-go's recorder: the second occurrence and, when the series ends, the last count are
written; those between are only counted. There is one record for each waiting pod and nothing else that grows.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_client import times
from berth_client.errors import ApiError, CallError
from berth_operator.binding.events import Event, EventApi, Subject, event_name, microtime
from berth_operator.binding.in_flight_binds import InFlightBinds
from berth_operator.clients.bucket import Bucket
from berth_operator.core.decision.messages import UNSCHEDULABLE
from berth_operator.core.values.request import PendingPod

RATE: Final = 250.0
"""Reports a second, of one status and one Event each; also the largest burst."""
WRITERS: Final = 16
"""Reports in flight: at 250 a second each may take 64 ms."""
PATIENCE: Final = 0.25
"""Seconds that a report lets binds go first; a pod's first report should come within one second."""
QUIET: Final = 10.0
"""Seconds between two reports of a pod."""
SETTLE: Final = 3.0
"""Seconds for which a changed reason must last before it is written, so that flapping costs no writes."""
MAX_HOLD: Final = 30.0
"""Seconds after which a changed reason is written even if it keeps changing."""
SERIES: Final = 360.0
"""Seconds that a series of Events lasts, like client-go's `finishTime`."""
CHECK_SECONDS: Final = 0.5
"""Seconds between two checks of the reports that are held back."""
MAX_RETRY: Final = 60.0
"""Seconds between two attempts at a report that fails."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Api(EventApi, Protocol):
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


@dataclass(slots=True, eq=False)
class _Series:
    """Events of one pod with one reason, shown as one; its note stays that of the first occurrence."""

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
    """A waiting pod: what is to be written, and what has been written."""

    pod: PendingPod
    written: str
    """The message of the condition; empty while there is none."""
    written_reason: str
    """The reason of the condition."""
    generation: int
    """The pod's generation when the condition was written."""
    reason: Reason | None = None
    nominated_node: str | None = None
    """The nominated node to write; None if it has been written."""
    reported_at: float = -math.inf
    changed_at: float = -math.inf
    """When the reason last changed."""
    differs_since: float = -math.inf
    """When the reason began to differ from the written one."""
    series: dict[str, _Series] = field(default_factory=dict)
    """Event reason -> its series: at most one for each `Reason.event`."""
    counted: str = ""
    """The message that the series counted last."""
    failures: int = 0
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

    def due(self) -> float:
        """Return when the next write may be sent; infinity if there is none."""
        return max(self.retry_at, min(self._status_due(), *(each.due() for each in self.series.values()), math.inf))

    def _status_due(self) -> float:
        if self.nominated_node is not None or (self.differs and self._is_urgent):
            return -math.inf
        if not self.differs:
            return math.inf
        return max(self.reported_at + QUIET, min(self.changed_at + SETTLE, self.differs_since + MAX_HOLD))

    @property
    def _is_urgent(self) -> bool:
        """Return whether a reason that differs is written at once."""
        reason = "" if self.reason is None else self.reason.condition
        was_unschedulable = self.written_reason == UNSCHEDULABLE != reason
        return self.is_first or self.pod.generation != self.generation or was_unschedulable

    def change(self, pod: PendingPod, reason: Reason, now: float) -> None:
        """Set the pod's current reason."""
        differed, self.pod = self.differs, pod
        if self.reason != reason:
            self.reason, self.changed_at = reason, now
        if self.differs and not differed:
            self.differs_since = now

    def count(self, now: float) -> None:
        """Count the reason as an Event, once for each time that it is reported."""
        if self.reason is None or self.reason.message in (self.counted, self.written):
            return
        self.counted = self.reason.message
        series = self.series.get(self.reason.event)
        if series is None or now >= series.began + SERIES:
            series = self.series[self.reason.event] = _Series(event=_event(self.pod, self.reason), began=now)
        series.count += 1

    def patch(self) -> dict[str, Any]:
        """Return the patch of the pod's status, empty if nothing differs."""
        status: dict[str, Any] = {}
        if self.nominated_node is not None:
            status["nominatedNodeName"] = self.nominated_node or None
        if self.reason is not None and self.differs:
            status["conditions"] = [_condition(self.pod, self.reason, first=self.is_first)]
        return status


class WaitingPods:
    """The records of all waiting pods, and the tasks that write them."""

    def __init__(self, *, api: Api, instance: str, in_flight_binds: InFlightBinds, clock: Callable[[], float]) -> None:
        self._api, self._instance, self._in_flight_binds, self._clock = api, instance, in_flight_binds, clock
        self._records: dict[str, _Record] = {}
        """UID -> record of a waiting pod; `_first`, `_again` and `_held` are subsets."""
        self._first: dict[str, _Record] = {}
        """Ready for the pod's first report; the longest ready comes first."""
        self._updates: dict[str, _Record] = {}
        """Ready for a later report."""
        self._held: dict[str, _Record] = {}
        """Due later."""
        self._ready = asyncio.Event()
        self._turn = asyncio.Lock()
        """Held by the task that takes the next record."""

    def __len__(self) -> int:
        return len(self._records)

    def waits(self, pod: PendingPod, reason: Reason) -> None:
        """Report why a pod waits."""
        record = self._record(pod)
        record.change(pod, reason, self._clock())
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
        for records in (self._records, self._first, self._updates, self._held):
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
        due, now = record.due(), self._clock()
        if due > now:
            for ready in (self._first, self._updates):
                ready.pop(uid, None)
        if due == math.inf:
            self._held.pop(uid, None)
        elif due > now:
            self._held[uid] = record
        elif uid not in self._first and uid not in self._updates:
            self._held.pop(uid, None)
            record.ready_at = now
            (self._first if record.is_first else self._updates)[uid] = record
            self._ready.set()

    async def _release_held(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            for record in list(self._held.values()):
                self._plan(record)

    async def _next(self, bucket: Bucket) -> _Record:
        """Wait for a ready record and a token; the record is taken last, so that it is the most urgent one."""
        async with self._turn:
            while True:
                while not (ready := self._first or self._updates):
                    self._ready.clear()
                    await self._ready.wait()
                await self._in_flight_binds.wait(next(iter(ready.values())).ready_at + PATIENCE - self._clock())
                await asyncio.sleep(bucket.delay())
                if ready := self._first or self._updates:
                    return ready.pop(next(iter(ready)))

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
            record.count(self._clock())
            try:
                await self._write_status(record)
                # Another pod's first condition is more urgent than an Event, which is then written later.
                if not self._first:
                    await self._write_events(record)
            except CallError as error:
                self._failed(record, error)
            else:
                record.failures, record.retry_at = 0, -math.inf
            record.in_flight = False
            self._plan(record)

    async def _write_status(self, record: _Record) -> None:
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
            # A reason that changed during the write counts as different from now on.
            record.reported_at = record.differs_since = self._clock()

    async def _write_events(self, record: _Record) -> None:
        """Write the counts that are due, unless the pod no longer waits."""
        for series in list(record.series.values()):
            if series.due() <= self._clock() and self._records.get(record.pod.uid) is record:
                await self._write_event(series)

    async def _write_event(self, series: _Series) -> None:
        event, count = series.event, series.count
        if series.recorded:
            try:
                await self._api.patch_event(event.subject.namespace, event.name, series.shown())
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                series.recorded = 0  # the Event was deleted
        if not series.recorded:
            try:
                await self._api.create_event(event.subject.namespace, event.body(self._instance) | series.shown())
            except ApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
                count = 1  # an answer was lost, and the Event exists as it was first sent
        series.recorded = count

    def _failed(self, record: _Record, error: CallError) -> None:
        """Drop the record if its pod is gone or bound; otherwise retry later."""
        pod = record.pod
        if isinstance(error, ApiError) and _is_over(error):
            log.debug("report no longer needed", pod=pod.key, error=str(error))
            if self._records.get(pod.uid) is record:
                self.dismiss(pod.uid)
            return
        refused = error.is_refused
        pause = MAX_RETRY if refused else min(MAX_RETRY, 2.0**record.failures)
        if not record.failures:
            log.warning("report failed, trying again", pod=pod.key, error=str(error), again_in=pause)
        record.failures = min(record.failures + 1, 10)
        record.retry_at = self._clock() + pause


def _is_over(error: ApiError) -> bool:
    """Return whether the API server refused a report because its pod is gone, replaced by another, or bound."""
    if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        return True
    return error.status == HTTPStatus.UNPROCESSABLE_ENTITY and "nominatedNodeName" in error.message


def _event(pod: PendingPod, reason: Reason) -> Event:
    return Event(
        subject=Subject.of(pod),
        name=event_name(pod.name),
        type="Warning",
        reason=reason.event,
        action="Scheduling",
        note=reason.message,
    )


def _condition(pod: PendingPod, reason: Reason, *, first: bool) -> dict[str, Any]:
    """Return the condition as kube-scheduler writes it; an existing one keeps its transition time."""
    condition: dict[str, Any] = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason.condition,
        "message": reason.message,
    }
    if pod.generation:
        condition["observedGeneration"] = pod.generation
    if first:
        condition["lastTransitionTime"] = times.time(times.now())
    return condition
