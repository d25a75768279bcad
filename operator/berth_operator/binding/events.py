"""Events on pods as events.k8s.io/v1 has them, and the queue of those that are recorded once."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_client import times
from berth_client.errors import CallError
from berth_operator.binding.in_flight_binds import PATIENCE, InFlightBinds
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters

MAX_QUEUED: Final = 20_000
"""Events that wait to be sent, 12 MB. More wait only while the API server takes Bindings and no Events."""
WRITERS: Final = 8
"""Events sent at once: few, so that binds come first."""
TRIES: Final = 4
"""Sends of one Event; then it is dropped."""
MAX_NOTE: Final = 1024
"""Bytes of an Event's note."""
MAX_NAME: Final = 200
"""Characters of a pod's name in the names of its Events."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class EventApi(Protocol):
    """What the queue needs of a `kube.KubeClient`."""

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None:
        """Create an events.k8s.io/v1 Event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The pod that an Event is about."""

    namespace: str
    name: str
    uid: str
    controller: str
    """The reporting controller: the pod's scheduler, or this operator if that may have been another."""

    @classmethod
    def of(cls, pod: PendingPod) -> "Subject":
        """Return a pending pod as a subject."""
        return cls(namespace=pod.namespace, name=pod.name, uid=pod.uid, controller=pod.scheduler)


def microtime() -> str:
    """Return the current time as a Kubernetes MicroTime."""
    return times.micro_time(times.now())


def event_name(pod: str, suffix: str = "") -> str:
    """Return a name for an Event of a pod; without a suffix one from the clock, as client-go does."""
    return f"{pod[:MAX_NAME].rstrip('-.')}.{suffix or format(time.time_ns(), 'x')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An Event; a tenth of the size of its JSON object, which is made when it is sent."""

    subject: Subject
    name: str
    """The name makes it exist only once, however often it is sent."""
    type: str
    reason: str
    action: str
    note: str
    time: str = field(default_factory=microtime)

    def body(self, instance: str) -> dict[str, Any]:
        """Return the object as the API server takes it."""
        pod = self.subject
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": pod.namespace, "name": self.name},
            "eventTime": self.time,
            "reportingController": pod.controller,
            "reportingInstance": instance,
            "action": self.action,
            "reason": self.reason,
            "type": self.type,
            "note": self.note.encode()[:MAX_NOTE].decode(errors="ignore"),
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
        }


class EventQueue:
    """Sends Events behind the binds, the oldest first."""

    def __init__(self, *, api: EventApi, instance: str, calm: InFlightBinds, clock: Callable[[], float]) -> None:
        self._api, self._instance, self._calm, self._clock = api, instance, calm, clock
        self._queue: asyncio.Queue[tuple[float, Event]] = asyncio.Queue(MAX_QUEUED)
        """(when it was put in, Event)."""

    def put(self, event: Event) -> None:
        """Send an Event soon; if too many wait, drop the oldest, which the object that it is about outlives."""
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
            # With half of the queue full, losing Events is closer than delaying binds is bad.
            if self._queue.qsize() < MAX_QUEUED // 2:
                await self._calm.wait(since + PATIENCE - self._clock())
            await self._send(event)

    async def _send(self, event: Event) -> None:
        """Send an Event until it is there, or dropped."""
        error: Exception | None = None
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(2.0 ** (attempt - 1))
            try:
                await self._api.create_event(event.subject.namespace, event.body(self._instance))
            except CallError as failure:
                if failure.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                    return  # an answer got lost, or its namespace is gone
                error = failure
                if failure.is_refused:
                    break
            else:
                return
        counters.REPORTS_LOST.labels("event").inc()
        log.error("event dropped", reason=event.reason, pod=event.subject.name, error=str(error))
