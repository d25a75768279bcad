"""Node reservations: gather the capacity of a node for pods that have waited too long.

`follow` is called by the scheduling loop before it takes pods from the queue. It adapts the reservations whose nodes'
pods have changed, and once a second reviews which pods should have one. The decision that reserves a node is
`core.decision.reservation`. Nothing is written but the pod's condition, from which the next leader restores the
reservation: since when the pod waits, and the node.
"""

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import structlog

from berth_client import times
from berth_operator.binding.reporter import Reporter
from berth_operator.core.decision import cycle, reservation
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.messages import UNSCHEDULABLE, with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import NodeReservation, entitled, reserve
from berth_operator.core.decision.reservation_note import note, recorded_node, reserved_nodes
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.queue.queue import Parked
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two reviews."""
RENEWALS: Final = 2
"""Reservations that one review renews even if no pod of their nodes has changed, because the nodes may have; each takes
about 2 ms."""
RETRY: Final = 30.0
"""Seconds until a class is tried again that no node could take."""

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
        """Class that no node could take -> when it is tried again."""
        self._next_review, self._version = cluster.clock(), cluster.version

    # --- decisions --------------------------------------------------------------------------------------------

    def backfill(self, pod: PendingPod, policy: Policy) -> Placement | None:
        """Place a pod that fits nowhere else on a reserved node that it leaves in time; None if there is none."""
        now, fleet = self._wall(), self._cluster.fleet
        usable = [
            each.nominee
            for uid, each in self._by_uid.items()
            if each.is_open_to(pod.lifetime, now) and uid in fleet.nominees
        ]
        if not usable:
            return None
        with fleet.without(usable):
            return cycle.place(fleet, replace(pod, ends=int(now) + pod.lifetime + reservation.START_SECONDS), policy)

    def explained(self, pod: PendingPod, failure: Failure, policy: Policy) -> Failure:
        """Return a failure with the number of nodes that would take the pod if they were not reserved for others."""
        fleet = self._cluster.fleet
        others = [fleet.nominees[uid] for uid in self._by_uid if uid in fleet.nominees and uid != pod.uid]
        if not others or pod.error:
            return failure
        with fleet.without([*others, *fleet.lower_priority_nominees(pod.uid, pod.priority)]):
            nodes = int(cycle.feasible(fleet, pod.request, policy.filters_of(pod.request)).sum())
        return replace(failure, message=with_note(failure.message, reserved_nodes(nodes))) if nodes else failure

    def annotated(self, pod: PendingPod, failure: Failure) -> Failure:
        """Return a pod's failure with a sentence about its reservation, if it has one."""
        kept = self._by_uid.get(pod.uid)
        return failure if kept is None else replace(failure, message=with_note(failure.message, note(kept)))

    # --- keeping reservations up to date ----------------------------------------------------------------------

    def restore(self) -> None:
        """Restore the last leader's reservations, before smaller pods are decided."""
        waiting = [
            each
            for each in self._cluster.pending.values()
            if recorded_node(each.last_message) and each.last_reason == UNSCHEDULABLE and self._may_have(each)
        ]
        for pod in entitled(waiting, reservation.most_nodes(self._cluster.fleet)):
            self._reserve(pod)

    def follow(self) -> None:
        """Adapt the reservations to what has changed."""
        if self._by_uid:
            self._follow_pods()
        if (now := self._cluster.clock()) >= self._next_review:
            self._next_review = now + PERIOD
            self._review()

    def _follow_pods(self) -> None:
        """Drop the reservations of pods that no longer wait, and renew those whose nodes' pods have changed."""
        for uid, kept in list(self._by_uid.items()):
            pod = self._cluster.pending.get(uid)
            if pod is None or pod.reserved_node != kept.node or uid not in self._cluster.fleet.nominees:
                self._drop(uid)
            elif tuple(self._cluster.fleet.on_node(kept.node)) != kept.placed or pod.request != kept.request:
                self._renew(pod, kept)

    def _review(self) -> None:
        """Reserve a node for at most one further pod, and end reservations that pods should no longer have."""
        self._renew_longest_unchecked()
        self._forget_refusals()
        reserved = [pod for uid in self._by_uid if self._may_have(pod := self._cluster.pending[uid])]
        candidates = list(self._candidates())
        if not candidates and not self._by_uid:
            return
        most = reservation.most_nodes(self._cluster.fleet)
        chosen = entitled([*reserved, *candidates], most)
        following = next((each for each in chosen if each.uid not in self._by_uid), None)
        if following is not None and not self._reserve(following):
            self._refused[following.class_key] = self._cluster.clock() + RETRY
            return
        self._end_beyond({each.uid for each in chosen}, most)

    def _end_beyond(self, chosen: set[str], most: int) -> None:
        """End reservations that are not chosen, if there are too many, or two of one namespace."""
        namespaces = {self._cluster.pending[uid].namespace for uid in self._by_uid if uid in chosen}
        for uid in [uid for uid in self._by_uid if uid not in chosen]:
            pod = self._cluster.pending[uid]
            if len(self._by_uid) > most or pod.namespace in namespaces or not self._may_have(pod):
                self._end(pod)

    def _candidates(self) -> Iterator[PendingPod]:
        """Yield of each parked class the pod that has waited longest, if it may have a reservation."""
        for parked in self._cluster.queue.parked():
            pod = _first(parked)
            if pod is None or pod.uid in self._by_uid or pod.class_key in self._refused:
                continue
            if self._may_have(pod):
                yield pod

    def _may_have(self, pod: PendingPod) -> bool:
        """Return whether a waiting pod may have a reservation: it requests devices and has waited long enough."""
        after = self._policy(pod.scheduler).reserve_after
        if not after or not pod.request.devices or pod.nominated_node or pod.gang is not None or pod.error:
            return False
        has_waited = "" < pod.unschedulable_since <= _time(self._wall() - after)
        return has_waited and pod.uid not in self._cluster.fleet.charges

    def _renew_longest_unchecked(self) -> None:
        if self._version == self._cluster.version:
            return
        self._version = self._cluster.version
        for uid, kept in list(self._by_uid.items())[:RENEWALS]:
            self._renew(self._cluster.pending[uid], kept)

    def _forget_refusals(self) -> None:
        now = self._cluster.clock()
        self._refused = {key: until for key, until in self._refused.items() if until > now}

    # --- one reservation --------------------------------------------------------------------------------------

    def _reserve(self, pod: PendingPod) -> bool:
        """Reserve a node for a pod, the recorded one if possible; return whether one could take it."""
        kept = self._search(pod, recorded_node(pod.last_message))
        if kept is None:
            return False
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
        self._by_uid[pod.uid] = new
        if new.nominee != kept.nominee:
            self._cluster.nominator.reserve(pod, new.nominee)
        if new.node != kept.node:
            log.info("reserving another node", pod=pod.key, node=new.node, before=kept.node)
        failure = self._cluster.queue.parked_failure(self._cluster.pending[pod.uid])
        if failure is not None and note(new) != note(kept):
            self._reporter.unschedulable(pod, self.annotated(pod, failure))

    def _search(self, pod: PendingPod, node: str = "") -> NodeReservation | None:
        try:
            return reserve(self._cluster.fleet, pod, self._policy(pod.scheduler), self._wall(), node=node)
        except PluginFailedError:
            # The pod's decision reports the error.
            return None

    def _end(self, pod: PendingPod) -> None:
        """End the reservation of a pod that still waits, and decide the pod again."""
        self._by_uid.pop(pod.uid, None)
        log.info("node reservation ended", pod=pod.key, node=pod.reserved_node)
        self._cluster.waker.put(self._cluster.nominator.end_reservation(pod))

    def _drop(self, uid: str) -> None:
        """Drop the record of a reservation that has ended: its pod was decided, deleted or nominated elsewhere."""
        del self._by_uid[uid]
        pod = self._cluster.pending.get(uid)
        if pod is not None and pod.reserved_node and uid not in self._cluster.fleet.charges:
            self._cluster.waker.put(self._cluster.nominator.end_reservation(pod))


def _first(parked: Parked[PendingPod | Gang]) -> PendingPod | None:
    """Return the pod of a class that has waited longest; None for gangs and pods that lack something else."""
    if isinstance(parked.unit, Gang) or parked.failure.condition != UNSCHEDULABLE or not parked.unit.request.devices:
        return None
    pods = [each for each in parked.units.values() if not isinstance(each, Gang) and each.unschedulable_since]
    return min(pods, key=lambda pod: (pod.unschedulable_since, pod.created, pod.uid), default=None)


def _time(seconds: float) -> str:
    return times.time(datetime.fromtimestamp(seconds, UTC))
