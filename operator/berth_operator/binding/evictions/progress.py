"""Whether evictions helped the pods that needed them, and the back-off of pods that lost the freed places.

A set of victims has helped once the pod that needed their place runs. If this pod stops waiting for the place before it
is bound, the place is lost: others took it, or the pod was deleted. The place is also lost if kubelet rejects the bound
pod. `core.decision.lost_places` defines the back-off. The next leader inherits the record of lost places.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from berth_api.objects.leader_lease import LostPlace
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.decision.lost_places import OF_GANG, OF_POD, LostPlaces, preemptor_of, preemptor_of_pod
from berth_operator.core.values.charge import NOT_STARTED, Charge
from berth_operator.core.values.preemption_backoff import PreemptionBackoff
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two looks at what evictions have led to."""
FAILED_SECONDS: Final = 5.0
"""Seconds after a bound pod is gone within which another watch shows that it failed."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class _Attempt:
    """A set of victims, and the pods that wait for their place. Each unit has at most one attempt."""

    preemptor: str
    nodes: frozenset[str]
    pods: frozenset[str]
    """UIDs of the pods that the nodes are nominated for."""
    placed: frozenset[str]
    """UIDs of the pods that were on these nodes."""
    limit: int
    evicted: int
    """Number of victims, without victims that the API server refused to delete."""
    is_bound: bool = False
    """Whether a pod of the unit was assumed."""
    gone_at: float | None = None
    """When the bound pods were gone before they were seen to run."""


class EvictionProgress:
    """Follows the evictions of one term."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lost = LostPlaces()
        self._attempts: dict[str, _Attempt] = {}
        """UID of a unit -> its open attempt."""
        self._of_pod: dict[str, _Attempt] = {}
        """UID of a pod that a node is nominated for -> the same."""
        self._backing_off: dict[str, Membership | None] = {}
        """UID of a pod, or key of a gang with its membership, whose failure reports that its preemption backs off."""
        self._due = 0.0
        cluster.placements.on_assume = self._assumed

    def restore(self, lost: Sequence[LostPlace] | None) -> None:
        """Restore the lost places of the last leader. If they are unknown (None), no pods are evicted for a while."""
        if lost is None:
            self._lost.back_off_all(self._cluster.wall())
        else:
            self._lost.restore(lost, self._cluster.wall())

    def record(self) -> list[LostPlace]:
        """Return the lost places, for the next leader."""
        return self._lost.record()

    # --- attempts -------------------------------------------------------------------------------------------------

    def began(self, unit: PendingPod | Gang, nominees: Collection[Charge], victims: int) -> None:
        """Record that a number of pods are evicted for a unit that nodes are nominated for.

        A place of a pod that comes later has another UID than this pod, so only its node counts.
        """
        own = {pod.uid for pod in pods_of(unit)}
        nodes = frozenset(nominee.node for nominee in nominees)
        attempt = self._attempts[unit.uid] = _Attempt(
            preemptor=preemptor_of(unit),
            nodes=nodes,
            pods=frozenset(nominee.uid for nominee in nominees if nominee.uid in own),
            placed=frozenset(charge.uid for node in nodes for charge in self._cluster.fleet.on_node(node)),
            limit=OF_GANG if isinstance(unit, Gang) else OF_POD,
            evicted=victims,
        )
        self._of_pod |= dict.fromkeys(attempt.pods, attempt)

    def refused(self, pod: PendingPod) -> None:
        """Record that a victim could not be deleted. A set of victims counts only if at least one was deleted."""
        attempt = self._attempts.get(pod.uid if pod.gang is None else pod.gang.key)
        if attempt is not None:
            attempt.evicted -= 1

    def backs_off(self, pod: PendingPod) -> bool:
        """Return whether no pods are evicted for a pod somewhere now."""
        return bool(self._lost.backoff(preemptor_of(pod), self._cluster.wall()))

    def has_lost(self, unit: PendingPod | Gang) -> bool:
        """Return whether a unit has lost a place since its controller's pods last ran."""
        return self._lost.has_lost(preemptor_of(unit))

    def of_pod(self, pod: PendingPod) -> PendingPod:
        """Return a pod that looks for victims, with its back-off. Capacity freed for it before is lost."""
        self._look_at(pod.uid)
        backoff = self._lost.backoff(preemptor_of(pod), self._cluster.wall())
        if backoff:
            self._backing_off[pod.uid] = None
        return pod if backoff == pod.backoff else self._cluster.nominator.set_backoff(pod, backoff)

    def of_gang(self, gang: Gang) -> PreemptionBackoff:
        """Return the back-off of a gang that looks for victims. Capacity freed for it before is lost."""
        self._look_at(gang.uid)
        backoff = self._lost.backoff(preemptor_of(gang), self._cluster.wall())
        if backoff:
            self._backing_off[gang.uid] = gang.membership
        return backoff

    def _look_at(self, uid: str) -> None:
        """Look at all attempts before victims are chosen for a unit: its controller may have lost places by others."""
        if uid in self._attempts:
            self._lose(self._close(uid))
        self._settle()

    def _close(self, uid: str) -> _Attempt:
        """Remove and return an attempt."""
        attempt = self._attempts.pop(uid)
        for pod in attempt.pods:
            self._of_pod.pop(pod, None)
        return attempt

    # --- from time to time --------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Count lost places, mark overdue pods, and retry pods and gangs whose back-off has ended."""
        if (now := self._cluster.clock()) < self._due:
            return
        self._due = now + PERIOD
        if self._cluster.leaving_pods.expire():
            # The review decides the pods again that wait for them.
            self._cluster.waker.record_change()
        self._settle()
        self._lost.expire(self._cluster.wall())
        wall = self._cluster.wall()
        for uid, gang in [*self._backing_off.items()]:
            # A unit is decided again if it may evict pods now where it could not when it was decided.
            if gang is not None:
                if not self._lost.backoff(uid, wall):
                    del self._backing_off[uid]
                    if (unit := self._cluster.gangs.unit(gang)) is not None:
                        self._cluster.queue.wake_class(unit.class_key)
                        self._cluster.waker.put(unit)
            elif (pod := self._cluster.pending.get(uid)) is None:
                del self._backing_off[uid]
            elif (backoff := self._lost.backoff(preemptor_of(pod), wall)) != pod.backoff:
                if not backoff:
                    del self._backing_off[uid]
                self._cluster.queue.wake_class(pod.class_key)
                pod = self._cluster.nominator.set_backoff(pod, backoff)
                if uid not in self._cluster.fleet.charges:
                    self._cluster.waker.put(pod)
        counters.PREEMPTION_BACKOFFS.set(self._lost.backing_off(self._cluster.wall()))

    def _assumed(self, placement: Placement) -> None:
        """Record that a pod no longer waits for its place. Without evictions, it has lost nothing, either."""
        pod = placement.pod
        if pod.uid in self._of_pod:
            self._of_pod[pod.uid].is_bound = True
        elif pod.gang is None and self.has_lost(pod):
            self.began(pod, [placement.charge], 0)
            self._of_pod[pod.uid].is_bound = True

    def _settle(self) -> None:
        """Close the attempts that have helped, or whose place is lost."""
        for uid, attempt in [*self._attempts.items()]:
            if (has_lost := self._has_lost(attempt)) is None:
                continue
            self._close(uid)
            if has_lost:
                self._lose(attempt)
            elif attempt.gone_at is None:
                self._lost.win(attempt.preemptor, attempt.nodes)

    def _has_lost(self, attempt: _Attempt) -> bool | None:
        """Return whether the place of an attempt is lost; None if that is open."""
        fleet = self._cluster.fleet
        charged = [fleet.charges[pod] for pod in attempt.pods if pod in fleet.charges]
        if len(charged) == len(attempt.pods) and all(charge.started != NOT_STARTED for charge in charged):
            return False
        nominees = [fleet.nominees[pod] for pod in attempt.pods if pod in fleet.nominees]
        if charged or any(nominee.node in attempt.nodes for nominee in nominees):
            return None
        if not attempt.is_bound or attempt.pods & self._cluster.pending.keys():
            return True
        if not attempt.pods.isdisjoint(self._cluster.failed):
            return True
        now = self._cluster.clock()
        attempt.gone_at = now if attempt.gone_at is None else attempt.gone_at
        # Deleted, or it has completed within a moment: its place was no one else's.
        return False if now >= attempt.gone_at + FAILED_SECONDS else None

    def _lose(self, attempt: _Attempt) -> None:
        if not attempt.evicted:
            return
        # The schedulers of the pods that have come to the nodes since, but for the preemptor's own.
        takers = sorted(
            {
                charge.scheduler
                for node in attempt.nodes
                for charge in self._cluster.fleet.on_node(node)
                if charge.scheduler
                and charge.uid not in attempt.placed
                and attempt.preemptor != preemptor_of_pod(charge.owner, charge.pod)
                and (charge.gang is None or attempt.preemptor != charge.gang.key)
            }
        )
        log.warning("place lost that was freed", preemptor=attempt.preemptor, nodes=sorted(attempt.nodes), to=takers)
        counters.PREEMPTION_PLACES_LOST.inc()
        # The nodes of a gang do not count one by one: it needs all of them at once.
        nodes = attempt.nodes if attempt.limit == OF_POD else ()
        self._lost.lose(attempt.preemptor, nodes, takers, self._cluster.wall(), attempt.limit)
