"""Pods that have a node, by Berth's decision or as shown by the API server.

A pod has these states, as in kube-scheduler's cache. It is charged to its node in every state but the first:

                     assume              finish_binding
      no node ----------------> assumed ----------------> bound
       ^ |  ^                     | |                      | |
       | |  |      forget,        | |                      | |
       | |  +-- remove_bound -----+-|----------------------+ |
       | |                          |                        |
       | |                          | put_bound              | put_bound
       | |        put_bound         v                        |
       | +---------------------> confirmed <-----------------+
       |                           |  | ^
       +------- remove_bound ------+  | | put_bound
                                      +-+

The answer to a Binding and the watch race each other. So an event may arrive in a state without an arrow for it. In
this state, finish_binding and forget change nothing. In particular, a pod that the watch has shown as bound stays
charged, whatever the answer to its Binding was.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from berth_api.request import Kinds
from berth_client.objects import READING_ERRORS
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.queue import MAX_BACKOFF
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.mounts import NO_POD_VOLUMES
from berth_operator.core.values.pod_claims import NO_POD_CLAIMS
from berth_operator.state.cache import charges
from berth_operator.state.cache.allocation_tracker import AllocationTracker
from berth_operator.state.cache.claim_tracker import ClaimTracker
from berth_operator.state.cache.gangs import Gangs, gangs_of
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.pending_pods import PendingPods
from berth_operator.state.cache.rejected_pods import RejectedPods
from berth_operator.state.cache.unknown_allocations import UnknownAllocations
from berth_operator.state.cache.unreadable import UnreadableObjects
from berth_operator.state.cache.views import StatusKind
from berth_operator.state.cache.waker import Waker
from berth_operator.state.objects import pods

Object = Mapping[str, Any]


class Placements:
    """Charges pods to their nodes."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        kinds: Kinds,
        trusted_schedulers: Collection[str],
        pending: PendingPods,
        gangs: Gangs,
        allocations: AllocationTracker,
        claim_tracker: ClaimTracker,
        rejected: RejectedPods,
        unknown: UnknownAllocations,
        waker: Waker,
        listener: Listener,
        clock: Callable[[], float],
        is_counted: Callable[[str], bool] = lambda _scheduler: True,
    ) -> None:
        """Create an empty collection; `is_counted`: whether the pods of a scheduler name belong to the mix of pods."""
        self._is_counted = is_counted
        self._fleet, self._kinds, self._trusted = fleet, kinds, trusted_schedulers
        self._pending, self._gangs, self._allocations, self._unknown = pending, gangs, allocations, unknown
        self._claim_tracker, self._waker, self._listener, self._clock = claim_tracker, waker, listener, clock
        self._rejected = rejected
        self._unreadable = UnreadableObjects("bound pods")
        self._assumed: dict[str, float | None] = {}
        """UID of a pod that is assumed or bound -> when its Binding succeeded; None until then."""
        self.on_assume: Callable[[Placement], None] = lambda _placement: None
        """Called with each placement that is assumed."""

    # --- decisions --------------------------------------------------------------------------------------------

    def assume(self, placement: Placement) -> None:
        """Charge a placement at once, so that the next decision sees it."""
        pod, charge = placement.pod, placement.charge
        self._assumed[pod.uid] = None
        self.on_assume(placement)
        self._rejected.assumed(placement)
        nominee = self._fleet.withdraw(pod.uid)
        self._fleet.charge(charge)
        self._claim_tracker.pod_changed(charge)
        if pod.gang is not None:
            self._gangs.assume(charge, pod.gang)
        if nominee is not None and not charges.is_same(nominee, charge):
            # Even on the nominated node it may take other cards than were kept for it.
            self._waker.capacity_freed(nominee)
        self._waker.pod_assigned(charge)

    def assume_all(self, placements: Sequence[Placement]) -> None:
        """Charge the placements of one gang."""
        for placement in placements:
            self.assume(placement)
        for gang in gangs_of(placements):
            self._gangs.gather(gang)

    def finish_binding(self, uid: str) -> None:
        """Record that the Binding of an assumed pod succeeded."""
        if uid not in self._assumed:
            return
        self._assumed[uid] = self._clock()
        charge = self._fleet.charges[uid]
        self._mark_device(charge)
        if charge.gang is not None:
            self._gangs.bind(charge, charge.gang)
        self._waker.pod_bound()

    def forget(self, uid: str, longest: float = MAX_BACKOFF) -> None:
        """Release an assumed pod whose Binding failed, and let it back off, at most for the `longest` seconds."""
        if uid not in self._assumed:
            return
        pod = self._pending.get(uid)
        if pod is not None and pod.gang is not None:
            self._gangs.back_off(pod.gang, longest)
        self.remove_bound(uid)
        self._rejected.forgotten(uid)
        if pod is not None and pod.gang is None:
            self._waker.back_off(pod, self._clock(), longest)

    # --- what the API server shows ----------------------------------------------------------------------------

    def put_bound(self, raw: Object) -> None:
        """Add or update a pod that has a node, from any scheduler."""
        uid, fleet = raw["metadata"]["uid"], self._fleet
        fleet.claims.departed.discard(uid)
        charge = self._read(raw)
        if charge.gang is not None and not self._gangs.is_ours(charge.gang):
            charge = replace(charge, gang=None)
        charge, known = self._allocations.track(charge), fleet.charges.get(uid)
        if known is not None and known.gang is not None and known.gang != charge.gang:
            self._gangs.release(uid, known.gang)
        if charge.gang is not None:
            # Before it is removed from the waiting pods, so that its gang never looks smaller in between.
            self._gangs.put_bound(raw, charge, charge.gang)
        if charge.grants and known is None and self._pending.get(uid) is None and self._is_counted(charge.scheduler):
            # It was not counted for the typical workload while it waited.
            fleet.pod_mix.see(pods.request_of(raw, self._kinds))
        self._pending.remove(uid)
        if uid in self._assumed:
            # The watch may be faster than the answer to the Binding, which then has no effect.
            del self._assumed[uid]
            self._mark_device(charge)
            self._waker.pod_bound()
        if known is None or not charges.is_same(known, charge):
            self._charge(known, charge)
        elif known.volumes or known.claims:
            # The API server now shows the volumes, and the devices of claims, that the decision chose.
            fleet.charge(charge)
        elif (known.started, known.ends, known.owner) != (charge.started, charge.ends, charge.owner):
            fleet.refresh(charge)

    def remove_bound(self, uid: str) -> None:
        """Remove a pod that has left its node: it was deleted, succeeded or failed."""
        self._assumed.pop(uid, None)
        self._unknown.discard(uid)
        self._unreadable.discard(uid)
        self._fleet.unmark_leaving(uid)
        if self._pending.get(uid) is None:
            self._claim_tracker.pod_left(uid)
        charge = self._fleet.charges.get(uid)
        if charge is not None:
            self._allocations.release(charge)
            self._claim_tracker.pod_changed(charge)
            if charge.gang is not None:
                self._gangs.release(uid, charge.gang)
            self._mark_device(charge)
            self._waker.capacity_freed(charge)

    def _read(self, raw: Object) -> Charge:
        """Return the promised charge of a pod.

        A pod that cannot be read runs nevertheless. It keeps what it is charged on its node, so that nothing is
        allocated twice. Without a known charge there, it may hold any device.
        """
        uid, fleet = raw["metadata"]["uid"], self._fleet
        try:
            charge = pods.charge(raw, self._kinds, self._trusted, fleet.resolve_grants, fleet.kubernetes)
        except READING_ERRORS as error:
            self._unreadable.put(uid, raw, error)
            known = fleet.charges.get(uid)
            if known is None or known.node != raw["spec"]["nodeName"]:
                return pods.unreadable(raw, fleet.cards)
            # Like every charge that is read, without what the decision chose: the API server shows that now.
            return replace(self._allocations.promised_of(known), volumes=NO_POD_VOLUMES, claims=NO_POD_CLAIMS)
        self._unreadable.discard(uid)
        return charge

    def _charge(self, known: Charge | None, charge: Charge) -> None:
        """Charge a pod, in place of its known charge."""
        self._unknown.discard(charge.uid)
        self._fleet.charge(charge)
        self._mark_device(charge)
        if known is not None:
            self._mark_device(known)
            change = charges.change(known, charge)
            self._waker.happened(ClusterEvent(change=change, node=known.node, before=known, after=charge))
        self._allocations.pod_charged(charge)
        self._claim_tracker.pod_changed(charge)
        self._waker.pod_assigned(charge)
        if charge.unknown or charge.lacks_cards:
            self._unknown.add(charge.uid)

    def _mark_device(self, charge: Charge) -> None:
        """Mark the Device on which a pod uses something; most pods of a cluster use no device."""
        if charge.grants or charge.unknown or charge.lacks_cards or charge.plugin_requests:
            self._listener.status_changed(StatusKind.DEVICE, charge.node)

    # --- queries ----------------------------------------------------------------------------------------------

    def is_assumed(self, uid: str) -> bool:
        """Return whether a pod is assumed or bound, and not yet confirmed."""
        return uid in self._assumed

    @property
    def assumed(self) -> int:
        """Return the number of pods that are assumed or bound, and not yet confirmed."""
        return len(self._assumed)

    def in_flight(self) -> Collection[str]:
        """Return the UIDs of assumed pods, whose Bindings are in flight."""
        return [uid for uid, bound_at in self._assumed.items() if bound_at is None]

    def unseen(self, seconds: float) -> list[Charge]:
        """Return the charges of pods that were bound at least `seconds` ago and are not confirmed."""
        before = self._clock() - seconds
        return [
            self._fleet.charges[uid]
            for uid, bound_at in self._assumed.items()
            if bound_at is not None and bound_at <= before
        ]

    def may_be_bound_since(self, uid: str, requested_at: float) -> bool:
        """Return whether a pod may have been bound after a list was requested, so that the list need not show it."""
        return uid in self._assumed and ((at := self._assumed[uid]) is None or at >= requested_at)
