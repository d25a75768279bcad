"""Wake the parked units that an event may help, judged on the Fleet after the event."""

import functools
from collections.abc import Sequence

from berth_operator.core.decision.gang import Gang
from berth_operator.core.decision.preemption import WithoutLowerPriority
from berth_operator.core.filters import Filter
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue.queue import NOT_CONCERNED, Parked, Queue
from berth_operator.core.queue.queueing_hints import EventHint
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.pod_claims import PodClaims
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change

Unit = PendingPod | Gang


def happened(fleet: Fleet, queue: Queue[Unit], event: ClusterEvent) -> None:
    """Wake the units that an event may help."""
    if not queue.awaits(event.change):
        return
    # Without the node's nominees: their kept capacity must not hide the event from them or from higher priorities.
    with fleet.without(tuple(fleet.nominees_on(event.node))):
        queue.wake(event.change, EventHint(fleet, event))


def pod_assigned(fleet: Fleet, queue: Queue[Unit], charge: Charge) -> None:
    """Wake the units that wait for an assigned pod, such as those with pod affinity."""
    happened(fleet, queue, ClusterEvent(change=Change.POD_ASSIGNED, node=charge.node, after=charge))


def capacity_freed(fleet: Fleet, queue: Queue[Unit], gone: Charge) -> bool:
    """Wake the units that may fit, or may preempt others, after a pod has left; return whether one may preempt."""
    change = Change.POD_DELETED | Change.CAPACITY_FREED
    # The volumes that its decision chose are free again.
    change = change | Change.VOLUME if gone.volumes else change
    happened(fleet, queue, ClusterEvent(change=change, node=gone.node, before=gone))
    if gone.claims.allocations:
        _claims_not_allocated(fleet, queue, gone.claims)
    row = fleet.rows.get(gone.node)
    # Of a node that is gone only kept places are known, and without these not even the name.
    if not queue.awaits(Change.EVICTABLE) or row is None or not fleet.present[row]:
        return False
    with fleet.without(tuple(fleet.nominees_on(gone.node))):
        without_lower_priority, work = WithoutLowerPriority(fleet, gone.node), fleet.claims.supply.work

        def hint(parked: Parked[Unit]) -> Sequence[Filter] | None:
            may_take = functools.partial(without_lower_priority.may_take, parked.unit, gone, parked.failure.filters)
            # What is not known yet may let it preempt others.
            return None if work.complete(may_take, instead=True) else NOT_CONCERNED

        return queue.wake(Change.EVICTABLE, hint)


def _claims_not_allocated(fleet: Fleet, queue: Queue[Unit], claims: PodClaims) -> None:
    """Wake the units that share a claim which a pod was to allocate, or that other nodes have its devices for."""
    shown = fleet.claims.claims
    for allocation in claims.allocations:
        key = str(allocation.claim)
        if key in shown and shown[key].allocation:
            continue  # it was written, and holds its devices until it is deallocated
        queue.wake_claiming(key)
        if fleet.claims.supply.is_wide(result.device.id for result in allocation.results):
            queue.wake(Change.CLAIM_DEVICES)
