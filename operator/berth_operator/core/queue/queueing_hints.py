"""Queueing hints decide which parked units an event may help, for a whole class at once.

A class is parked because some filter rejects each node. For every node, `Parked.rejected_by` has at least one of the
filters that reject it. So no node can begin to pass without an event that one of these filters waits for. There are
three cases of these events:

* The filter reads only the event's node (capacity, taints, ports, labels). Only this node can begin to pass, and all
  filters are run on it. If a filter still rejects it, this filter is added to `rejected_by`.
* The filter counts pods of other nodes (affinity, spread) or reads volumes in use. Its own `may_help` compares the
  event with the request of the class.
* Only the kind of the event is known. The class wakes. Waking a unit without need costs one decision. Not waking a unit
  that fits would starve it.
"""

from collections.abc import Sequence
from typing import Final

from berth_operator.core import filters
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.decision.preemption import may_free_devices
from berth_operator.core.filters import Filter
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.queue.queue import NOT_CONCERNED, Parked
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import NODE_CHANGES, Change

_NODE_LOCAL_CHANGES: Final = int(
    NODE_CHANGES | Change.CAPACITY_FREED | Change.VOLUME_LIMITS | Change.GPU_METRICS | Change.CLAIM_DEVICES
)
"""Changes after which, for filters that read one node, only the event's node can begin to pass."""
_HINTED: Final = _NODE_LOCAL_CHANGES | int(
    Change.POD_DELETED | Change.POD_ASSIGNED | Change.POD_LABELS | Change.NODE_REMOVED
)
"""Changes whose events carry enough for a hint."""
_FILTERS: Final = tuple((filter_, int(filter_.WAKES_ON), filters.hint_of(filter_)) for filter_ in filters.ORDER)
"""Each filter with the changes that it waits for, and its own hint if it has one."""

Unit = PendingPod | Gang


class EventHint:
    """The hint on one event, called for each class; it uses integers because `IntFlag` is ten times slower."""

    def __init__(self, fleet: Fleet, event: ClusterEvent) -> None:
        self._fleet, self._event, self._bits = fleet, event, int(event.change)
        self._waiting = [(filter_, awaited, hint) for filter_, awaited, hint in _FILTERS if awaited & self._bits]
        self._may_change_nomination = bool(event.change & (NODE_CHANGES | Change.NODE_REMOVED))

    def __call__(self, parked: Parked[Unit]) -> Sequence[Filter] | None:
        """Return None to wake a class, NOT_CONCERNED to leave it, or the filters that still reject the event's node."""
        bits = parked.bits & self._bits
        if not parked.failure.filters or bits & ~_HINTED or self._is_nominated_to_node(parked.unit):
            return None
        unknown = parked.other_bits & bits
        concerned = bool(unknown)
        for filter_, awaited, hint in self._waiting:
            if filter_.NAME not in parked.rejected_by and not awaited & unknown:
                continue  # it does not reject the class
            if hint is None or any(hint(self._fleet, request, self._event) for request in parked.requests):
                if hint is not None and not filter_.TRAITS.one_node:
                    return None  # it may pass other nodes than the event's
                concerned = True
        if not (concerned and bits & _NODE_LOCAL_CHANGES and self._event.node in self._fleet.rows):
            return NOT_CONCERNED
        return self._fleet.claims.supply.work.complete(lambda: self._recheck_node(parked), None)

    def _is_nominated_to_node(self, unit: Unit) -> bool:
        """Return whether the unit is nominated to the event's node, so that it may have to choose another node now."""
        return self._may_change_nomination and any(pod.nominated_node == self._event.node for pod in pods_of(unit))

    def _recheck_node(self, parked: Parked[Unit]) -> Sequence[Filter] | None:
        """Return None if the event's node may take one of the class's pods, else the filters that reject it."""
        fleet, node, pods = self._fleet, self._event.node, pods_of(parked.unit)
        row, priority = fleet.rows[node], min(pod.priority for pod in pods)
        # Whether pods could be evicted from the node, by priorities and counts of devices. Not after a pod was deleted:
        # `preemption.WithoutLowerPriority` covers that event.
        may_preempt = (
            bool(self._event.change & (NODE_CHANGES | Change.CLAIM_DEVICES))
            and all(pod.preempts for pod in pods)
            and any(charge.priority < priority for charge in fleet.on_node(node))
            and all(may_free_devices(fleet, request, node, priority) for request in parked.requests)
        )
        # First filters that probably reject the node, then filters with cached columns.
        cached = [filter_ for filter_ in parked.failure.filters if filter_.TRAITS.capacity]
        ordered = [*parked.rejected_by.values(), *cached, *parked.failure.filters]
        is_gang = isinstance(parked.unit, Gang)
        if is_gang:
            # Only filters that do not depend on the placement of the other members.
            ordered = [filter_ for filter_ in ordered if filter_.TRAITS.one_node]
        all_rejecting: list[Filter] = []
        for request in parked.requests:
            try:
                for filter_ in () if is_gang and request.mounts else ordered:
                    if may_preempt:
                        passes = filters.could_pass(filter_, fleet, request)
                    else:
                        passes = filter_.passes(fleet, request)
                    if not passes[row]:
                        all_rejecting.append(filter_)
                        break
                else:
                    return None
            except PluginFailedError:
                return None
        return all_rejecting
