"""Pods that wait for a node, as shown by the API server."""

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from berth_api.request import Kinds
from berth_api.values.caching import sized_cache
from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.lost_places import preemptor_of_pod
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.request import Membership, PendingPod, PodRequest
from berth_operator.state.cache.gangs import Gangs
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.nominator import Nominator
from berth_operator.state.cache.promises import PlacePromises
from berth_operator.state.cache.waker import Waker
from berth_operator.state.objects import pods
from berth_operator.state.objects.genius_priority import PriorityLimits

Object = Mapping[str, Any]

CLAIMS_SECONDS: Final = 30.0
"""Seconds that the resource claim controller has to create claims before a pod reports that they do not exist."""

AT_ONCE: Final = 256
"""Waiting pods of a controller that are put again at once."""
MAX_NAMING: Final = 2**23
"""Bytes of the requests that name a controller whose pods kubelets have rejected."""


class PendingPods:
    """Puts waiting pods into the queue, alone or with their gang."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        kinds: Kinds,
        priorities: PriorityLimits,
        by_uid: dict[str, PendingPod],
        queue: Queue[PendingPod | Gang],
        gangs: Gangs,
        nominator: Nominator,
        promises: PlacePromises,
        waker: Waker,
        listener: Listener,
        clock: Callable[[], float],
        accepts_nominations: bool = False,
    ) -> None:
        """Create the collection; it keeps `by_uid` up to date with all pods that have no node on the API server.

        `accepts_nominations`: whether other programs may nominate a node for a pod, to request that pods are moved.
        """
        self._accepts_nominations = accepts_nominations
        self._shown: dict[str, str] = {}
        """UID -> the nominated node that the API server last showed, if any."""
        self._fleet, self._kinds, self._by_uid, self._queue = fleet, kinds, by_uid, queue
        self._gangs, self._nominator, self._waker, self._listener = gangs, nominator, waker, listener
        self._promises, self._clock, self._priorities = promises, clock, priorities
        self._arrivals = itertools.count()
        self._of_controllers: dict[str, dict[str, None]] = {}
        """Controller (`lost_places.preemptor_of_pod`) -> UIDs of its waiting pods, the first that came first."""
        self._gated: dict[str, PendingPod] = {}
        self._by_controllers: dict[str, Membership] = {}
        """UID -> the gang that the controller of a waiting pod defines, even if the namespace does not allow it."""

    def get(self, uid: str) -> PendingPod | None:
        """Return a waiting pod; None if there is none with this UID."""
        return self._by_uid.get(uid)

    @property
    def gated(self) -> Collection[PendingPod]:
        """Return the pods that do not wait yet because of scheduling gates. Their last message names the gates."""
        return self._gated.values()

    def put(self, raw: Object) -> None:
        """Add or update a pod without a node. A gated or terminating pod does not wait."""
        uid = raw["metadata"]["uid"]
        if pods.is_gated(raw):
            self.remove(uid)
            if pods.has_gates(raw):
                gated = pods.pending(raw, self._kinds, self._priorities)
                self._gated[uid] = replace(gated, last_message=pods.gates_text(raw))
                if gated.gang is not None:
                    self._gangs.gate(uid, gated.gang)
            return
        self._ungate(uid)
        pod = self._read(raw)
        if pod.gang is None or not pod.gang.controller:
            self._by_controllers.pop(uid, None)
            self._put(pod)
        else:
            self._put_by_controller(pod, pod.gang)

    def gangs_changed(self) -> None:
        """Put waiting pods again that have become members of their controllers' gangs, or are members no more."""
        for uid, gang in tuple(self._by_controllers.items()):
            if ((pod := self._by_uid[uid]).gang is not None) != self._gangs.applies(gang):
                self._put_by_controller(pod, gang)

    def put_rejected(self, controller: str) -> bool:
        """Put waiting pods of a controller again, now that it is in `Fleet.rejecting`: their requests name it.

        Return whether there are more than `AT_ONCE`; then call it again later.
        """
        uids = self._of_controllers.get(controller, ()) if controller in self._fleet.rejecting else ()
        unnamed = [uid for uid in uids if self._by_uid[uid].request.rejected_controller != controller]
        for uid in unnamed[:AT_ONCE]:
            self._put(self._by_uid[uid])
        return len(unnamed) > AT_ONCE

    def wake_first(self, controller: str) -> None:
        """Wake the waiting pod of a controller that came first, with its gang and its class."""
        if (uid := next(iter(self._of_controllers.get(controller, ())), None)) is not None:
            pod = self._by_uid[uid]
            unit = pod if pod.gang is None else self._gangs.unit(pod.gang)
            if unit is not None:
                self._queue.wake_class(unit.class_key)

    def _put_by_controller(self, pod: PendingPod, gang: Membership) -> None:
        self._put(replace(pod, gang=gang if self._gangs.applies(gang) else None))
        self._by_controllers[pod.uid] = gang

    def _put(self, pod: PendingPod) -> None:
        uid = pod.uid
        known = self._by_uid.get(uid)
        is_moved = known is not None and known.gang != pod.gang
        if is_moved:
            self.remove(uid)
        elif known is not None and known.owner != pod.owner:
            self._leave_controller(known)
        is_charged = uid in self._fleet.charges
        if known is None and not is_charged:
            self._fleet.pod_mix.see(pod.request)
        controller = preemptor_of_pod(pod.owner, pod.key)
        if pod.owner.uid:
            self._of_controllers.setdefault(controller, {})[uid] = None
        if pod.request.rejected_controller != (named := controller if controller in self._fleet.rejecting else ""):
            pod = replace(pod, request=_naming(pod.request, named))
        # The members of a gang take their places once it can be decided (`Gangs.gather`).
        if (known is None or is_moved) and pod.workload and pod.gang is None:
            pod = self._promises.hand_over(pod)
        self._by_uid[uid] = pod
        if pod.gang is not None:
            self._gangs.wait(pod, pod.gang)
            return
        if is_charged:
            return
        # For a while it is not decided before the claims that are made for it exist.
        until, claims = pod.queued_at + CLAIMS_SECONDS, self._fleet.claims
        is_early = claims.own and any(use.owner and use.claim not in claims.claims for use in pod.request.claims)
        if is_early and self._clock() < until:
            self._queue.put_early(pod, until)
            self._listener.work_ready()
        else:
            self._waker.put(pod)

    def _read(self, raw: Object) -> PendingPod:
        """Read a pod, with its known age in the queue, our nomination, and its back-off."""
        pod = pods.pending(raw, self._kinds, self._priorities)
        known, shown_before = self._by_uid.get(pod.uid), self._shown.pop(pod.uid, "")
        if pod.nominated_node:
            self._shown[pod.uid] = pod.nominated_node
        if known is None:
            return replace(pod, arrived=next(self._arrivals), queued_at=self._clock())
        # Whether another program has nominated a node for a pod for which we have nominated none.
        is_request = (
            self._accepts_nominations
            and pod.nominated_node not in ("", shown_before)
            and not self._nominator.has_nominated(known.uid, pod.nominated_node)
            and not known.nominated_node
            and known.gang is None
        )
        return replace(
            pod,
            arrived=known.arrived,
            queued_at=known.queued_at,
            # Our own nomination counts: the watch may be behind.
            nominated_node=pod.nominated_node if is_request else known.nominated_node,
            reserved_node="" if is_request else known.reserved_node,
            backoff=known.backoff,
        )

    def remove(self, uid: str) -> None:
        """Remove a pod that no longer waits: it is bound, or deleted."""
        self._ungate(uid)
        if (pod := self._by_uid.pop(uid, None)) is not None:
            self._queue.remove(uid)
            self._by_controllers.pop(uid, None)
            self._listener.pod_settled(uid)
            self._shown.pop(uid, None)
            self._nominator.forget(uid)
            self._leave_controller(pod)
            if pod.gang is not None:
                self._gangs.no_longer_waits(uid, pod.gang)

    def _leave_controller(self, pod: PendingPod) -> None:
        controller = preemptor_of_pod(pod.owner, pod.key)
        if (uids := self._of_controllers.get(controller)) is not None:
            uids.pop(pod.uid, None)
            if not uids:
                del self._of_controllers[controller]

    def _ungate(self, uid: str) -> None:
        gated = self._gated.pop(uid, None)
        if gated is not None and gated.gang is not None:
            self._gangs.ungate(uid, gated.gang)


@sized_cache(MAX_NAMING)
def _naming(request: PodRequest, controller: str) -> PodRequest:
    """Return a request that names a controller whose pods kubelets have rejected; equal pods share one request."""
    return replace(request, rejected_controller=controller)
