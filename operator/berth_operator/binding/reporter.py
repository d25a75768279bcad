"""Tell users what became of their pods: conditions and Events, behind the binds and never twice the same.

A bound pod gets one Scheduled Event, named after the pod's UID so that it can only exist once. A pod that fits
nowhere gets the PodScheduled condition and one Event; again when the reasons change, and at most every 10 s when
only the numbers in them do.
"""

import asyncio
import functools
import hashlib
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import structlog

from berth_api import names
from berth_operator.binding.calm import PATIENCE, Calm
from berth_operator.clients.kube import ApiError, Unreachable
from berth_operator.core.cycle import Failure, Placement
from berth_operator.core.fleet import Charge
from berth_operator.core.request import PendingPod
from berth_operator.metrics import counters

QUIET: Final = 10.0
"""Seconds between two reports that differ in numbers alone."""
WRITERS: Final = 8
"""Reports under way at once: few, so that binds come first."""
TRIES: Final = 4
"""Sends of one report; what fails then is told again with the pod's next decision."""
MAX_NOTE: Final = 1024
"""Bytes that an Event's note holds."""
MAX_NAME: Final = 200
"""Characters of a pod's name in its Events' names."""
_EXISTS: Final = 409
_NOT_FOUND: Final = 404
_SERVER_ERRORS: Final = 500

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Api(Protocol):
    """What the reporter needs of a `kube.KubeClient`."""

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None:
        """Post an events.k8s.io/v1 Event."""

    async def patch_pod_status(self, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        """Patch a pod's status by strategic merge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The pod that a report is about."""

    namespace: str
    name: str
    uid: str
    controller: str
    """Who tells it: the pod's scheduler, or this operator where that may have been another."""

    @classmethod
    def of(cls, pod: PendingPod) -> "Subject":
        """Give a pending pod as a subject."""
        return cls(namespace=pod.namespace, name=pod.name, uid=pod.uid, controller=pod.scheduler)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """Why a pod waits."""

    pod: PendingPod
    message: str
    condition: str
    """Reason of the PodScheduled condition."""
    event: str
    """Reason of the Event."""


class Reporter:
    """Writes reports in the order in which they became due; the newest of a pod replaces an older one."""

    def __init__(self, *, api: Api, instance: str, clock: Callable[[], float]) -> None:
        self._api, self._instance, self._clock = api, instance, clock
        self.calm = Calm()
        """To be told of binds: reports let them go first."""
        self._told: dict[str, tuple[str, float]] = {}
        """UID -> (message, when) of the last report of a pod that waits."""
        self._due: dict[str, _Report] = {}
        """UID -> report that waits for its pod's quiet time to end."""
        self._jobs: dict[str, deque[Callable[[], Any]]] = {}
        """UID -> what is to be written of that pod, one after the other: an older word must not land after a newer."""
        self._turns: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        """(UID, since when) of pods of which nothing is being written, and something is to be."""

    # --- what there is to tell --------------------------------------------------------------------------------

    def scheduled(self, placement: Placement) -> None:
        """A pod was bound."""
        pod = placement.pod
        self.dismiss(pod.uid)
        cards = ", ".join(f"{each.type} {each.minor}" for each in placement.grants)
        note = f"Successfully assigned {pod.key} to {placement.node}" + (f" with {cards}" if cards else "")
        event = self._event(Subject.of(pod), "Normal", "Scheduled", "Binding", note)
        # A name of its own: the Event of a pod's bind can only exist once.
        event["metadata"] = {"namespace": pod.namespace, "name": f"{_stem(pod.name)}.{pod.uid}"}
        self._enqueue(pod.uid, lambda: self._post(event))

    def unknown(self, charge: Charge) -> None:
        """Report a bound pod whose allocation is missing or cannot be believed."""
        namespace, _, name = charge.pod.partition("/")
        note = (
            f"It requests {', '.join(charge.unknown)} devices on {charge.node}, but its allocation is missing, "
            "cannot be read, names too few devices or was not written by a trusted scheduler: no such device of that "
            "node is handed out until it is gone"
        )
        subject = Subject(namespace=namespace, name=name, uid=charge.uid, controller=names.OPERATOR)
        event = self._event(subject, "Warning", "AllocationUnknown", "Accounting", note)
        event["metadata"] = {"namespace": namespace, "name": f"{_stem(name)}.{charge.uid}.unknown"}
        log.warning("allocation unknown", pod=charge.pod, node=charge.node, types=charge.unknown)
        self._enqueue(charge.uid, lambda: self._post(event))

    def drifted(self, promised: Charge, difference: str) -> None:
        """A pod holds something else than it was allocated, and goes on doing so."""
        namespace, _, name = promised.pod.partition("/")
        subject = Subject(namespace=namespace, name=name, uid=promised.uid, controller=names.OPERATOR)
        event = self._event(subject, "Warning", "DevicesDrifted", "Accounting", f"{difference}: it is charged for that")
        # Told once in a pod's life: the GpuPod's condition says how it is now.
        event["metadata"] = {"namespace": namespace, "name": f"{_stem(name)}.{promised.uid}.drifted"}
        self._enqueue(promised.uid, lambda: self._post(event))

    def undone(self, charge: Charge, why: str) -> None:
        """A bound pod is deleted, because its gang could not be completed."""
        namespace, _, name = charge.pod.partition("/")
        subject = Subject(namespace=namespace, name=name, uid=charge.uid, controller=names.OPERATOR)
        note = f"{why}; this one is deleted, so that it holds nothing in vain"
        event = self._event(subject, "Warning", "PodGroupTimedOut", "Undoing", note)
        self._enqueue(charge.uid, lambda: self._post(event))

    def evicted(self, charge: Charge, device: str) -> None:
        """A pod was evicted, because its card failed for good."""
        namespace, _, name = charge.pod.partition("/")
        subject = Subject(namespace=namespace, name=name, uid=charge.uid, controller=names.OPERATOR)
        note = f"{device} failed for good: only a reset or a reboot brings it back, which this pod is in the way of"
        event = self._event(subject, "Warning", "DeviceFailed", "Evicting", note)
        self._enqueue(charge.uid, lambda: self._post(event))

    def unschedulable(self, pod: PendingPod, failure: Failure) -> None:
        """A pod fits nowhere."""
        self._report(_Report(pod=pod, message=failure.message, condition="Unschedulable", event="FailedScheduling"))

    def refused(self, pod: PendingPod, why: str) -> None:
        """The API server refused a pod's Binding."""
        # Something in front of the API server may refuse without a word, and a message is what is compared.
        message = why or "the Binding was refused without a reason"
        self._report(_Report(pod=pod, message=message, condition="SchedulerError", event="FailedBinding"))

    def nominated(self, pod: PendingPod) -> None:
        """Others leave a node for a pod, or no longer do."""
        patch = {"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": pod.nominated or None}}
        send = functools.partial(self._api.patch_pod_status, pod.namespace, pod.name, patch)
        self._enqueue(pod.uid, lambda: self._send("nomination", send))

    def misconfigured(self, pod: str, problem: str) -> None:
        """The configuration file has a mistake, and our own pod (namespace/name/UID) is told so."""
        namespace, name, uid = pod.split("/")
        subject = Subject(namespace=namespace, name=name, uid=uid, controller=names.OPERATOR)
        note = f"The last valid configuration stays in use: {problem}"
        event = self._event(subject, "Warning", "ConfigurationRefused", "Reloading", note)
        # The same mistake has the same name: one that comes and goes is told once.
        digest = hashlib.sha256(problem.encode()).hexdigest()[:16]
        event["metadata"] = {"namespace": namespace, "name": f"{_stem(name)}.{digest}"}
        self._enqueue(uid, lambda: self._post(event))

    def preempted(self, victim: Charge, pod: PendingPod) -> None:
        """A pod was told to leave its node for another."""
        namespace, _, name = victim.pod.partition("/")
        subject = Subject(namespace=namespace, name=name, uid=victim.uid, controller=pod.scheduler)
        note = f"Preempted by pod {pod.key} on node {victim.node}"
        event = self._event(subject, "Normal", "Preempted", "Preempting", note)
        event["metadata"] = {"namespace": namespace, "name": f"{_stem(name)}.{victim.uid}.preempted"}
        self._enqueue(victim.uid, lambda: self._post(event))

    def _report(self, report: _Report) -> None:
        """Tell it now, later or not at all, by what was told before."""
        uid = report.pod.uid
        told, at = self._told.get(uid, (report.pod.said, -QUIET))
        if told == report.message:
            self._due.pop(uid, None)
        elif _shape(told) == _shape(report.message) and self._clock() - at < QUIET:
            self._due[uid] = report
        else:
            self._tell(report, first=not told)

    def dismiss(self, uid: str) -> None:
        """A pod waits no more."""
        self._told.pop(uid, None)
        self._due.pop(uid, None)

    # --- telling it -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write reports until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell_due())
            for _ in range(WRITERS):
                tasks.create_task(self._write())

    def _enqueue(self, uid: str, job: Callable[[], Any]) -> None:
        jobs = self._jobs.setdefault(uid, deque())
        jobs.append(job)
        if len(jobs) == 1:
            self._turns.put_nowait((uid, self._clock()))

    async def _write(self) -> None:
        while True:
            uid, since = await self._turns.get()
            await self.calm.wait(since + PATIENCE - self._clock())
            jobs = self._jobs[uid]
            await jobs[0]()
            jobs.popleft()
            if jobs:
                self._turns.put_nowait((uid, since))
            else:
                del self._jobs[uid]

    async def _tell_due(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for uid, report in list(self._due.items()):
                if self._clock() - self._told[uid][1] >= QUIET:
                    del self._due[uid]
                    self._tell(report, first=False)

    def _tell(self, report: _Report, *, first: bool) -> None:
        pod = report.pod
        self._told[pod.uid] = (report.message, self._clock())
        event = self._event(Subject.of(pod), "Warning", report.event, "Scheduling", report.message)
        self._enqueue(pod.uid, lambda: self._condition(report, first=first))
        self._enqueue(pod.uid, lambda: self._post(event))

    async def _condition(self, report: _Report, *, first: bool) -> None:
        pod = report.pod
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": report.condition,
            "message": report.message,
            **({"lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")} if first else {}),
        }
        # The UID keeps the words of one pod off another of its name.
        patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        sent = await self._send(
            "condition",
            lambda: self._api.patch_pod_status(pod.namespace, pod.name, patch),
            due=lambda: self._is_last(report),
        )
        if not sent and self._is_last(report):
            self._told[pod.uid] = ("", self._clock())

    def _is_last(self, report: _Report) -> bool:
        """Tell whether the pod still waits, and for no other reason: a late word must not undo a newer one."""
        told = self._told.get(report.pod.uid)
        return told is not None and told[0] == report.message

    async def _post(self, event: dict[str, Any]) -> None:
        await self._send("event", lambda: self._api.create_event(event["metadata"]["namespace"], event))

    async def _send(self, what: str, send: Callable[[], Any], due: Callable[[], bool] = lambda: True) -> bool:
        """Send until it is done, no longer due, or lost; tell whether it was not lost."""
        failed: Exception | None = None
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(2.0 ** (attempt - 1))
            if not due():
                return True
            try:
                await send()
            except ApiError as error:
                if error.status in (_EXISTS, _NOT_FOUND):
                    return True  # it stands there already, or its pod is gone
                failed = error
                if error.status < _SERVER_ERRORS:
                    break
            except Unreachable as error:
                failed = error
            else:
                return True
        counters.REPORTS_LOST.labels(what).inc()
        log.error("report lost", what=what, error=str(failed))
        return False

    def _event(self, pod: Subject, kind: str, reason: str, action: str, note: str) -> dict[str, Any]:
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": pod.namespace, "generateName": f"{_stem(pod.name)}-"},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": pod.controller,
            "reportingInstance": self._instance,
            "action": action,
            "reason": reason,
            "type": kind,
            "note": note.encode()[:MAX_NOTE].decode(errors="ignore"),
            "regarding": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
        }


def _stem(name: str) -> str:
    """Cut a pod's name so that something can be joined to it."""
    return name[:MAX_NAME].rstrip("-.")


def _shape(message: str) -> str:
    """Give a message without its numbers."""
    return re.sub(r"\d+", "#", message)
