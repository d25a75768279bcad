"""Node reservations: gather the capacity of a node for pods that have waited too long.

The scheduling loop calls `follow` before it takes pods from the queue. `follow` adapts the reservations of nodes whose
pods have changed. Once a second, it reviews which pods should have a reservation. `core.decision.reservation` decides
which node is reserved. The next leader inherits the reservations, and the record of which reservations were in vain.
It reads from the condition of a pod since when the pod waits.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from typing import Final

import structlog

from berth_api.objects.leader_lease import LeaderLeaseStatus, ReservationBackoff, ReservedNode
from berth_api.values import keys
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.core.decision import reservation, reservation_note
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.messages import SCHEDULER_ERROR, UNSCHEDULABLE
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import NodeReservation, entitled, reserve
from berth_operator.core.decision.reservation_backoff import Backoff, Backoffs, begun, ends_at, key_of, renewed, resumed
from berth_operator.core.decision.reservation_note import note
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two reviews, at least."""
SHARE: Final = 100.0
"""The time until the next review, as a multiple of the time that the last one took."""
MAX_OF_CLASS: Final = 256
"""Pods of a class that are examined; they were parked in the queue's order."""
RENEWALS: Final = 2
"""Reservations that one review renews even if no pod of their nodes has changed, because the nodes may have; each takes
about 2 ms."""
TRIES: Final = 4
"""Maximum number of pods, each of another namespace, for which one review searches a node."""
RETRY: Final = 30.0
"""Seconds until a class is tried again that no node could take."""
PAUSE: Final = 10.0
"""Seconds until another pod of the same namespace is tried then, so that its pods do not delay others."""
_OF_NAMESPACE: Final = "namespace"

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Reserver:
    """Keeps the node reservations of one term; `wall` is in seconds since 1970."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        reporter: Reporter,
        policy: Callable[[str], Policy],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._reporter, self._policy, self._wall = cluster, reporter, policy, wall
        self._by_uid: dict[str, NodeReservation] = {}
        """UID of the pod -> its reservation; the least recently renewed comes first."""
        self._refused: dict[Hashable, float] = {}
        """Refused key -> when to try again. The keys are classes that no node could take, (_OF_NAMESPACE, namespace) of
        these classes, and UIDs of pods that had their room and were not bound."""
        self._backoffs, self._awaited_in_vain = Backoffs[tuple[str, str]](), Backoffs[Hashable]()
        """Back-offs of waiting pods, and of placed pods for which reservations waited."""
        self._next_review, self._version = cluster.clock(), cluster.waker.version

    # --- decisions --------------------------------------------------------------------------------------------

    def backfill(self, pod: PendingPod, policy: Policy) -> Placement | None:
        """Place a pod that fits nowhere else on a reserved node that it leaves in time; None if there is none."""
        return reservation.backfill(self._cluster.fleet, pod, policy, self._by_uid, self._wall())

    def explained(self, pod: PendingPod, failure: Failure, policy: Policy) -> Failure:
        """Return a failure with the number of nodes that would take the pod if they were not reserved for others."""
        return reservation_note.explained(self._cluster.fleet, pod, failure, policy, self._by_uid)

    def annotated(self, pod: PendingPod, failure: Failure) -> Failure:
        """Return a pod's failure with a sentence about its reservation or about reservations in vain, if any."""
        return reservation_note.annotated(pod, failure, self._by_uid, self._backoffs.of(key_of(pod)))

    def note(self, uid: str) -> str:
        """Return the sentence about a pod's reservation; empty if it has none."""
        return note(self._by_uid[uid]) if uid in self._by_uid else ""

    # --- the next leader --------------------------------------------------------------------------------------

    def restore(self, inherited: LeaderLeaseStatus) -> None:
        """Restore the last leader's reservations, before smaller pods are decided."""
        now, pending = self._wall(), self._cluster.pending
        for reservation_backoff in inherited.reservation_backoffs:
            self._backoffs.restore(
                (reservation_backoff.namespace, reservation_backoff.owner),
                Backoff(count=reservation_backoff.count, until=reservation_backoff.until),
                now,
            )
        recorded = {
            node_reservation.uid: node_reservation
            for node_reservation in inherited.node_reservations
            if node_reservation.uid in pending
        }
        pods = [pending[uid] for uid in recorded]
        for pod in reservation.may_keep(self._cluster.fleet, pods, self._policy, now):
            self._reserve(pod, recorded[pod.uid])

    def reservations(self) -> Iterator[ReservedNode]:
        """Yield the reservations, for the next leader."""
        for uid, kept in self._by_uid.items():
            namespace, name = keys.split(kept.nominee.pod)
            yield ReservedNode(namespace=namespace, pod=name, uid=uid, node=kept.node, free=kept.free, since=kept.since)

    def backoffs(self) -> Iterator[ReservationBackoff]:
        """Yield the pods for which reservations were in vain, for the next leader."""
        for (namespace, owner), backoff in self._backoffs.last_to_end():
            yield ReservationBackoff(namespace=namespace, owner=owner, count=backoff.count, until=backoff.until)

    # --- keeping reservations up to date ----------------------------------------------------------------------

    def follow(self) -> None:
        """Adapt the reservations to changes."""
        for uid, kept in list(self._by_uid.items()):
            pod = self._cluster.pending.get(uid)
            if pod is None or pod.reserved_node != kept.node or uid not in self._cluster.fleet.nominees:
                # It has ended: its pod was decided, deleted or nominated elsewhere.
                del self._by_uid[uid]
                if pod is not None and pod.reserved_node:
                    # Assuming the pod has withdrawn its nominee; a Binding that was refused has released the pod since.
                    self._wait_again(pod)
                    pod = self._cluster.nominator.end_reservation(pod)
                    if uid not in self._cluster.fleet.charges:
                        self._cluster.waker.put(pod)
            elif tuple(self._cluster.fleet.on_node(kept.node)) != kept.placed or pod.request != kept.request:
                self._renew(pod, kept)
        if (now := self._cluster.clock()) >= self._next_review:
            self._review()
            counters.NODE_RESERVATIONS.set(len(self._by_uid))
            free = Counter[str]()
            for kept in self._by_uid.values():
                for reserved in kept.devices:
                    free[reserved.type] += reserved.free
            for device_type in self._cluster.fleet.cards:
                counters.RESERVED_FREE_DEVICES.labels(device_type).set(free[device_type])
            self._next_review = now + max(PERIOD, SHARE * (self._cluster.clock() - now))

    def _review(self) -> None:
        """Reserve a node for at most one further pod, and end reservations that pods should no longer have."""
        if self._version != self._cluster.waker.version:
            # Those that were not checked for the longest time come first.
            self._version = self._cluster.waker.version
            for uid, kept in list(self._by_uid.items())[:RENEWALS]:
                self._renew(self._cluster.pending[uid], kept)

        # Forget what was refused long ago.
        self._backoffs.keep(lambda: set(map(key_of, self._cluster.pending.values())))
        self._awaited_in_vain.keep(self._cluster.fleet.charges.keys)
        monotonic = self._cluster.clock()
        self._refused = {key: until for key, until in self._refused.items() if until > monotonic}

        # End reservations for which nothing was freed for too long, and those that pods may no longer have.
        now = self._wall()
        for uid in [uid for uid, kept in self._by_uid.items() if ends_at(kept, now) <= now]:
            pod = self._cluster.pending[uid]
            self._backoffs.add(key_of(pod), now)
            for awaited in self._by_uid[uid].awaited:
                self._awaited_in_vain.add(awaited.uid, now)
            counters.VAIN_RESERVATIONS.inc()
            log.info("node reservation in vain", pod=pod.key, node=pod.reserved_node, since=self._by_uid[uid].since)
            self._end(pod)
        for pod in [pod for uid in self._by_uid if not self._may_have(pod := self._cluster.pending[uid])]:
            self._end(pod)

        waiting = [*map(self._cluster.pending.__getitem__, self._by_uid), *self._candidates()]
        if not waiting:
            return
        most = reservation.most_nodes(self._cluster.fleet)
        chosen = self._reserve_next(waiting, most)
        # End those that are not chosen, if there are too many, or two of one namespace.
        namespaces = {self._cluster.pending[uid].namespace for uid in self._by_uid if uid in chosen}
        for uid in [uid for uid in self._by_uid if uid not in chosen]:
            pod = self._cluster.pending[uid]
            if len(self._by_uid) > most or pod.namespace in namespaces:
                self._end(pod)

    def _reserve_next(self, waiting: Sequence[PendingPod], most: int) -> set[str]:
        """Reserve a node for the next pod that should have one; return the UIDs of all that should."""
        for _ in range(TRIES):
            chosen = entitled(waiting, most)
            following = next((pod for pod in chosen if pod.uid not in self._by_uid), None)
            if following is None or self._reserve(following):
                return {pod.uid for pod in chosen}
            now, namespace = self._cluster.clock(), following.namespace
            self._refused[following.class_key] = now + RETRY
            self._refused[_OF_NAMESPACE, namespace] = now + PAUSE
            waiting = [pod for pod in waiting if pod.namespace != namespace or pod.uid in self._by_uid]
        return set(self._by_uid)

    def _candidates(self) -> Iterator[PendingPod]:
        """Yield of each parked class the pod that has waited longest and may have a reservation.

        None of gangs, of pods that lack something else, and of classes and namespaces that were refused.
        """
        in_vain = self._backoffs.in_vain(self._wall())
        for parked in self._cluster.queue.parked():
            unit = parked.unit
            if isinstance(unit, Gang) or parked.failure.condition != UNSCHEDULABLE or not unit.request.devices:
                continue
            pods = (
                member
                for member in islice(parked.units.values(), MAX_OF_CLASS)
                if not isinstance(member, Gang)
                and member.unschedulable_since
                and member.uid not in self._refused
                and key_of(member) not in in_vain
            )
            pod = min(pods, key=lambda pod: (pod.unschedulable_since, pod.created, pod.uid), default=None)
            if pod is None or pod.class_key in self._refused or (_OF_NAMESPACE, pod.namespace) in self._refused:
                continue
            if pod.uid not in self._by_uid and self._may_have(pod):
                yield pod

    def _may_have(self, pod: PendingPod) -> bool:
        """Return whether a waiting pod may have a reservation: it requests devices and has waited long enough."""
        return reservation.may_have(self._cluster.fleet, pod, self._policy(pod.scheduler), self._wall())

    def _wait_again(self, pod: PendingPod) -> None:
        """Restart the wait of a pod that had room but was not bound, so that it does not keep a node empty."""
        self._refused[pod.uid] = self._cluster.clock() + self._policy(pod.scheduler).reserve_after

    # --- one reservation --------------------------------------------------------------------------------------

    def _reserve(self, pod: PendingPod, recorded: ReservedNode | None = None) -> bool:
        """Reserve a node for a pod, the recorded one if possible; return whether one could take it."""
        kept = self._search(pod, "" if recorded is None else recorded.node)
        if kept is None:
            return False
        now = self._wall()
        kept = begun(kept, int(now)) if recorded is None else resumed(kept, recorded, now)
        log.info("reserving a node", pod=pod.key, node=kept.node, waits_for=len(kept.awaited))
        pod = self._cluster.nominator.reserve(pod, kept.nominee)
        self._by_uid[pod.uid] = kept
        # Of a class of its own now: it is decided again, and reports its reservation.
        self._cluster.waker.put(pod)
        return True

    def _renew(self, pod: PendingPod, kept: NodeReservation) -> None:
        """Search the pod's room again, on the same node if possible."""
        new = self._search(pod, kept.node)
        if new is not None and new.is_taken_by_higher(kept):
            new = self._search(pod)
        del self._by_uid[pod.uid]
        if new is None:
            self._end(pod)
            return
        self._by_uid[pod.uid] = new = renewed(kept, new, self._wall())
        if new.nominee != kept.nominee:
            self._cluster.nominator.reserve(pod, new.nominee)
        if new.node != kept.node:
            log.info("reserving another node", pod=pod.key, node=new.node, before=kept.node)
        failure = self._cluster.queue.parked_failure(self._cluster.pending[pod.uid])
        if failure is not None and (note(new), new.since) != (note(kept), kept.since):
            self._reporter.unschedulable(pod, self.annotated(pod, failure))

    def _search(self, pod: PendingPod, node: str = "") -> NodeReservation | None:
        try:
            policy, now = self._policy(pod.scheduler), self._wall()
            in_vain = self._awaited_in_vain.in_vain(now)
            return reserve(self._cluster.fleet, pod, policy, now, node=node, in_vain=in_vain)
        except PluginFailedError:
            # The pod's decision reports the error.
            return None

    def _end(self, pod: PendingPod) -> None:
        """End the reservation of a pod that still waits, and decide the pod again."""
        self._by_uid.pop(pod.uid, None)
        if pod.last_reason == SCHEDULER_ERROR:
            self._wait_again(pod)
        log.info("node reservation ended", pod=pod.key, node=pod.reserved_node)
        self._cluster.waker.put(self._cluster.nominator.end_reservation(pod))
