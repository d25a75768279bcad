"""Events on pods, Devices and Nodes (events.k8s.io/v1), and the queue of Events that are recorded once."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_client import times
from berth_client.errors import CallError
from berth_operator.binding.reports.in_flight_binds import PATIENCE, InFlightBinds
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters

MAX_QUEUED: Final = 20_000
"""Events in the queue, 12 MB. It fills up only while the API server accepts Bindings and no Events."""
WRITERS: Final = 8
"""Events sent concurrently: few, so that binds come first."""
TRIES: Final = 4
"""Attempts to send an Event before it is dropped."""
MAX_NOTE: Final = 1024
"""Bytes of an Event's note."""
MAX_NAME: Final = 200
"""Characters of a pod's name in the names of its Events."""
_WITHOUT_NAMESPACE: Final = ("Device", "Node")
"""Kinds of subjects."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EventApi(Protocol):
    """The subset of `kube.KubeClient` that the queue uses."""

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None:
        """Create an events.k8s.io/v1 Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What an Event is about: a pod, its controller, or an object without a namespace."""

    namespace: str
    """The namespace of the pod or its controller, and of the Event."""
    name: str
    uid: str
    controller: str
    """The reporting controller: the pod's scheduler, or this operator where the scheduler is unknown."""
    kind: str = "Pod"
    api_version: str = "v1"

    @classmethod
    def of(cls, pod: PendingPod) -> "Subject":
        """Return the subject for a pending pod."""
        return cls(namespace=pod.namespace, name=pod.name, uid=pod.uid, controller=pod.scheduler)

    @classmethod
    def of_owner(cls, pod: PendingPod) -> "Subject":
        """Return the subject for a pending pod's controller; the pod itself if it has none."""
        owner = pod.owner
        if not owner.uid:
            return cls.of(pod)
        return cls(
            namespace=pod.namespace,
            name=owner.name,
            uid=owner.uid,
            controller=pod.scheduler,
            kind=owner.kind,
            api_version=owner.api_version,
        )


def microtime() -> str:
    """Return the current time as a Kubernetes MicroTime."""
    return times.micro_time(times.now())


def event_name(pod: str, suffix: str = "") -> str:
    """Return the name of an Event; without a suffix it ends in the clock's nanoseconds, as client-go's do."""
    return f"{pod[:MAX_NAME].rstrip('-.')}.{suffix or format(time.time_ns(), 'x')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An Event, in a tenth of the memory of its JSON object, which `body` creates when it is sent."""

    subject: Subject
    name: str
    """Makes a repeated send a 409, so that the Event exists only once."""
    type: str
    reason: str
    action: str
    note: str
    time: str = field(default_factory=microtime)

    def body(self, instance: str) -> dict[str, Any]:
        """Return the JSON object for the API server."""
        subject = self.subject
        place = {} if subject.kind in _WITHOUT_NAMESPACE else {"namespace": subject.namespace}
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": subject.namespace, "name": self.name},
            "eventTime": self.time,
            "reportingController": subject.controller,
            "reportingInstance": instance,
            "action": self.action,
            "reason": self.reason,
            "type": self.type,
            "note": self.note.encode()[:MAX_NOTE].decode(errors="ignore"),
            "regarding": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                **place,
                "name": subject.name,
                "uid": subject.uid,
            },
        }


def drop(event: Event, error: Exception | None) -> None:
    """Record that an Event is not sent again: another try would not help, or delay others."""
    counters.REPORTS_LOST.labels("event").inc()
    log.warning("event dropped", reason=event.reason, of=event.subject.name, error=str(error))


class EventQueue:
    """Sends Events, the oldest first, and lets binds go first."""

    def __init__(
        self, *, api: EventApi, instance: str, in_flight_binds: InFlightBinds, clock: Callable[[], float]
    ) -> None:
        self._api, self._instance, self._in_flight_binds, self._clock = api, instance, in_flight_binds, clock
        self._queue: asyncio.Queue[tuple[float, Event]] = asyncio.Queue(MAX_QUEUED)
        """(clock reading when it was queued, Event)."""

    def put(self, event: Event) -> None:
        """Queue an Event; if the queue is full, drop the oldest."""
        if self._queue.full():
            self._queue.get_nowait()
            counters.REPORTS_LOST.labels("event").inc()
        self._queue.put_nowait((self._clock(), event))

    async def run(self) -> None:
        """Send Events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(self._send_all())

    async def _send_all(self) -> None:
        while True:
            since, event = await self._queue.get()
            # Once the queue is half full, losing Events is worse than delaying binds.
            if self._queue.qsize() < MAX_QUEUED // 2:
                await self._in_flight_binds.wait(since + PATIENCE - self._clock())
            await self._send(event)

    async def _send(self, event: Event) -> None:
        """Send an Event until it exists or `TRIES` attempts have failed."""
        error: Exception | None = None
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(2.0 ** (attempt - 1))
            try:
                await self._api.create_event(event.subject.namespace, event.body(self._instance))
            except CallError as failure:
                if failure.status == HTTPStatus.CONFLICT or failure.is_missing:
                    return  # it exists since an answer was lost, or its namespace is gone
                error = failure
                if failure.is_refused:
                    break
            else:
                return
        drop(event, error)
