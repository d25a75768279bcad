"""The placements that the extender reserves between its answer to filter and the bind.

A reservation is an assumed placement. It ends with the bind, with the pod's deletion, or with a newer filter of the
pod. A reservation can always be dropped early, because bind decides again. The limits below only bound the harm of pods
that kube-scheduler never tries again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from berth_operator.core.decision.cycle import Placement
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

MAX_RESERVATIONS: Final = 10_000
MAX_REJECTED: Final = 64
"""Nodes that are remembered for a pod because kube-scheduler did not take them."""
PERIOD: Final = 10.0
"""Seconds between two checks for reservations that ended without an event."""
UNSEEN_SECONDS: Final = 30.0
"""Seconds after which a reservation ends whose pod no watch has shown: it was deleted before the filter."""
MAX_SECONDS: Final = 900.0
"""Seconds after which a reservation ends in any case; kube-scheduler binds volumes for 600 s."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class FullError(Exception):
    """There are too many reservations."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved placement, and when it was reserved."""

    placement: Placement
    at: float


class Reservations:
    """The reservations of one term."""

    def __init__(self, *, cluster: Cluster, is_waiting: Callable[[str], bool], limit: int = MAX_RESERVATIONS) -> None:
        """Create the store; `is_waiting` returns whether a watch shows the pod (UID) without a node."""
        self._cluster, self._is_waiting, self._limit = cluster, is_waiting, limit
        self._by_uid: dict[str, Reservation] = {}
        self._nominated: dict[str, float] = {}
        """UID of a pod -> since when devices of its nominated node are kept for it."""
        self._rejected: dict[str, Counter[str]] = {}
        """UID of a pod -> node -> how often kube-scheduler did not take it after our answer."""

    def get(self, uid: str) -> Placement | None:
        """Return the placement reserved for a pod."""
        reservation = self._by_uid.get(uid)
        return None if reservation is None or not self._cluster.placements.is_assumed(uid) else reservation.placement

    def rejected(self, uid: str) -> Counter[str]:
        """Return how often kube-scheduler did not take a node that was reserved for a pod."""
        return self._rejected.get(uid, Counter())

    def reject(self, uid: str) -> None:
        """Record that kube-scheduler did not take the reserved nodes of a pod."""
        placement = self.get(uid)
        if placement is None:
            return
        if len(self._rejected) >= self._limit:
            # Only the order of nodes suffers.
            self._rejected.clear()
        counts = self._rejected.setdefault(uid, Counter())
        if len(counts) >= MAX_REJECTED:
            counts.clear()
        counts[placement.node] += 1

    def check_capacity(self, uid: str) -> None:
        """Check that there may be one more reservation.

        Raises:
            FullError: there are too many.
        """
        if uid not in self._by_uid and len(self._by_uid) >= self._limit:
            raise FullError(f"Berth holds {self._limit} reservations of pods that are not bound; try again later")

    def hold(self, placement: Placement, spares: Sequence[Placement] = ()) -> None:
        """Reserve a placement in place of the pod's former one, and spares for it."""
        uid, former = placement.pod.uid, self.get(placement.pod.uid)
        if former is None or (former.node, former.grants) != (placement.node, placement.grants):
            if former is not None:
                self._cluster.placements.forget(uid)
            self._cluster.placements.assume(placement)
        self._nominated.pop(uid, None)  # assumed in its place
        self._by_uid[uid] = Reservation(placement, self._cluster.clock())
        self._cluster.spares.keep(uid, spares)
        counters.EXTENDER_RESERVATIONS.set(len(self._by_uid))

    def nominate(self, pod: PendingPod, charge: Charge | None) -> None:
        """Keep what a pod will use of its nominated node once its victims are gone, or nothing for None."""
        if charge is None or len(self._nominated) >= self._limit:
            self._nominated.pop(pod.uid, None)
            self._cluster.nominator.release(pod.uid)
        else:
            self._nominated[pod.uid] = self._cluster.clock()
            self._cluster.nominator.nominate(pod, charge)

    def end(self, uid: str) -> None:
        """End a pod's reservation, if it has one; its placement stays assumed."""
        self._by_uid.pop(uid, None)
        self._rejected.pop(uid, None)
        self._cluster.spares.release(uid)
        counters.EXTENDER_RESERVATIONS.set(len(self._by_uid))

    def release(self, uid: str) -> None:
        """End a pod's reservation and free its capacity. Nodes that kube-scheduler did not take stay known."""
        if self._by_uid.pop(uid, None) is not None:
            # Without effect if a watch has shown the pod as bound.
            self._cluster.placements.forget(uid)
        self._cluster.spares.release(uid)
        counters.EXTENDER_RESERVATIONS.set(len(self._by_uid))

    def pod_gone(self, uid: str) -> None:
        """Handle that a pod no longer waits: it was deleted, or bound by whomever."""
        self.release(uid)
        self._rejected.pop(uid, None)
        if self._nominated.pop(uid, None) is not None:
            self._cluster.nominator.release(uid)

    async def run(self) -> None:
        """End overdue reservations until cancelled."""
        while True:
            await asyncio.sleep(PERIOD)
            now = self._cluster.clock()
            since = {uid: reservation.at for uid, reservation in self._by_uid.items()} | self._nominated
            for uid, at in since.items():
                if now - at > (MAX_SECONDS if self._is_waiting(uid) else UNSEEN_SECONDS):
                    log.warning("reservation ended", uid=uid, seconds=round(now - at))
                    self.pod_gone(uid)
