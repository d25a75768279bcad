"""Pods for which a node's capacity is kept until other pods have left the node.

Nominated pods wait for pods that are being evicted. Pods with a node reservation wait for pods that end by themselves.
In the Fleet, both are nominees.
"""

from dataclasses import replace

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.gang_tracker import GangTracker
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.preemption_backoff import PreemptionBackoff
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.state.cache.listener import Listener
from berth_operator.state.cache.waker import Waker


class Nominator:
    """Nominates nodes for pending pods, in the Fleet and in the pending pods."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        pending: dict[str, PendingPod],
        gang_tracker: GangTracker,
        waker: Waker,
        listener: Listener,
    ) -> None:
        """Create a nominator.

        `pending` has all waiting pods by UID. A pod whose nomination changes is replaced there.
        """
        self._fleet, self._pending, self._gang_tracker = fleet, pending, gang_tracker
        self._waker, self._listener = waker, listener
        self._unseen: dict[str, set[str]] = {}
        """UID of a pending pod -> nodes that we have nominated for it and that the watch has not shown yet."""

    def nominate(self, pod: PendingPod, charge: Charge) -> PendingPod:
        """Keep a node's capacity for a pod; return the pod with this nomination."""
        self._fleet.nominate(charge)
        if pod.nominated_node != charge.node and pod.uid in self._pending:
            self._unseen.setdefault(pod.uid, set()).add(charge.node)
        return self._replaced(pod, nominated_node=charge.node)

    def withdraw(self, pod: PendingPod) -> PendingPod:
        """Withdraw a pod's nomination; return the pod without it."""
        self.release(pod.uid)
        return self._replaced(pod)

    def reserve(self, pod: PendingPod, charge: Charge) -> PendingPod:
        """Reserve a node's capacity for a pod; return the pod with this node reservation."""
        before = self._fleet.withdraw(pod.uid)
        self._fleet.nominate(charge)
        if before is not None and (before.node, before.grants) != (charge.node, charge.grants):
            self._waker.capacity_freed(before)
        return self._replaced(pod, reserved_node=charge.node)

    def end_reservation(self, pod: PendingPod) -> PendingPod:
        """End a pod's node reservation; return the pod without it."""
        self.release(pod.uid)
        return self._replaced(pod)

    def set_backoff(self, pod: PendingPod, backoff: PreemptionBackoff) -> PendingPod:
        """Set where no pods are evicted for a pod; return the pod with it, and with its nomination."""
        pod = replace(pod, backoff=backoff)
        return self._replaced(pod, nominated_node=pod.nominated_node, reserved_node=pod.reserved_node)

    def release(self, uid: str) -> None:
        """Release the capacity that is kept for a pod, which no longer waits."""
        if (nominee := self._fleet.withdraw(uid)) is not None:
            self._waker.capacity_freed(nominee)

    def has_nominated(self, uid: str, node: str) -> bool:
        """Return whether a nomination that the watch shows is one of ours, which it has not shown yet."""
        unseen = self._unseen.get(uid, set())
        is_ours = node in unseen
        unseen.discard(node)
        return is_ours

    def forget(self, uid: str) -> None:
        """Forget a pod that no longer waits."""
        self._unseen.pop(uid, None)
        self.release(uid)

    def of_gang(self, gang: Membership) -> list[Charge]:
        """Return the nominees among a gang's members, and among the pods that its controller creates after them."""
        nominees = self._fleet.nominees.values()
        return [nominee for nominee in nominees if nominee.gang is not None and nominee.gang.key == gang.key]

    def withdraw_gang(self, gang: Membership) -> None:
        """Withdraw all nominations: capacity is kept for a whole gang, or not at all."""
        self.release_later(gang)
        for nominee in self.of_gang(gang):
            self._listener.nomination_withdrawn(self.withdraw(self._pending[nominee.uid]))

    def release_later(self, gang: Membership) -> None:
        """Release the capacity that is kept for pods that a controller creates after the members of a gang."""
        for nominee in self.of_gang(gang) if gang.controller else ():
            if nominee.uid not in self._pending:
                self.release(nominee.uid)

    def later(self) -> dict[str, list[Charge]]:
        """Return the key of a gang -> the nominees that its controller creates after its members."""
        later: dict[str, list[Charge]] = {}
        for nominee in self._fleet.nominees.values():
            if nominee.gang is not None and nominee.gang.controller and nominee.uid not in self._pending:
                later.setdefault(nominee.gang.key, []).append(nominee)
        return later

    def _replaced(self, pod: PendingPod, *, nominated_node: str = "", reserved_node: str = "") -> PendingPod:
        pod = replace(pod, nominated_node=nominated_node, reserved_node=reserved_node)
        if pod.uid in self._pending:
            self._pending[pod.uid] = pod
            if pod.gang is not None:
                self._gang_tracker.wait(pod, pod.gang)
        return pod
