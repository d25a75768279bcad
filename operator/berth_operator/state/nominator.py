"""Pods for which a node's capacity is kept until other pods have left it."""

from dataclasses import replace

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.gang_tracker import GangTracker
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.state.listener import Listener
from berth_operator.state.waker import Waker


class Nominator:
    """Nominates nodes for pending pods, in the Fleet and in what is known of the pod."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        pending: dict[str, PendingPod],
        gang_tracker: GangTracker,
        waker: Waker,
        listener: Listener,
    ) -> None:
        """`pending` has all pods that wait, by UID; a pod that is nominated, or no longer is, is replaced there."""
        self._fleet, self._pending, self._gang_tracker = fleet, pending, gang_tracker
        self._waker, self._listener = waker, listener

    def nominate(self, pod: PendingPod, charge: Charge) -> PendingPod:
        """Keep a node's capacity for a pod; return the pod with this nomination."""
        self._fleet.nominate(charge)
        return self._replaced(pod, charge.node)

    def withdraw(self, pod: PendingPod) -> PendingPod:
        """Keep nothing for a pod any more; return the pod without a nomination."""
        self.release(pod.uid)
        return self._replaced(pod, "")

    def release(self, uid: str) -> None:
        """Keep nothing any more for a pod that no longer waits."""
        if (nominee := self._fleet.withdraw(uid)) is not None:
            self._waker.pod_left(nominee)

    def of_gang(self, gang: Membership) -> list[Charge]:
        """Return what is kept for the members of a gang."""
        nominees = self._fleet.nominees.values()
        return [nominee for nominee in nominees if nominee.gang is not None and nominee.gang.key == gang.key]

    def withdraw_gang(self, gang: Membership) -> None:
        """Keep nothing for a gang any more: either all that it needs is kept, or nothing."""
        for nominee in self.of_gang(gang):
            self._listener.nomination_withdrawn(self.withdraw(self._pending[nominee.uid]))

    def _replaced(self, pod: PendingPod, node: str) -> PendingPod:
        pod = replace(pod, nominated=node)
        if pod.uid in self._pending:
            self._pending[pod.uid] = pod
            if pod.gang is not None:
                self._gang_tracker.wait(pod, pod.gang)
        return pod
