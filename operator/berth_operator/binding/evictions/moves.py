"""The capacity that nodes keep for a pod while other pods are moved for it.

A nomination holds only if terminating pods leave enough capacity. While some of the pods to move still run, their
capacity is kept here. So no other pod is placed into capacity that the first of them have left.
"""

from dataclasses import dataclass

from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import nominated_fit
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCapacity:
    """What a node keeps for a pod."""

    nominee: Charge
    note: str
    """What is being done, for the message of the pod's condition."""


class Moves:
    """Kept capacity, by UID of the pod for which others are moved; empty if defragmentation is disabled."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[str, KeptCapacity] = {}
        self._requested: dict[str, None] = {}
        """UIDs of pods that were nominated by another program or the last leader, in that order."""

    @property
    def requested(self) -> list[str]:
        """Return the pods that need room on their nominated node, the first request first."""
        return list(self._requested)

    def kept_for(self, pod: PendingPod) -> KeptCapacity | None:
        """Return the capacity kept for a pod on its nominated node; None if no pods are moved for it."""
        kept = self._kept.get(pod.uid)
        return kept if kept is not None and kept.nominee.node == pod.nominated_node else None

    def keep(self, nominee: Charge, note: str) -> None:
        """Keep a node's capacity for a pod."""
        self._kept[nominee.uid] = KeptCapacity(nominee=nominee, note=note)

    def request(self, pod: PendingPod, policy: Policy) -> KeptCapacity | None:
        """Keep the capacity of a pod's nominated node, if moving pods may free it; None otherwise.

        When it is this pod's turn, Berth decides which pods to move, and whether they fit elsewhere.
        """
        tenants, fleet = self._cluster.tenants, self._cluster.fleet
        if tenants is None or pod.gang is not None:
            return None
        movable = {
            charge.uid
            for charge in fleet.on_node(pod.nominated_node)
            if (tenant := tenants.get(charge.uid)) is not None and not tenant.refuses
        }
        nominee = nominated_fit(fleet, pod, policy, pod.nominated_node, movable)
        if nominee is None:
            return None
        self.keep(nominee, f"node {pod.nominated_node} is reserved; pods will be moved.")
        self._requested[pod.uid] = None
        return self._kept[pod.uid]

    def end(self, uid: str) -> None:
        """Stop keeping capacity for a pod."""
        self._kept.pop(uid, None)
        self._requested.pop(uid, None)
