"""Tell users what became of their pods: Events, and what waiting pods show in their status.

A bound pod gets one Scheduled Event, named after the pod's UID so that it can only exist once. What a pod shows that
fits nowhere is the business of `waiting_pods`.
"""

import asyncio
import hashlib
from collections.abc import Callable

import structlog

from berth_api import keys, names
from berth_operator.binding.events import Event, EventQueue, Subject, event_name
from berth_operator.binding.in_flight_binds import InFlightBinds
from berth_operator.binding.waiting_pods import Api, Reason, WaitingPods
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Reporter:
    """Says what is to be reported; when that is written is up to the `EventQueue` and the `WaitingPods`."""

    def __init__(self, *, api: Api, instance: str, clock: Callable[[], float]) -> None:
        self.in_flight_binds = InFlightBinds()
        """To be told of binds: reports let them go first."""
        self._events = EventQueue(api=api, instance=instance, calm=self.in_flight_binds, clock=clock)
        self._waiting = WaitingPods(api=api, instance=instance, calm=self.in_flight_binds, clock=clock)

    @property
    def waiting(self) -> int:
        """Return the number of waiting pods of which something is kept."""
        return len(self._waiting)

    async def run(self) -> None:
        """Write reports until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run())
            tasks.create_task(self._waiting.run())

    # --- pods that wait ---------------------------------------------------------------------------------------

    def unschedulable(self, pod: PendingPod, failure: Failure) -> None:
        """A pod fits nowhere."""
        reason = Reason(message=failure.message, condition="Unschedulable", event="FailedScheduling")
        self._waiting.waits(pod, reason)

    def refused(self, pod: PendingPod, why: str) -> None:
        """The API server refused a pod's Binding."""
        # Something in front of the API server may refuse without a word, and a message is what is compared.
        message = why or "the Binding was refused without a reason"
        self._waiting.waits(pod, Reason(message=message, condition="SchedulerError", event="FailedBinding"))

    def nominated(self, pod: PendingPod) -> None:
        """Others leave a node for a pod, or no longer do."""
        self._waiting.nominated(pod)

    def dismiss(self, uid: str) -> None:
        """A pod waits no more."""
        self._waiting.dismiss(uid)

    # --- Events that are recorded once ------------------------------------------------------------------------

    def scheduled(self, placement: Placement) -> None:
        """A pod was bound."""
        pod = placement.pod
        self.dismiss(pod.uid)
        cards = ", ".join(f"{each.type} {each.minor}" for each in placement.grants)
        note = f"Successfully assigned {pod.key} to {placement.node}" + (f" with {cards}" if cards else "")
        self._events.put(
            Event(
                subject=Subject.of(pod),
                name=event_name(pod.name, pod.uid),
                type="Normal",
                reason="Scheduled",
                action="Binding",
                note=note,
            )
        )

    def unknown(self, charge: Charge) -> None:
        """Report a bound pod whose allocation is missing or cannot be believed."""
        log.warning("allocation unknown", pod=charge.pod, node=charge.node, types=charge.unknown)
        note = (
            f"It requests {', '.join(charge.unknown)} devices on {charge.node}, but its allocation is missing, "
            "cannot be read, names too few devices or was not written by a trusted scheduler: no such device of that "
            "node is allocated until the pod is gone"
        )
        self._warn(_bound(charge), "AllocationUnknown", "Accounting", note, suffix=f"{charge.uid}.unknown")

    def drifted(self, promised: Charge, difference: str) -> None:
        """A pod holds something else than it was allocated, and goes on doing so."""
        # Reported once in a pod's life: the GpuPod's condition says how it is now.
        note, suffix = f"{difference}: it is charged for that", f"{promised.uid}.drifted"
        self._warn(_bound(promised), "DevicesDrifted", "Accounting", note, suffix=suffix)

    def undone(self, charge: Charge, why: str) -> None:
        """A bound pod is deleted, because its gang could not be completed."""
        note = f"{why}; this member is deleted, so that it holds no resources"
        self._warn(_bound(charge), "PodGroupTimedOut", "Undoing", note)

    def evicted(self, charge: Charge, device: str) -> None:
        """A pod was evicted, because its card failed for good."""
        note = f"{device} failed for good: only a reset or a reboot brings it back, which this pod is in the way of"
        self._warn(_bound(charge), "DeviceFailed", "Evicting", note)

    def misconfigured(self, pod: str, problem: str) -> None:
        """The configuration file has a mistake; report it on our own pod (namespace/name/UID)."""
        namespace, name, uid = pod.split("/")
        subject = Subject(namespace=namespace, name=name, uid=uid, controller=names.OPERATOR)
        note = f"The last valid configuration stays in use: {problem}"
        # The same mistake has the same name: one that comes and goes is reported once.
        digest = hashlib.sha256(problem.encode()).hexdigest()[:16]
        self._warn(subject, "ConfigurationRefused", "Reloading", note, suffix=digest)

    def preempted(self, victim: Charge, pod: PendingPod) -> None:
        """A pod was told to leave its node for another."""
        subject = _bound(victim, controller=pod.scheduler)
        self._events.put(
            Event(
                subject=subject,
                name=event_name(subject.name, f"{victim.uid}.preempted"),
                type="Normal",
                reason="Preempted",
                action="Preempting",
                note=f"Preempted by pod {pod.key} on node {victim.node}",
            )
        )

    def _warn(self, subject: Subject, reason: str, action: str, note: str, suffix: str = "") -> None:
        name = event_name(subject.name, suffix)
        self._events.put(Event(subject=subject, name=name, type="Warning", reason=reason, action=action, note=note))


def _bound(charge: Charge, controller: str = names.OPERATOR) -> Subject:
    """Return a bound pod as a subject."""
    namespace, name = keys.split(charge.pod)
    return Subject(namespace=namespace, name=name, uid=charge.uid, controller=controller)
