"""Report to users about their pods and devices: Events, and the status of waiting pods.

A bound pod gets one Scheduled Event. The Event is named after the pod's UID, so that it can exist only once.
`waiting_pods` writes the status and Events of pods that fit nowhere.
"""

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from berth_api import names
from berth_api.values import keys
from berth_client import times
from berth_operator.binding.reports import device_events
from berth_operator.binding.reports.events import Event, EventQueue, Subject, event_name
from berth_operator.binding.reports.in_flight_binds import InFlightBinds
from berth_operator.binding.reports.waiting_pods import Reason, WaitingPodApi, WaitingPods
from berth_operator.core.claims.objects import near_names
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.messages import SCHEDULER_ERROR
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.state.objects.devices import DeviceRecord

MAX_READ: Final = 10_000
"""Events that are remembered. For a forgotten Event, the same Event is sent again, which exists already."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Reporter:
    """Composes reports; `EventQueue` and `WaitingPods` write them when binds leave time for it."""

    def __init__(
        self,
        *,
        api: WaitingPodApi,
        instance: str,
        clock: Callable[[], float],
        state_changed_at: Callable[[], float] = lambda: -math.inf,
        lost_of: Callable[[Membership], str] = lambda _: "",
    ) -> None:
        """Create a reporter.

        `state_changed_at` returns when something last changed that may change reasons, `lost_of` which fields of a
        gang's PodGroup have no effect.
        """
        self.in_flight_binds = InFlightBinds()
        """Counts the binds in flight, which reports let go first."""
        self._lost_of = lost_of
        self._read: OrderedDict[str, None] = OrderedDict()
        """The names of the last Events about words; each is named after the UID of the controller, or pod."""
        self._events = EventQueue(api=api, instance=instance, in_flight_binds=self.in_flight_binds, clock=clock)
        self._waiting = WaitingPods(
            api=api,
            instance=instance,
            in_flight_binds=self.in_flight_binds,
            clock=clock,
            state_changed_at=state_changed_at,
        )

    @property
    def waiting(self) -> int:
        """Return the number of waiting pods that have a record."""
        return len(self._waiting)

    async def run(self) -> None:
        """Write reports until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run())
            tasks.create_task(self._waiting.run())

    # --- pods that wait ---------------------------------------------------------------------------------------

    def unschedulable(self, pod: PendingPod, failure: Failure) -> None:
        """Report that a pod fits nowhere, or cannot be decided."""
        self._words_read(pod)
        reason = Reason(message=failure.message, condition=failure.condition, event="FailedScheduling")
        self._waiting.waits(pod, reason)

    def refused(self, pod: PendingPod, why: str, node: str = "") -> None:
        """Report that the API server refused a pod's Binding to a node, or that none could be written."""
        # A proxy may refuse without a message, but records are compared by their message.
        message = why or "the Binding was refused without a reason"
        reason = Reason(message=message, condition=SCHEDULER_ERROR, event="FailedBinding", refused_on=node)
        self._waiting.waits(pod, reason)

    def refusal(self, uid: str) -> str:
        """Return which writes the API server refuses for a waiting pod; empty if it refuses none."""
        return "; ".join(self._waiting.refusals(uid))

    def nominated_node_changed(self, pod: PendingPod) -> None:
        """Report a pod's nominated node, or that it has none any more."""
        self._waiting.nominated_node_changed(pod)

    def is_nomination_written(self, uid: str) -> bool:
        """Return whether the API server shows a waiting pod's nominated node."""
        return self._waiting.is_nomination_written(uid)

    def dismiss(self, uid: str) -> None:
        """Stop reporting about a pod that no longer waits."""
        self._waiting.dismiss(uid)

    # --- Events that are recorded once ------------------------------------------------------------------------

    def scheduled(self, placement: Placement, devices: str = "") -> None:
        """Report that a pod was bound; `devices` is the text of its devices."""
        pod = placement.pod
        self.dismiss(pod.uid)
        self._words_read(pod)
        note = f"Successfully assigned {pod.key} to {placement.node}" + (f" with {devices}" if devices else "")
        of_claims = near_names.of_memory(allocation.claim for allocation in placement.claims.allocations)
        questions = "; ".join(filter(None, (pod.request.questions, of_claims)))
        note += f" ({questions})" if questions else ""
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

    def _words_read(self, pod: PendingPod) -> None:
        """Report the words read of other systems and PodGroups, once for each controller or lone pod."""
        self._read_once(pod, "words", pod.request.read)
        if pod.gang is not None:
            self._read_once(pod, "group", self._lost_of(pod.gang))

    def _read_once(self, pod: PendingPod, of: str, note: str) -> None:
        if not note:
            return
        subject = Subject.of_owner(pod)
        # The name allows one for each, whichever process sends it.
        name = event_name(subject.name, f"{subject.uid}.{of}")
        if name in self._read:
            return
        self._read[name] = None
        if len(self._read) > MAX_READ:
            self._read.popitem(last=False)
        self._events.put(
            Event(subject=subject, name=name, type="Normal", reason="WordsRead", action="Scheduling", note=note)
        )

    def unknown(self, charge: Charge) -> None:
        """Report a bound pod whose allocation is missing or not trusted."""
        if charge.lacks_cards:
            log.warning("pod bound by another program", pod=charge.pod, node=charge.node)
            note = (
                f"Another program bound the pod to {charge.node}, so its containers see no GPU. Delete it, and let "
                f"no other scheduler have a profile {charge.scheduler}"
            )
            self._warn(_bound(charge), "AllocationMissing", "Accounting", note, suffix=f"{charge.uid}.missing")
        if not charge.unknown:
            return
        log.warning("allocation unknown", pod=charge.pod, node=charge.node, types=charge.unknown)
        note = (
            f"The pod requests {', '.join(charge.unknown)} devices on {charge.node}, but its allocation is missing, "
            "cannot be read, names too few devices or was not written by a trusted scheduler: no such device of that "
            f"node is allocated until {_end_of(charge)}"
        )
        self._warn(_bound(charge), "AllocationUnknown", "Accounting", note, suffix=f"{charge.uid}.unknown")

    def faults_changed(self, before: DeviceRecord | None, after: DeviceRecord) -> None:
        """Report the devices of a node that failed or recovered, on the Device and the Node."""
        for event in device_events.of_change(before, after, times.now()):
            self._events.put(event)

    def doubled(self, claim: ClaimState, device: str, others: Sequence[str]) -> None:
        """Report on a claim that others also hold one of its devices.

        The others are namespace/name. Claims of other namespaces are not named.
        """
        namespace, name = keys.split(claim.key)
        named = [other if keys.split(other)[0] == namespace else "a claim of another namespace" for other in others]
        note = (
            f"Device {device} is allocated to {', '.join(named)} too, because two schedulers allocate in its pool: "
            "delete the pods of one of them (docs/claims.md)"
        )
        subject = Subject(
            namespace=namespace,
            name=name,
            uid=claim.uid,
            controller=names.OPERATOR,
            kind="ResourceClaim",
            api_version="resource.k8s.io/v1",
        )
        digest = hashlib.sha256("|".join([claim.uid, device, *others]).encode()).hexdigest()[:16]
        self._warn(subject, "DeviceAllocatedTwice", "Allocating", note, suffix=digest)

    def card_doubled(self, holder: Charge, card: str, others: Sequence[str]) -> None:
        """Report on a pod that others (namespace/name) also hold one of its cards.

        Pods of other namespaces are not named.
        """
        namespace, _ = keys.split(holder.pod)
        named = [other if keys.split(other)[0] == namespace else "a pod of another namespace" for other in others]
        note = f"{card} is held by {', '.join(named)} too: delete one of the pods (docs/backup.md#berthcardsdoubled)"
        digest = hashlib.sha256("|".join([holder.uid, card, *others]).encode()).hexdigest()[:16]
        self._warn(_bound(holder), "CardHeldTwice", "Accounting", note, suffix=digest)

    def drifted(self, promised: Charge, difference: str) -> None:
        """Report that a pod holds other devices than it was allocated."""
        # The Event's name allows one for each pod; the GpuPod's condition shows the current state.
        note, suffix = f"{difference}: it is charged for that", f"{promised.uid}.drifted"
        self._warn(_bound(promised), "DevicesDrifted", "Accounting", note, suffix=suffix)

    def undone(self, charge: Charge, why: str) -> None:
        """Report that a bound pod is deleted because its gang could not be completed."""
        note = f"{why}; this member is deleted, so that it holds no resources"
        self._warn(_bound(charge), "PodGroupTimedOut", "Undoing", note)

    def unknown_gang(self, charge: Charge, why: str) -> None:
        """Report that a bound pod is kept, though its gang may never have formed."""
        note = f"{why}; this member is kept. If the members cannot work without the others, delete them"
        # Named, so that it is reported once and not by each leader.
        self._warn(_bound(charge), "PodGroupUnknown", "Keeping", note, suffix=f"{charge.uid}.unknown")

    def places_promised(self, placement: Placement, note: str, *, are_kept: bool = True) -> None:
        """Report on a member that is being bound which places are promised to pods that come later, or why none are."""
        pod = placement.pod
        kind, reason = ("Normal", "PlacesPromised") if are_kept else ("Warning", "NoPlacesPromised")
        self._events.put(
            Event(
                subject=Subject.of(pod),
                name=event_name(pod.name, f"{pod.uid}.places"),
                type=kind,
                reason=reason,
                action="Promising",
                note=note,
            )
        )

    def promise_ended(self, charge: Charge, why: str) -> None:
        """Report on a bound member that pods that come later have no promised places any more."""
        note = f"{why}; pods that are created from now on wait as any others"
        self._warn(_bound(charge), "PromiseEnded", "Promising", note, suffix=f"{charge.uid}.promise")

    def evicted(self, charge: Charge, device: str) -> None:
        """Report that a pod was evicted because its card needs a reset or a reboot."""
        note = f"{device} failed; only a reset or a reboot repairs it, and this pod would prevent that"
        self._warn(_bound(charge), "DeviceFailed", "Evicting", note)

    def making_room(self, pod: PendingPod, node: str, moved: Sequence[Charge]) -> None:
        """Report that other pods will be moved for a pod; pods of other namespaces are only counted."""
        own = [charge.pod for charge in moved if keys.split(charge.pod)[0] == pod.namespace]
        others = len(moved) - len(own)
        listed = [*own, *([f"{others} of other namespaces"] if others else [])]
        self._on_waiting(
            pod,
            "Normal",
            "MakingRoom",
            f"Node {node} is reserved, and {len(moved)} pod(s) are moved: {', '.join(listed)}",
        )

    def moves_dropped(self, pod: PendingPod, node: str, why: str) -> None:
        """Report that no more pods are moved for a pod, and why."""
        self._on_waiting(pod, "Warning", "MovesDropped", f"Node {node} is no longer reserved: {why}")

    def _on_waiting(self, pod: PendingPod, kind: str, reason: str, note: str) -> None:
        event = Event(
            subject=Subject.of(pod),
            name=event_name(pod.name),
            type=kind,
            reason=reason,
            action="Defragmenting",
            note=note,
        )
        self._events.put(event)

    def moved(self, charge: Charge, pod: PendingPod) -> None:
        """Report that a pod was evicted to make room for another, which it names only in its own namespace."""
        note = (
            f"Evicted from node {charge.node} to make room for {_named(pod, charge)}; "
            f"it allowed this by {names.MOVABLE}, and there was room for it elsewhere"
        )
        self._evicted(_bound(charge), "Moved", "Evicting", note)

    def misconfigured(self, pod: str, problem: str) -> None:
        """Report an invalid configuration file on our own pod (namespace/name/UID)."""
        self._warn_on_own_pod(
            pod, "ConfigurationRefused", "Reloading", f"The last valid configuration stays in use: {problem}"
        )

    def gpu_metrics_stale(self, pod: str, problem: str) -> None:
        """Report on our own pod (namespace/name/UID) that decisions do without GPU metrics."""
        self._warn_on_own_pod(pod, "GPUMetricsStale", "Refreshing", problem)

    def _warn_on_own_pod(self, pod: str, reason: str, action: str, note: str) -> None:
        namespace, name, uid = pod.split("/")
        subject = Subject(namespace=namespace, name=name, uid=uid, controller=names.OPERATOR)
        # The same problem gets the same Event name, so that one that comes and goes is reported once.
        digest = hashlib.sha256(note.encode()).hexdigest()[:16]
        self._warn(subject, reason, action, note, suffix=digest)

    def preempted(self, victim: Charge, pod: PendingPod) -> None:
        """Report that a pod was preempted by another, which it names only in its own namespace."""
        note = f"Preempted by {_preemptor(pod, victim)} on node {victim.node}"
        self._evicted(_bound(victim, controller=pod.scheduler), "Preempted", "Preempting", note)

    def _evicted(self, subject: Subject, reason: str, action: str, note: str) -> None:
        # A pod is evicted once, so its UID and the reason name the Event.
        name = event_name(subject.name, f"{subject.uid}.{reason.lower()}")
        self._events.put(Event(subject=subject, name=name, type="Normal", reason=reason, action=action, note=note))

    def _warn(self, subject: Subject, reason: str, action: str, note: str, suffix: str = "") -> None:
        name = event_name(subject.name, suffix)
        self._events.put(Event(subject=subject, name=name, type="Warning", reason=reason, action=action, note=note))


def _end_of(charge: Charge) -> str:
    """Return what ends the charge of a pod that may hold any device."""
    if not charge.finalizers:
        return "the pod is deleted"
    return (
        f"the pod is gone, which finalizer {', '.join(charge.finalizers)} prevents, or until the node's agent finds no "
        "process of it, and kubelet reports no device for it"
    )


def _named(pod: PendingPod, reader: Charge) -> str:
    """Return a pod's name for those who may read another pod."""
    namespace, _ = keys.split(reader.pod)
    return f"pod {pod.key}" if namespace == pod.namespace else "a pod of another namespace"


def _preemptor(pod: PendingPod, reader: Charge) -> str:
    """Return the name of the pod, or of Kubernetes' PodGroup, that preempts another pod."""
    if pod.gang is None or not pod.gang.is_kubernetes:
        return _named(pod, reader)
    namespace, _ = keys.split(reader.pod)
    return f"podgroup {pod.gang.group if namespace == pod.namespace else 'of another namespace'}"


def _bound(charge: Charge, controller: str = names.OPERATOR) -> Subject:
    """Return the subject for a bound pod."""
    namespace, name = keys.split(charge.pod)
    return Subject(namespace=namespace, name=name, uid=charge.uid, controller=controller)
