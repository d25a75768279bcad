"""Move pods so that a pod that fits nowhere can be placed, if `defragment` is set.

One pod is helped at a time: the first in the queue that has waited long enough. `advise` finds the fewest pods to move
for it. A nomination reserves its capacity, and the other pods are evicted in waves of at most `defragment` pods. Before
each wave, the advice is computed again on the current state. If nothing helps any more, the remaining moves are dropped
with the reason. The next wave waits until the pods of the last wave are gone and their replacements are placed. So no
two replacements are promised the same place. If pods were moved and the helped pod did not run, this counts as a lost
place (`EvictionProgress`). So pods are not moved for it again and again. If a pod of ours with higher priority takes
the place, this does not count, and the pod is helped again at once.

None of this is stored. After a failover, the pod's nominated node shows the next leader where to continue.
docs/decisions/0029-defragmentation.md has the reasons.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

import structlog

from berth_api.values import keys
from berth_client.errors import CallError
from berth_operator.binding.evictions.deletion import PodReader, unless_gone
from berth_operator.binding.evictions.moves import Moves
from berth_operator.binding.evictions.preemptor import Preemptor
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.core.advice.defragmentation import MAX_MOVES, Advice, Move, Tenant, advise, first_moves
from berth_operator.core.decision.budgets import Budgets
from berth_operator.core.decision.cycle import Failure, plugin_failure
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import leaves_soon
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.tenants import Tenants

PERIOD: Final = 2.0
"""Seconds between two checks for pods to help."""
POLL: Final = 0.2
"""Seconds between two checks of pods that are being moved."""
AGAIN: Final = 60.0
"""Seconds after which pods are searched again for a class of pods that could not be helped."""
SEARCHES: Final = 16
"""Searches for one wave, if the state changes during each search."""
REFUSALS: Final = 3
"""Refused evictions after which a pod is not helped any more."""
REFUSED_SECONDS: Final = 10.0
"""Seconds after a refused eviction: a PodDisruptionBudget may allow it once other pods are ready."""
PAUSES: Final = (1.0, 2.0, 4.0)
"""Seconds between the attempts of one eviction without an answer."""
WRITTEN_SECONDS: Final = 30.0
"""Seconds that the API server may take to accept the nomination before any pod is evicted."""
GONE_SECONDS: Final = 600.0
"""Seconds that evicted pods may take to end before the rest is dropped."""
REPLACED_SECONDS: Final = 20.0
"""Seconds that controllers may take to create pods again before the next wave; some never do."""
PLACED_SECONDS: Final = 5.0
"""Seconds that the new pods may take to be placed before the rest is dropped."""

SearchResult = tuple[Advice, tuple[Move, ...]]
"""The advice, and the moves to make first."""
RunSearch = Callable[[Callable[[], SearchResult]], Awaitable[SearchResult]]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class PodMover(PodReader, Protocol):
    """The subset of `kube.KubeClient` that is used here."""

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod if it still has this UID."""


class DroppedError(Exception):
    """The remaining moves are dropped; the text is the reason, and names no pod."""


class DisplacedError(DroppedError):
    """A pod of ours with higher priority takes the place, so the pod may be helped again at once."""


@dataclass(slots=True)
class _Help:
    """What has been done for one pod."""

    uid: str
    node: str = ""
    """Where room is made; empty until something has been reserved."""
    evicted: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wave:
    """Pods that were evicted together, and how their controllers stood before."""

    uids: frozenset[str]
    replicas: Mapping[str, int]
    """UID of a controller -> number of its pods."""
    waiting: Mapping[str, int]
    """UID of a controller -> number of its waiting pods."""


class Defragmenter:
    """Moves pods for one term."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        moves: Moves,
        preemptor: Preemptor,
        pods: PodMover,
        reporter: Reporter,
        policies: Callable[[], Mapping[str, Policy]],
        leads: Callable[[], bool],
        most: int,
        after: float,
        run_search: RunSearch = asyncio.to_thread,
    ) -> None:
        """Create a defragmenter that moves `most` pods at once for pods that have waited `after` seconds.

        `run_search` runs a search without holding up the loop.
        """
        self._run_search = run_search
        self._cluster, self._moves, self._preemptor, self._pods = cluster, moves, preemptor, pods
        self._reporter, self._policies, self._leads = reporter, policies, leads
        self._most, self._after = most, after
        self._retry_at: dict[object, float] = {}
        """Class of waiting pods that could not be helped -> when to search again."""
        self._leaving: frozenset[str] = frozenset()
        """UIDs of pods that were evicted, and were not gone yet."""

    async def run(self) -> None:
        """Help pods until cancelled; return at once if defragmentation is disabled."""
        tenants = self._cluster.tenants
        while tenants is not None and self._most:
            await asyncio.sleep(PERIOD)
            if self._leads() and self._allowed() and (pod := self._next()) is not None:
                await self._help(pod, tenants)

    def _allowed(self) -> int:
        """Return how many pods may be evicted now."""
        return self._most - sum(map(self._is_leaving, self._leaving))

    def _is_leaving(self, uid: str) -> bool:
        """Return whether an evicted pod will leave. A pod whose eviction was refused, or that is overdue, stays."""
        charge = self._cluster.fleet.charges.get(uid)
        return charge is not None and leaves_soon(self._cluster.fleet, charge)

    # --- which pod ----------------------------------------------------------------------------------------------

    def _next(self) -> PendingPod | None:
        """Return the next pod to help: a pod that another program nominated, or else the first waiting pod."""
        for uid in self._moves.requested:
            if (pod := self._cluster.pending.get(uid)) is not None and self._moves.kept_for(pod) is not None:
                return pod
            self._moves.end(uid)
        now = self._cluster.clock()
        self._retry_at = {key: at for key, at in self._retry_at.items() if at > now}
        due = [
            pod
            for pod in self._cluster.pending.values()
            if 0 < self._after <= now - pod.queued_at
            and pod.request.devices
            and pod.gang is None
            and not pod.error
            and not pod.nominated_node
            and pod.class_key not in self._retry_at
            and not self._preemptor.progress.backs_off(pod)
            and self._cluster.queue.parked_failure(pod) is not None
        ]
        # In the order of the queue.
        return min(due, key=lambda pod: (-pod.priority, -pod.weight, pod.created, pod.arrived, pod.uid), default=None)

    # --- helping it ---------------------------------------------------------------------------------------------

    async def _help(self, pod: PendingPod, tenants: Tenants) -> None:
        """Evict wave after wave until the pod fits, or can no longer be made to fit, or must not."""
        work, why, is_displaced = _Help(uid=pod.uid, node=pod.nominated_node), "", False
        try:
            while (wave := await self._next_wave(work, tenants)) is not None:
                await self._settle(wave, tenants)
        except DroppedError as error:
            why = str(error)
            is_displaced = isinstance(error, DisplacedError) or self._preemptor.progress.gave_way(pod.uid)
        if not work.node:
            self._retry_at[pod.class_key] = self._cluster.clock() + AGAIN
            log.debug("no pods to move", pod=pod.key, why=why or "it fits once terminating pods are gone")
            return
        if why and self._waits(work.uid):
            if not is_displaced:
                # The class of the pod without its nomination.
                *shared, _ = pod.class_key
                self._retry_at[*shared, ""] = self._cluster.clock() + AGAIN
            log.warning("moves dropped", pod=pod.key, node=work.node, moved=work.evicted, why=why)
            counters.DEFRAGMENTATIONS.labels("dropped").inc()
            self._reporter.moves_dropped(pod, work.node, why)
            self._moves.end(work.uid)
            self._cluster.waker.put(self._preemptor.withdraw_nomination(self._cluster.pending[work.uid]))
            return
        log.info("room made", pod=pod.key, node=work.node, moved=work.evicted)
        counters.DEFRAGMENTATIONS.labels("completed").inc()
        # The rest is left to the nomination: the pod fits, or does once terminating pods are gone.
        self._moves.end(work.uid)
        if self._waits(work.uid):
            self._cluster.queue.wake_class(self._cluster.pending[work.uid].class_key)
            self._cluster.waker.put(self._cluster.pending[work.uid])

    def _waits(self, uid: str) -> bool:
        return uid in self._cluster.pending and uid not in self._cluster.fleet.charges

    async def _next_wave(self, work: _Help, tenants: Tenants) -> _Wave | None:
        """Evict the next pods; return None if the pod needs no more moves, or needs no room any more."""
        uid, fleet, reporter = work.uid, self._cluster.fleet, self._reporter
        for _ in range(SEARCHES):
            if not self._waits(uid) or not self._leads():
                return None
            pod = self._cluster.pending[uid]
            if pod.nominated_node != work.node:
                raise DisplacedError(f"a pod of higher priority needs node {work.node}")
            advice, moves = await self._search(pod, work, tenants)
            if isinstance(advice.result, Failure):
                where = f"on node {work.node} " if work.node else ""
                reason = advice.result.message
                raise DroppedError(f"no pods that may be moved make enough room {where}now: {reason}")
            if not advice.moves:
                # Pods may be leaving the reserved node, of whatever priority.
                await self._until(
                    lambda: (
                        not self._waits(uid)
                        or not any(leaves_soon(fleet, charge) for charge in fleet.on_node(work.node))
                    ),
                    GONE_SECONDS,
                )
                return None
            if work.evicted + len(advice.moves) > MAX_MOVES:
                raise DroppedError(f"more than {MAX_MOVES} pods would have to be moved")
            if not moves:
                raise DroppedError(f"{len(advice.moves)} pods would have to be moved at once; allowed are {self._most}")
            if not self._may_still(pod, moves, tenants):
                continue
            # What the pod will use is reserved before anything is evicted.
            node, nominee, left = advice.result.node, advice.result.charge, len(advice.moves)
            self._moves.keep(nominee, f"node {node} is reserved; {left} pod(s) have yet to be moved to make room.")
            if not work.evicted and not work.refused:
                log.info("making room", pod=pod.key, node=node, moves=[move.charge.pod for move in advice.moves])
                reporter.making_room(pod, node, [move.charge for move in advice.moves])
            work.node = node
            self._cluster.waker.put(self._preemptor.reserve(pod, nominee))
            # Without the nomination the next leader would not know for which pod room was made.
            if not await self._until(
                lambda: reporter.is_nomination_written(uid) or not self._waits(uid), WRITTEN_SECONDS
            ):
                raise DroppedError("the reservation could not be written")
            if self._waits(uid) and self._may_still(self._cluster.pending[uid], moves, tenants):
                return await self._evict_all(work, moves, tenants)
        raise DroppedError("the cluster changes too fast to find pods to move")

    async def _search(self, pod: PendingPod, work: _Help, tenants: Tenants) -> SearchResult:
        """Compute the advice and its first moves in a thread, on a copy of the state: it may take half a second."""
        fleet, budgets, policies = self._cluster.fleet.copy(), self._cluster.budgets.copy(), self._policies()
        search = functools.partial(_search, fleet, pod, tenants, policies, budgets)
        return await self._run_search(functools.partial(search, node=work.node, most=self._allowed()))

    def _may_still(self, pod: PendingPod, moves: Iterable[Move], tenants: Tenants) -> bool:
        """Return whether a search's result still holds, as far as a check of each pod shows."""
        fleet, current = self._cluster.fleet, self._cluster.pending.get(pod.uid)
        if current is None or current.nominated_node != pod.nominated_node or pod.uid in fleet.charges:
            return False
        return all(
            (charge := fleet.charges.get(move.charge.uid)) is not None
            and (charge.node, charge.grants) == (move.charge.node, move.charge.grants)
            and not fleet.is_leaving(charge)
            and (tenant := tenants.get(charge.uid)) is not None
            and not tenant.refuses
            for move in moves
        )

    # --- evicting -----------------------------------------------------------------------------------------------

    async def _evict_all(self, work: _Help, moves: tuple[Move, ...], tenants: Tenants) -> _Wave:
        """Evict the pods of one wave concurrently."""
        pod, uids = self._cluster.pending[work.uid], frozenset(move.charge.uid for move in moves)
        controllers = {tenants.controller(uid) for uid in uids}
        wave = _Wave(
            uids=uids,
            replicas={controller: tenants.replicas(controller) for controller in controllers},
            waiting=self._waiting(controllers, tenants),
        )
        for uid in uids:
            self._cluster.fleet.mark_leaving(uid)
        refusals = await asyncio.gather(*(self._evict(move, pod) for move in moves))
        self._leaving = frozenset(filter(self._is_leaving, self._leaving | uids))
        work.evicted += len(moves) - sum(map(bool, refusals))
        if (nominee := self._cluster.fleet.nominees.get(work.uid)) is not None and work.evicted:
            # What was moved in vain counts like what was preempted in vain.
            self._preemptor.progress.began(pod, [nominee], work.evicted)
        if any(refusals):
            work.refused += 1
            if work.refused >= REFUSALS:
                raise DroppedError(next(filter(None, refusals)))
            await asyncio.sleep(REFUSED_SECONDS)
        return wave

    async def _evict(self, move: Move, pod: PendingPod) -> str:
        """Evict a pod; return why it was refused, empty if the pod is evicted, gone or was replaced."""
        charge = move.charge
        namespace, name = keys.split(charge.pod)
        for pause in (*PAUSES, None):
            if not self._leads():
                return "this operator no longer leads"
            try:
                eviction = self._pods.evict_pod(namespace, name, charge.uid)
                if not await unless_gone(eviction, self._pods, namespace, name, charge.uid):
                    return ""
            except CallError as error:
                if error.is_refused or pause is None:
                    log.warning("pod not evicted", pod=charge.pod, error=str(error))
                    self._cluster.fleet.unmark_leaving(charge.uid)
                    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                        return "a PodDisruptionBudget does not allow an eviction now"
                    # Without the names in the API server's message.
                    return f"the API server refused an eviction with status {error.status}"
                await asyncio.sleep(pause)
            else:
                break
        counters.MOVED.inc()
        log.info("pod evicted to make room", pod=charge.pod, node=charge.node, for_pod=pod.key)
        self._reporter.moved(charge, pod)
        return ""

    async def _settle(self, wave: _Wave, tenants: Tenants) -> None:
        """Wait until evicted pods are gone, created again and placed.

        Raises:
            DroppedError: they have not ended in time, or one that was created again fits nowhere.
        """
        if not await self._until(lambda: not any(map(self._is_leaving, wave.uids)), GONE_SECONDS):
            raise DroppedError(f"an evicted pod has not ended within {GONE_SECONDS:g} s")
        await self._until(
            lambda: all(tenants.replicas(controller) >= number for controller, number in wave.replicas.items()),
            REPLACED_SECONDS,
        )

        def are_placed() -> bool:
            """Return whether no more pods wait than before."""
            waiting = self._waiting(wave.waiting, tenants)
            return all(waiting[controller] <= number for controller, number in wave.waiting.items())

        if not await self._until(are_placed, PLACED_SECONDS):
            raise DroppedError("a pod that was moved fits nowhere now")

    def _waiting(self, controllers: Iterable[str], tenants: Tenants) -> dict[str, int]:
        """Count the waiting pods of controllers."""
        counts = dict.fromkeys(controllers, 0)
        for uid in self._cluster.pending:
            if (controller := tenants.controller(uid)) in counts and uid not in self._cluster.fleet.charges:
                counts[controller] += 1
        return counts

    async def _until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until a condition holds, for `seconds` at most; return whether it does."""
        end = self._cluster.clock() + seconds
        while not holds():
            if self._cluster.clock() >= end:
                return False
            await asyncio.sleep(POLL)
        return True


def _search(
    fleet: Fleet,
    pod: PendingPod,
    tenants: Mapping[str, Tenant],
    policies: Mapping[str, Policy],
    budgets: Budgets,
    *,
    node: str,
    most: int,
) -> SearchResult:
    try:
        advice = advise(fleet, pod, tenants, policies, budgets, node=node)
        return advice, first_moves(fleet, advice, tenants, policies, most)
    except PluginFailedError as error:
        return Advice(result=plugin_failure(error)), ()
