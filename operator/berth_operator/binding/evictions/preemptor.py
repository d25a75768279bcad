"""Preemption: choose victims for pods of higher priority, nominate a node, and delete the victims.

Victims are chosen during the pod's decision. The next decision already sees the nomination, which keeps the victims'
capacity for the pod. Deletions run concurrently. Each victim first gets a condition with the reason, and then its own
grace period. Before that, a dry run shows whether a policy or webhook refuses the deletion. If so, the victim gets no
condition, and is no victim for a while. The pod is parked like any other pod that fits nowhere, and is woken when a pod
leaves. It preempts no further pods while its victims are terminating. `EvictionProgress` counts evictions that were in
vain and stops further ones. `NodeTaints` keeps other schedulers off the place meanwhile.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api.objects.leader_lease import LostPlace
from berth_api.values import keys
from berth_client import times
from berth_client.errors import CallError
from berth_operator.binding.evictions.deletion import PodReader, unless_gone
from berth_operator.binding.evictions.moves import KeptCapacity, Moves
from berth_operator.binding.evictions.node_taints import NodeTaints
from berth_operator.binding.evictions.progress import EvictionProgress
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.core.claims.bounds.errors import NoWorkError
from berth_operator.core.decision import promise
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.decision.gang_preemption import (
    NO_VICTIMS,
    may_preempt,
    pods_awaited,
    preempt_gang,
    waits_for_kubelet,
)
from berth_operator.core.decision.lost_places import preemptor_of
from berth_operator.core.decision.messages import cut, with_note
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import (
    BACKING_OFF,
    NEVER,
    PAUSED,
    TERMINATING,
    add_preemption,
    found,
    is_taken,
    leaving,
    nominated_fit,
    nominated_pods,
    not_helpful,
    not_tried,
    preempt,
)
from berth_operator.core.decision.rivals import took_place, took_places
from berth_operator.core.fleet import claim_counts
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from berth_operator.metrics import scheduler
from berth_operator.state.cache.cluster import Cluster

EVICTIONS: Final = 16
"""Victims that are evicted concurrently."""
PAUSES: Final = (1.0, 2.0, 4.0)
"""Seconds between the attempts of one request. If the last fails, the pod is decided again after its back-off."""

_FOR_LATER: Final = "not evicting pods for pods that come later:"
UNCONFIRMED: Final = f"{_FOR_LATER} Berth does not read the object of their controller."
UNREADABLE: Final = f"{_FOR_LATER} Berth may not read LimitRanges, ResourceQuotas and PriorityClasses."
NOT_PREEMPTING: Final = f"{_FOR_LATER} their PriorityClass is not known, or their preemptionPolicy is Never."
_NODE_CHANGES: Final = (
    Change.CAPACITY_FREED
    | Change.NODE_TAINTS
    | Change.NODE_LABELS
    | Change.NODE_ALLOCATABLE
    | Change.NODE_REMOVED
    | Change.DEVICE
)
"""Changes that may end or fulfil a nomination."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PreemptionApi(PodReader, Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def patch_pod_status(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        """Patch a pod's status by strategic merge."""

    async def delete_pod(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        """Delete a pod within its own grace period, if it still has this UID."""


class TermOverError(Exception):
    """We no longer lead."""


class Preemptor:
    """Preempts pods for one term."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        pods: PreemptionApi,
        reporter: Reporter,
        policy: Callable[[str], Policy],
        term: Callable[[], int | None],
        progress: EvictionProgress,
        taints: NodeTaints,
        moves: Moves | None = None,
    ) -> None:
        """Create a preemptor. `moves` is the capacity kept while pods are moved; None if no pods are moved."""
        self._cluster, self._pods, self._reporter = cluster, pods, reporter
        self._taints, self._moves = taints, moves
        self.progress = progress
        """What evictions have led to, for all that evict pods for others."""
        self._policy, self._term = policy, term
        self._jobs: asyncio.Queue[tuple[PendingPod, Charge]] = asyncio.Queue()

    # --- deciding ---------------------------------------------------------------------------------------------

    def restore(self, lost: Sequence[LostPlace] | None) -> None:
        """Restore the last leader's lost places, and its nominations from the pods' status; of a gang all or none."""
        self.progress.restore(lost)
        fleet, waiting = self._cluster.fleet, nominated_pods(self._cluster.pending.values())
        for pod in waiting:
            if (nominee := self._nominated_fit(pod)) is not None:
                self._cluster.nominator.nominate(pod, nominee)
            elif (kept := self._request(pod)) is not None:
                self._cluster.nominator.nominate(pod, kept.nominee)
        taken = (
            pod
            for pod in waiting
            if pod.gang is None
            and pod.uid not in fleet.nominees
            and is_taken(fleet, pod, self._policy(pod.scheduler), pod.nominated_node)
        )
        # One for each controller: its pods may have lost their places together, or no pod was evicted for them yet.
        for pod in {preemptor_of(pod): pod for pod in taken}.values():
            self.progress.lost_before(pod, pod.nominated_node)
        nominated = Counter(pod.gang for pod in waiting if pod.gang is not None)
        for gang, members in nominated.items():
            if len(self._cluster.nominator.of_gang(gang)) < members:
                self._cluster.nominator.withdraw_gang(gang)
                if (unit := self._cluster.gangs.unit(gang)) is not None:
                    self.progress.lost_before(unit)
            # This also withdraws the nominations if the gang now has too few members.
            self._cluster.gangs.gather(gang)

        # Follow the evictions of the last leader whose pods still leave the nominated nodes.
        for pod in waiting:
            nominee = fleet.nominees.get(pod.uid)
            if pod.gang is not None or nominee is None:
                continue
            if victims := leaving(fleet, fleet.on_node(nominee.node), pod.priority):
                self.progress.began(pod, [nominee], len(victims))
                self._taints.adopt([nominee])
        for gang in nominated:
            if (unit := self._cluster.gangs.unit(gang)) is not None and (left := self._victims_left(unit)):
                nominees = self._cluster.nominator.of_gang(gang)
                self.progress.began(unit, nominees, left)
                self._taints.adopt(nominees)

    def preempt_for(self, pod: PendingPod, failure: Failure) -> tuple[PendingPod, Failure]:
        """Try preemption for a pod that fits nowhere; return the pod and its updated failure."""
        fleet = self._cluster.fleet
        if pod.error or self._lacks_work(pod):
            return pod, failure
        policy = self._policy(pod.scheduler)
        if policy.preemption:
            scheduler.PREEMPTION_ATTEMPTS.inc()
        if self._moves is not None and (kept := self._moves.kept_for(pod)) is not None:
            return self._keep(pod, kept, failure)
        if pod.nominated_node and (nominee := self._nominated_fit(pod)) is not None:
            is_paused = nominee.node in fleet.rejecting.get(pod.request.rejected_controller, ())
            failure = self._awaiting(failure, PAUSED if is_paused else TERMINATING)
            return self._cluster.nominator.nominate(pod, nominee), failure
        if not self._cluster.rejected_pods.keeps_place(pod):
            self.progress.give_up(pod.uid)
        if (rivals := self.progress.rivals(pod.uid)) and took_place(fleet, pod, policy, rivals):
            self.progress.displaced(pod.uid)
        pod = self.progress.of_pod(pod)
        if (why := not_tried(fleet, pod, policy, failure)) is not None:
            return self._keep_or_withdraw(pod, why)
        in_flight = self._cluster.placements.in_flight()
        preemption = preempt(fleet, pod, policy, self._cluster.budgets, in_flight)
        if preemption is None:
            why = self._with_undeletable(not_helpful(fleet, pod, policy, failure, in_flight), pod.priority)
            return self._keep_or_withdraw(pod, _until_evictable(why, in_flight))
        node = preemption.nominee.node
        scheduler.PREEMPTION_VICTIMS.observe(len(preemption.victims))
        log.info("preempting", pod=pod.key, node=node, victims=[victim.pod for victim in preemption.victims])
        self._displace(node, pod)
        pod = self._nominate(pod, preemption.nominee)
        if victims := self._cluster.gang_tracker.leaving_with(preemption.victims):
            self._keep_from_others(pod, [preemption.nominee], victims)
            self.progress.began(pod, [preemption.nominee], len(victims))
        for victim in victims:
            self._start_eviction(victim, pod)
        return pod, self._awaiting(failure, found(fleet, preemption))

    def preempt_for_gang(self, gang: Gang, failure: Failure, places: int) -> tuple[Gang, Failure]:
        """Try preemption for a gang that does not fit; return the gang and its updated failure.

        A gang preempts no further pods while its victims are terminating, even if it would fit elsewhere. If one of its
        nodes has failed meanwhile, it chooses again. `places`: how many places may be kept for pods that come after its
        members.
        """
        fleet, policy = self._cluster.fleet, self._policy(gang.members[0].scheduler)
        if policy.preemption:
            scheduler.PREEMPTION_ATTEMPTS.inc()
        if any(map(self._lacks_work, gang.members)):
            return gang, failure
        if left := self._victims_left(gang):
            return gang, self._awaiting_gang(left, failure)
        if not all(map(self._cluster.rejected_pods.keeps_place, gang.members)):
            self.progress.give_up(gang.uid)
        elif waits_for_kubelet(fleet, gang, policy, self._cluster.nominator.of_gang(gang.membership)):
            return gang, self._awaiting(failure, PAUSED)
        if (rivals := self.progress.rivals(gang.uid)) and took_places(fleet, gang, policy, rivals):
            self.progress.displaced(gang.uid)
        if (why := self._not_tried_for(gang, policy, failure, places)) is not None:
            return self._withdraw_nominations(gang), why
        in_flight = self._cluster.placements.in_flight()
        preemption, why_none = None, NO_VICTIMS
        try:
            preemption = preempt_gang(fleet, gang, policy, self._cluster.budgets, in_flight)
        except NoWorkError as error:
            why_none = str(error)
        if preemption is None:
            why = self._with_undeletable(add_preemption(failure, why_none), gang.lowest)
            return self._withdraw_nominations(gang), _until_evictable(why, in_flight)
        scheduler.PREEMPTION_VICTIMS.observe(len(preemption.victims))
        log.info("preempting", gang=gang.key, victims=[victim.pod for victim in preemption.victims])
        members, nominees_by_node = {member.uid: member for member in gang.members}, {}
        for uid in members.keys() - {nominee.uid for nominee in preemption.nominees}:
            self.withdraw_nomination(members[uid])
        self._cluster.nominator.release_later(gang.membership)
        for nominee in preemption.nominees:
            self._displace(nominee.node, gang)
            if nominee.uid in members:
                nominees_by_node[nominee.node] = self._nominate(members[nominee.uid], nominee)
            else:
                # A pod that comes later has no status to record it in, so the next leader does not know this place.
                self._cluster.fleet.nominate(nominee)
        if victims := self._cluster.gang_tracker.leaving_with(preemption.victims):
            self._keep_from_others(gang, preemption.nominees, victims)
            self.progress.began(gang, preemption.nominees, len(victims))
        for victim in victims:
            # A member of the victim's group may be on a node that is nominated for none.
            self._start_eviction(victim, nominees_by_node.get(victim.node) or next(iter(nominees_by_node.values())))
        gang = self._cluster.gangs.unit(gang.membership) or gang
        return gang, self._awaiting_gang(self._victims_left(gang), failure)

    def _with_undeletable(self, failure: Failure, priority: int) -> Failure:
        """Return a failure with the note about the pods that the API server refuses to delete."""
        note = self.progress.undeletable_note(priority)
        return replace(failure, message=with_note(failure.message, note)) if note else failure

    def _not_tried_for(self, gang: Gang, policy: Policy, failure: Failure, places: int) -> Failure | None:
        """Return the failure, with the reason, of a gang that may not preempt pods now; None if it may."""
        if not may_preempt(self._cluster.fleet, gang, policy):
            return failure
        if not all(member.preempts for member in gang.members):
            return add_preemption(failure, NEVER)
        if not all(pod.preempts for pod in gang.expected):
            why = NOT_PREEMPTING if self._cluster.admission_rules.are_known() else UNREADABLE
            return add_preemption(failure, why if gang.is_confirmed else UNCONFIRMED)
        if promise.exceeds(self._cluster.fleet, gang, places):
            return add_preemption(failure, promise.NO_PLACES_LEFT)
        if not (backoff := self.progress.of_gang(gang)):
            return None
        failure = add_preemption(failure, BACKING_OFF)
        return replace(failure, message=with_note(failure.message, backoff.note))

    def _lacks_work(self, pod: PendingPod) -> bool:
        """Return whether the devices for a pod's claims cannot be counted before the next turn of the loop."""
        fleet = self._cluster.fleet
        return claim_counts.is_searched(fleet, pod.request) and fleet.claims.supply.work.is_over()

    def _keep(self, pod: PendingPod, kept: KeptCapacity, failure: Failure) -> tuple[PendingPod, Failure]:
        """Keep the pod's node while other pods are moved for it."""
        failure = replace(failure, wakes_on=failure.wakes_on | _NODE_CHANGES)
        message = cut(f"{failure.message} defragmentation: {kept.note}")
        return self._cluster.nominator.nominate(pod, kept.nominee), replace(failure, message=message)

    def _keep_or_withdraw(self, pod: PendingPod, failure: Failure) -> tuple[PendingPod, Failure]:
        """Keep a node that was nominated by others, if pods can be moved; withdraw any other nomination."""
        if (kept := self._request(pod)) is not None:
            return self._keep(pod, kept, failure)
        return self.withdraw_nomination(pod), failure

    def _request(self, pod: PendingPod) -> KeptCapacity | None:
        if self._moves is None or not pod.nominated_node:
            return None
        return self._moves.request(pod, self._policy(pod.scheduler))

    def reserve(self, pod: PendingPod, nominee: Charge) -> PendingPod:
        """Nominate a node for a pod for which others are moved; return the pod with this nomination."""
        self._displace(nominee.node, pod)
        return self._nominate(pod, nominee)

    def _nominated_fit(self, pod: PendingPod) -> Charge | None:
        if not self._cluster.rejected_pods.keeps_place(pod):
            return None
        return nominated_fit(self._cluster.fleet, pod, self._policy(pod.scheduler), pod.nominated_node)

    @staticmethod
    def _awaiting(failure: Failure, text: str = TERMINATING) -> Failure:
        return add_preemption(replace(failure, wakes_on=failure.wakes_on | _NODE_CHANGES), text)

    def _victims_left(self, gang: Gang) -> int:
        """Return the number of pods that have yet to leave the nodes nominated for a gang; 0 if one has failed."""
        nominees = self._cluster.nominator.of_gang(gang.membership)
        return pods_awaited(self._cluster.fleet, gang, self._policy(gang.members[0].scheduler), nominees)

    @staticmethod
    def _awaiting_gang(left: int, failure: Failure) -> Failure:
        text = f"pod group is waiting for preemption to complete ({left} pod(s) left)."
        return add_preemption(replace(failure, wakes_on=failure.wakes_on | _NODE_CHANGES), text)

    def withdraw_nomination(self, pod: PendingPod) -> PendingPod:
        """Withdraw a pod's nomination; return the pod without it."""
        if not pod.nominated_node:
            return pod
        pod = self._cluster.nominator.withdraw(pod)
        self._reporter.nominated_node_changed(pod)
        return pod

    def _withdraw_nominations(self, gang: Gang) -> Gang:
        """Withdraw the nominations of all members; return the gang without them."""
        for pod in gang.members:
            self.withdraw_nomination(pod)
        self._cluster.nominator.release_later(gang.membership)
        return self._cluster.gangs.unit(gang.membership) or gang

    def _keep_from_others(
        self, unit: PendingPod | Gang, nominees: Collection[Charge], victims: Collection[Charge]
    ) -> None:
        """Keep the nodes from other schedulers where they would take the place of the victims.

        That is where a controller creates victims again for another scheduler, or a place was lost before.
        """
        contested = {
            victim.node
            for victim in victims
            if victim.owner.uid and not self._cluster.gangs.schedules(victim.scheduler)
        }
        has_lost = self.progress.has_lost(unit)
        self._taints.keep([nominee for nominee in nominees if has_lost or nominee.node in contested])

    def _nominate(self, pod: PendingPod, nominee: Charge) -> PendingPod:
        before = pod.nominated_node
        pod = self._cluster.nominator.nominate(pod, nominee)
        if pod.nominated_node != before:
            self._reporter.nominated_node_changed(pod)
        return pod

    def _start_eviction(self, victim: Charge, pod: PendingPod) -> None:
        self._cluster.fleet.mark_leaving(victim.uid)
        self._jobs.put_nowait((pod, victim))

    def _displace(self, node: str, unit: PendingPod | Gang) -> None:
        """Withdraw the nominations to a node of pods with lower priority than a unit, and queue those pods again."""
        priority = unit.lowest if isinstance(unit, Gang) else unit.priority
        own = {pod.uid for pod in pods_of(unit)}
        self._cluster.spares.make_way({node})
        nominees = tuple(self._cluster.fleet.nominees_on(node))
        for nominee in nominees:
            if nominee.priority >= priority or nominee.uid not in self._cluster.fleet.nominees:
                continue
            pod = self._cluster.pending.get(nominee.uid)
            gang = nominee.gang if pod is None else pod.gang
            if pod is not None and pod.reserved_node:
                self._cluster.queue.put(self._cluster.nominator.end_reservation(pod))
            elif gang is not None:
                self.progress.displaced(gang.key, by=own)
                self._cluster.nominator.withdraw_gang(gang)
                self._cluster.gangs.gather(gang)
            elif pod is not None:
                self.progress.displaced(pod.uid, by=own)
                self._cluster.queue.put(self.withdraw_nomination(pod))
            else:
                # A pod of kube-scheduler, which decides it again.
                self._cluster.nominator.release(nominee.uid)

    # --- evicting ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Evict victims until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._taints.run())
            for _ in range(EVICTIONS):
                tasks.create_task(self._evict_all())

    async def _evict_all(self) -> None:
        while True:
            pod, victim = await self._jobs.get()
            namespace, name = keys.split(victim.pod)
            try:
                # A refused deletion must not leave the condition on a pod that stays.
                await self._send(functools.partial(self._delete, namespace, name, victim.uid, dry_run=True))
                await self._taints.placed(victim.node)
                preemptor = "podgroup" if pod.gang is not None and pod.gang.is_kubernetes else "pod"
                condition = {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "PreemptionByScheduler",
                    "message": f"{pod.scheduler}: preempting to accommodate a higher priority {preemptor}",
                    "lastTransitionTime": times.time(times.now()),
                }
                patch = {"metadata": {"uid": victim.uid}, "status": {"conditions": [condition]}}
                await self._send(functools.partial(self._patch, namespace, name, patch))
                await self._send(functools.partial(self._delete, namespace, name, victim.uid))
            except TermOverError:
                continue
            except CallError as error:
                self._failed(pod, victim, error)
            else:
                self._reporter.preempted(victim, pod)

    async def _patch(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        """Patch a victim's status. A conflict is ignored: the deletion shows whether the pod was replaced."""
        try:
            await self._pods.patch_pod_status(namespace, name, patch)
        except CallError as error:
            if error.status != HTTPStatus.CONFLICT and not error.is_missing:
                raise

    async def _delete(self, namespace: str, name: str, uid: str, *, dry_run: bool = False) -> None:
        deletion = self._pods.delete_pod(namespace, name, uid, dry_run=dry_run)
        await unless_gone(deletion, self._pods, namespace, name, uid)

    async def _send(self, send: Callable[[], Awaitable[object]]) -> None:
        """Send a request until it succeeds.

        Raises:
            ApiError: the API server refused the request.
            Unreachable: the API server did not answer.
            TermOverError: we no longer lead.
        """
        for pause in (*PAUSES, None):
            if self._term() is None:
                raise TermOverError
            try:
                await send()
            except CallError as error:
                if error.is_refused or pause is None:
                    raise
                await asyncio.sleep(pause)
            else:
                return

    def _failed(self, pod: PendingPod, victim: Charge, error: CallError) -> None:
        """Decide the pod again after its back-off, because a victim could not be evicted."""
        self.progress.refused(pod, victim, error)
        log.error("eviction failed", pod=pod.key, victim=victim.pod, node=victim.node, error=str(error))
        self._cluster.fleet.unmark_leaving(victim.uid)
        if (waiting := self._cluster.pending.get(pod.uid)) is None or pod.uid in self._cluster.fleet.charges:
            return
        if waiting.gang is not None:
            self._cluster.gangs.back_off_and_gather(waiting.gang)
        else:
            self._cluster.waker.back_off(self.withdraw_nomination(waiting), self._cluster.clock())


def _until_evictable(failure: Failure, in_flight: Collection[str]) -> Failure:
    """Wake the pod also when pods become evictable."""
    return replace(failure, wakes_on=failure.wakes_on | Change.EVICTABLE | (Change.BOUND if in_flight else Change(0)))
