"""Whether evictions helped the pods that needed them, and the back-off of pods that lost the freed places.

A set of victims has helped once the pod that needed their place runs. If this pod stops waiting for the place before it
is bound, the place is lost: others took it, or the pod was deleted. It is also lost if the bound pod fails before it
runs. `core.decision.lost_places` defines the back-off. The next leader inherits the record of lost places.

A place is not lost if kubelet rejects the bound pod. `RejectedPods` bounds the evictions that follow.

A place that a pod of ours with higher priority takes is not lost: the unit that waited for it was *displaced*. This
holds once for each Binding of such a pod, so evictions are bounded by Bindings.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from berth_api.objects.leader_lease import LostPlace
from berth_client.errors import CallError
from berth_client.refusals import is_for_good
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.decision.lost_places import OF_GANG, OF_POD, LostPlaces, preemptor_of, preemptor_of_pod
from berth_operator.core.fleet.kubelet_allocation import is_leftover
from berth_operator.core.values.charge import NOT_STARTED, Charge
from berth_operator.core.values.preemption_backoff import PreemptionBackoff
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster

PERIOD: Final = 1.0
"""Seconds between two looks at what evictions have led to."""
REFUSED_SECONDS: Final = 60.0
"""Seconds for which a pod is no victim after the API server has refused to delete it until a person acts."""
FAILED_SECONDS: Final = 5.0
"""Seconds after a bound pod is gone within which another watch shows that it failed."""
MAX_DISPLACED: Final = 16
"""Displacements of a unit that wait for a Binding. If there are more, the oldest counts as a lost place."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class _Attempt:
    """A set of victims, and the pods that wait for their place. Each unit has at most one open attempt."""

    unit: str
    """UID of the pod, or key of the gang."""
    preemptor: str
    has_controller: bool
    """Whether a controller creates the pod again if it is deleted."""
    priority: int
    """Pods of ours above it may take the place. For a gang, it is the lowest priority of its members."""
    nodes: frozenset[str]
    pods: frozenset[str]
    """UIDs of the pods that the nodes are nominated for."""
    placed: set[str]
    """UIDs of the pods that were on these nodes or nominated for them, so that victims were chosen next to them,
    and of pods whose Binding explains another displacement."""
    limit: int
    evicted: int
    """Number of victims, without victims that the API server refused to delete."""
    was_refused: bool = False
    """Whether the API server refused to delete a victim."""
    is_counted: bool = False
    """Whether the loss of these nodes was counted with another attempt of the preemptor."""
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
        self._displaced: list[_Attempt] = []
        """The attempts whose place pods of ours with higher priority take, until one of these pods is bound there."""
        self._backing_off: dict[str, Membership | None] = {}
        """UID of a pod, or key of a gang with its membership, whose failure reports that its preemption backs off."""
        self._undeletable: dict[str, tuple[float, str]] = {}
        """UID of a pod that may not be deleted now -> until when, and what refused its deletion."""
        self._due = 0.0
        cluster.placements.on_assume = self._assumed
        cluster.on_namespace_removed = self._namespace_removed

    def restore(self, lost: Sequence[LostPlace] | None) -> None:
        """Restore the lost places of the last leader. If they are unknown (None), no pods are evicted for a while."""
        if lost is None:
            self._lost.back_off_all(self._cluster.wall())
        else:
            self._lost.restore(lost, self._cluster.wall())

    def lost_before(self, unit: PendingPod | Gang, node: str = "") -> None:
        """Count a place that the last leader kept for a unit, and where the unit no longer fits.

        What took it is not known. If it did not count, each new leader would evict pods again. The places of a gang
        count for no node.
        """
        limit = OF_GANG if isinstance(unit, Gang) else OF_POD
        nodes = [node] if node else []
        preemptor = preemptor_of(unit)
        log.warning("place lost that was freed", preemptor=preemptor, nodes=nodes, why="before this term")
        counters.PREEMPTION_PLACES_LOST.inc()
        self._lost.lose(preemptor, nodes, (), self._cluster.wall(), limit)

    def record(self) -> list[LostPlace]:
        """Return the lost places, for the next leader."""
        return self._lost.record()

    # --- attempts -------------------------------------------------------------------------------------------------

    def began(self, unit: PendingPod | Gang, nominees: Collection[Charge], victims: int) -> None:
        """Record that a number of pods are evicted for a unit that nodes are nominated for.

        A place of a pod that comes later has another UID than this pod, so only its node counts.
        """
        own, fleet = {pod.uid for pod in pods_of(unit)}, self._cluster.fleet
        nodes = frozenset(nominee.node for nominee in nominees)
        attempt = self._attempts[unit.uid] = _Attempt(
            unit=unit.uid,
            preemptor=preemptor_of(unit),
            has_controller=any(pod.owner.uid for pod in pods_of(unit)),
            priority=unit.lowest if isinstance(unit, Gang) else unit.priority,
            nodes=nodes,
            pods=frozenset(nominee.uid for nominee in nominees if nominee.uid in own),
            placed={charge.uid for node in nodes for charge in (*fleet.on_node(node), *fleet.nominees_on(node))},
            limit=OF_GANG if isinstance(unit, Gang) else OF_POD,
            evicted=victims,
        )
        self._of_pod |= dict.fromkeys(attempt.pods, attempt)

    def refused(self, pod: PendingPod, victim: Charge, error: CallError) -> None:
        """Record that a victim could not be deleted. A set of victims counts only if at least one was deleted."""
        attempt = self._attempts.get(pod.uid if pod.gang is None else pod.gang.key)
        if attempt is not None:
            attempt.evicted -= 1
            attempt.was_refused = True
        if is_for_good(error):
            self._undeletable[victim.uid] = self._cluster.clock() + REFUSED_SECONDS, error.refuser
            self._cluster.fleet.undeletable.add(victim.uid)

    def rivals(self, unit: str) -> list[Charge]:
        """Return the pods of ours above a unit (its UID) that came to the nodes of its open attempt since, or will."""
        attempt = self._attempts.get(unit)
        return [] if attempt is None else [*self._placed_above(attempt), *self._nominated_above(attempt)]

    def displaced(self, unit: str, by: Collection[str] = ()) -> None:
        """Record that pods of ours with higher priority take the place of a unit (its UID).

        The unit may evict pods again at once. The place counts as lost only if none of these pods is bound there. `by`
        are the UIDs of those that have just chosen the place; they may have had another one there before.
        """
        if unit not in self._attempts:
            return
        attempt = self._close(unit)
        attempt.placed.difference_update(by)
        if not attempt.evicted:
            return
        log.info("place given to a pod of higher priority", preemptor=attempt.preemptor, nodes=sorted(attempt.nodes))
        before = [displaced for displaced in self._displaced if displaced.unit == unit]
        if len(before) >= MAX_DISPLACED:
            self._displaced.remove(before[0])
            self._lose(before[0], "too many pods took it")
        self._displaced.append(attempt)

    def give_up(self, unit: str) -> None:
        """Record that a unit (its UID) does not wait any more for a place that its kubelet rejects; it is not lost."""
        if unit in self._attempts:
            self._close(unit)

    def gave_way(self, unit: str) -> bool:
        """Record that a unit (its UID) is displaced if pods of ours above it, and no others, came; return whether."""
        attempt = self._attempts.get(unit)
        if attempt is None or not self.rivals(unit) or any(self._others(attempt)):
            return False
        self.displaced(unit)
        return True

    def undeletable_note(self, priority: int) -> str:
        """Return the sentence about these pods for a preemptor of a priority; empty if there are none below it."""
        charges = self._cluster.fleet.charges
        refusers = [
            refuser
            for uid, (_, refuser) in self._undeletable.items()
            if uid in charges and charges[uid].priority < priority
        ]
        if not refusers:
            return ""
        by = ", ".join(sorted(set(filter(None, refusers))))
        return f"the API server refuses to delete {len(refusers)} pod(s) of lower priority{f' ({by})' if by else ''}."

    def backs_off(self, pod: PendingPod) -> bool:
        """Return whether no pods are evicted for a pod somewhere now."""
        return bool(self._backoff(pod))

    def has_lost(self, unit: PendingPod | Gang) -> bool:
        """Return whether a unit has lost a place since its controller's pods last ran."""
        return self._lost.has_lost(preemptor_of(unit))

    def of_pod(self, pod: PendingPod) -> PendingPod:
        """Return a pod that looks for victims, with its back-off. Capacity freed for it before is lost."""
        self._look_at(pod.uid)
        backoff = self._backoff(pod)
        if backoff:
            self._backing_off[pod.uid] = None
        return pod if backoff == pod.backoff else self._cluster.nominator.set_backoff(pod, backoff)

    def of_gang(self, gang: Gang) -> PreemptionBackoff:
        """Return the back-off of a gang that looks for victims. Capacity freed for it before is lost."""
        self._look_at(gang.uid)
        backoff = self._backoff(gang)
        if backoff:
            self._backing_off[gang.uid] = gang.membership
        return backoff

    def _backoff(self, unit: PendingPod | Gang) -> PreemptionBackoff:
        preemptor = preemptor_of(unit)
        controllers = map(preemptor_of, unit.members) if isinstance(unit, Gang) else (preemptor,)
        rejected = self._cluster.rejected_pods.eviction_backoff(controllers)
        return rejected or self._lost.backoff(preemptor, self._cluster.wall())

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
        ended = [uid for uid, (until, _) in self._undeletable.items() if until <= now]
        for uid in ended:
            del self._undeletable[uid]
            self._cluster.fleet.undeletable.discard(uid)
        if ended:
            self._cluster.waker.changed(Change.EVICTABLE)
        self._settle()
        self._lost.expire(self._cluster.wall())
        self._lost.keep_nodes(self._exists)
        wall = self._cluster.wall()
        for uid, gang in [*self._backing_off.items()]:
            # A unit is decided again if it may evict pods now where it could not when it was decided.
            if gang is not None:
                if self._lost.backoff(uid, wall):
                    continue
                unit = self._cluster.gangs.unit(gang)
                if unit is None:
                    del self._backing_off[uid]
                elif not self._backoff(unit):
                    del self._backing_off[uid]
                    self._cluster.queue.wake_class(unit.class_key)
                    self._cluster.waker.put(unit)
            elif (pod := self._cluster.pending.get(uid)) is None:
                del self._backing_off[uid]
            elif (backoff := self._backoff(pod)) != pod.backoff:
                if not backoff:
                    del self._backing_off[uid]
                self._cluster.queue.wake_class(pod.class_key)
                pod = self._cluster.nominator.set_backoff(pod, backoff)
                if uid not in self._cluster.fleet.charges:
                    self._cluster.waker.put(pod)
        counters.PREEMPTION_BACKOFFS.set(self._lost.backing_off(self._cluster.wall()))

    def _namespace_removed(self, name: str) -> None:
        """Forget the lost places of a namespace, also those of pods that were deleted a moment ago."""
        self._settle()
        self._lost.forget_namespace(name)

    def _assumed(self, placement: Placement) -> None:
        """Record that a pod no longer waits for its place. Without evictions, it has lost nothing, either."""
        pod = placement.pod
        if pod.uid in self._of_pod:
            self._of_pod[pod.uid].is_bound = True
        elif pod.gang is None and self.has_lost(pod):
            self.began(pod, [placement.charge], 0)
            self._of_pod[pod.uid].is_bound = True

    def _exists(self, node: str) -> bool:
        fleet = self._cluster.fleet
        return node in fleet.rows and bool(fleet.present[fleet.rows[node]])

    def _settle(self) -> None:
        """Close the attempts that have helped, or whose place is lost."""
        # The latest first, because fewer pods have come since.
        for displaced in self._displaced[::-1]:
            self._settle_displaced(displaced)
        for uid, attempt in [*self._attempts.items()]:
            if (has_lost := self._has_lost(attempt)) is None:
                continue
            self._close(uid)
            if has_lost:
                self._lose(attempt)
            elif attempt.gone_at is None:
                self._lost.win(attempt.preemptor, attempt.nodes)
                self._displaced = [displaced for displaced in self._displaced if displaced.unit != attempt.unit]

    def _settle_displaced(self, attempt: _Attempt) -> None:
        """Close a displaced attempt once a pod with higher priority is bound there, or none is left."""
        above = [*self._placed_above(attempt)]
        bound = next((charge.uid for charge in above if charge.uid not in self._cluster.pending), None)
        if bound is None and (above or any(self._nominated_above(attempt))):
            return
        self._displaced.remove(attempt)
        if bound is None:
            self._lose(attempt, "the pod that took it was not bound")
            return
        # One Binding explains one displacement of a unit.
        for other in (*self._displaced, *self._attempts.values()):
            if other.unit == attempt.unit:
                other.placed.add(bound)

    def _placed_above(self, attempt: _Attempt) -> Iterator[Charge]:
        """Yield the pods of ours with higher priority that came to the nodes of an attempt since it began."""
        for charge in self._came(attempt):
            if self._is_above(charge, attempt):
                yield charge

    def _nominated_above(self, attempt: _Attempt) -> Iterator[Charge]:
        """Yield the nominees of ours with higher priority on the nodes of an attempt."""
        for node in attempt.nodes:
            for nominee in self._cluster.fleet.nominees_on(node):
                is_new = nominee.uid not in attempt.placed and not _is_of(nominee, attempt)
                if is_new and self._is_above(nominee, attempt):
                    yield nominee

    def _is_above(self, charge: Charge, attempt: _Attempt) -> bool:
        is_ours = bool(charge.scheduler) and self._cluster.gangs.schedules(charge.scheduler)
        return is_ours and charge.priority > attempt.priority

    def _came(self, attempt: _Attempt) -> Iterator[Charge]:
        """Yield the charges that came to the nodes of an attempt since it began, except the preemptor's own."""
        for node in attempt.nodes:
            for charge in self._cluster.fleet.on_node(node):
                if charge.uid not in attempt.placed and not _is_of(charge, attempt):
                    yield charge

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

    def _others(self, attempt: _Attempt) -> Iterator[Charge]:
        """Yield the charges that took the place of an attempt: no pods of ours above it, no leftovers of victims."""
        for charge in self._came(attempt):
            if not (self._is_above(charge, attempt) or is_leftover(charge)):
                yield charge

    def _lose(self, attempt: _Attempt, otherwise: str = "the pod was deleted, or the node changed") -> None:
        """Count a lost place, once for all attempts of the preemptor that are open on the same nodes.

        `otherwise`: the reason for the log if there is none on the nodes.
        """
        if not attempt.evicted or attempt.is_counted:
            return
        others = [*self._others(attempt)]
        takers = sorted({charge.scheduler for charge in others if charge.scheduler})
        why = self._why_lost(attempt, is_taken=bool(others))
        log.warning(
            "place lost that was freed",
            preemptor=attempt.preemptor,
            nodes=sorted(attempt.nodes),
            why=why or otherwise,
            **({"to": takers} if takers else {}),
        )
        counters.PREEMPTION_PLACES_LOST.inc()
        # Without a reason on the node, the pod may run there the next time. Nor do the nodes of a gang count alone: it
        # needs all of them at once.
        nodes = attempt.nodes if attempt.limit == OF_POD and why else ()
        self._lost.lose(attempt.preemptor, nodes, takers, self._cluster.wall(), attempt.limit)
        for other in (*self._displaced, *self._attempts.values()):
            if other.preemptor == attempt.preemptor and not other.nodes.isdisjoint(attempt.nodes):
                other.is_counted = True

    def _why_lost(self, attempt: _Attempt, *, is_taken: bool) -> str:
        """Return why a place on the nodes of an attempt would be lost again; empty if it would not."""
        fleet = self._cluster.fleet
        if is_taken:
            return "other pods took it"
        if attempt.is_bound:
            return "the pod was bound and did not run"
        if any(charge.uid in fleet.overdue for node in attempt.nodes for charge in fleet.on_node(node)):
            return "a victim does not end"
        if attempt.was_refused:
            return "a victim could not be deleted"
        is_deleted = attempt.pods.isdisjoint(self._cluster.pending)
        return (
            "the pod was deleted, and its controller creates it again" if is_deleted and attempt.has_controller else ""
        )


def _is_of(charge: Charge, attempt: _Attempt) -> bool:
    """Return whether a charge or nominee is of the preemptor itself."""
    if charge.gang is not None and attempt.preemptor == charge.gang.key:
        return True
    return attempt.preemptor == preemptor_of_pod(charge.owner, charge.pod)
