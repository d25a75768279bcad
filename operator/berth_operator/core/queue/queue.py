"""The scheduling queue: it selects the unit (pod or gang) that is decided next.

* active: ordered by priority, then weight, then creation time, then order of arrival in the watch. Arrival counts
  because creation times have a resolution of one second. Among units whose decision may take long, the namespaces take
  turns before the creation time counts (`CostlyLane`).
* backing off: the Binding failed, and the unit becomes active after 1 s, doubling to 10 s. Or ResourceClaims that are
  made for the unit do not exist yet, and it becomes active when they do.
* parked: the unit fits nowhere. Units of one class are parked together, and woken together by the changes that may let
  one of them fit. They become active one after another. If one of them fails, the units that have not been decided
  since are parked. So a thousand equal pods cost one decision per change. Each gang is a class of its own.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final, Generic, Protocol, TypeVar

from berth_api.values.backoff import ExponentialBackoff
from berth_operator.core.claims.bounds.turns import NamespaceTurns
from berth_operator.core.decision.cycle import Failure
from berth_operator.core.filters import Filter
from berth_operator.core.queue import event_labels
from berth_operator.core.queue.costly_lane import CostlyLane, Order
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change

FIRST_BACKOFF: Final = 1.0
"""Seconds of the first back-off."""
MAX_BACKOFF: Final = 10.0


class Unit(Protocol):
    """What one decision is about: a `PendingPod` or a `Gang`."""

    @property
    def uid(self) -> str:
        """Return the unique key."""

    @property
    def namespace(self) -> str:
        """Return the namespace."""

    @property
    def class_key(self) -> Hashable:
        """Return the key of all units that get the same decision."""

    @property
    def requests(self) -> tuple[PodRequest, ...]:
        """Return the requests of its pods."""

    @property
    def size(self) -> int:
        """Return the number of its pods."""

    @property
    def priority(self) -> int:
        """Return the priority; the highest is decided first."""

    @property
    def weight(self) -> int:
        """Return the order among units of one priority; the highest is decided first."""

    @property
    def created(self) -> str:
        """Return the creation time in RFC 3339; the oldest is decided first."""

    @property
    def arrived(self) -> int:
        """Return the arrival number in the watch; among units of equal age the lowest is decided first."""


U = TypeVar("U", bound=Unit)
K = TypeVar("K")


@dataclass(slots=True)
class Parked(Generic[U]):
    """The parked units of one class, and why they wait."""

    failure: Failure
    requests: tuple[PodRequest, ...]
    """The distinct requests of the units."""
    version: int
    """Version of the state at which the failure was decided."""
    rejected_by: dict[str, Filter] = field(default_factory=dict)
    """Name -> filter: the filters in `failure`, and the filters that have rejected a node since."""
    bits: int = 0
    """The changes that may wake the units."""
    other_bits: int = 0
    """The changes among them that no filter of `rejected_by` waits for, and added nodes."""
    units: dict[str, U] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compute the changes that may wake the units."""
        self.bits = int(self.failure.wakes_on)
        self.await_filters(self.failure.rejected_by)
        self.other_bits = self.bits & ~reduce(or_, (int(each.WAKES_ON) for each in self.rejected_by.values()), 0)
        self.other_bits |= self.bits & int(Change.NODE_ADDED)

    def await_filters(self, rejecting: Iterable[Filter]) -> None:
        """Also wait for the changes of more filters."""
        for filter_ in rejecting:
            self.rejected_by[filter_.NAME] = filter_
            self.bits |= int(filter_.WAKES_ON)

    @property
    def unit(self) -> U:
        """Return one of the units, which represents all of them."""
        return next(iter(self.units.values()))


Hint = Callable[[Parked[U]], Sequence[Filter] | None]
"""Returns None if a change may help a parked class, else the filters that still reject the changed node."""
NOT_CONCERNED: Final[Sequence[Filter]] = ()
"""The hint that a change does not affect a class at all."""


def pause(tries: int, longest: float = MAX_BACKOFF) -> float:
    """Return the seconds to wait after `tries` failures."""
    return ExponentialBackoff(first=FIRST_BACKOFF, longest=longest).after(tries)


class Queue(Generic[U]):
    """The pending units; `now` is a monotonic clock in seconds."""

    def __init__(self, is_costly: Callable[[U], bool] = lambda unit: any(_claims(unit))) -> None:
        """Create a queue. `is_costly` returns whether the decision of a unit may take long."""
        self._is_costly = is_costly
        self._units: dict[str, U] = {}
        self._deferred: dict[str, Callable[[], None]] = {}
        """UID -> the update of this unit that is done before the queue is next read."""
        self._is_settling = False
        self._active: list[tuple[Order, str]] = []
        """Heap of (order, UID); entries are skipped if the unit is no longer active or its order has changed."""
        self._lane = CostlyLane(NamespaceTurns())
        """Those of the active units whose decision may take long, which are not in `_active`."""
        self._is_active: dict[str, Order] = {}
        self._waiting: list[tuple[float, str]] = []
        """Heap of (end of the back-off, UID)."""
        self._due: dict[str, float] = {}
        self._tries: dict[str, int] = {}
        self._parked: dict[Hashable, Parked[U]] = {}
        self._woken: dict[Hashable, dict[str, U]] = {}
        """Class -> its units that were woken together, in order. Only the first unit is in `_is_active`."""
        self._claiming: defaultdict[str, set[Hashable]] = defaultdict(set)
        """ResourceClaim -> keys of the parked classes that use it."""
        self._early: defaultdict[str, set[str]] = defaultdict(set)
        """ResourceClaim -> UIDs of the units of `put_early` that use it; some may be active by now."""
        self.incoming: defaultdict[tuple[str, ...], int] = defaultdict(int)
        """(queue, event) -> number of pods that the event moved into the queue, in kube-scheduler's words."""
        self.version = 0
        """Counts the changes that may change why a unit waits; nominations do not count."""
        self._activated_at: dict[str, int] = {}
        """UID -> version at which the unit became active. The entry stays until the unit is parked, backs off or is
        removed."""
        self._awaited = 0
        """A superset of the changes that parked units wait for, to ignore the many other changes quickly."""

    def __len__(self) -> int:
        self._settle()
        return len(self._units)

    def __contains__(self, uid: str) -> bool:
        self._settle()
        return uid in self._units

    def unit(self, uid: str) -> U | None:
        """Return a unit of the queue; None if it is not in it."""
        self._settle()
        return self._units.get(uid)

    def put(self, unit: U) -> None:
        """Add or replace a unit. A unit with unchanged class, priority and weight keeps its place."""
        current = self._units.get(unit.uid)
        if current is not None and _place(current) == _place(unit):
            self._units[unit.uid] = unit
            parked = self._parked.get(unit.class_key)
            for units in (parked.units if parked else {}, self._woken.get(unit.class_key, {})):
                if unit.uid in units:
                    units[unit.uid] = unit
            return
        self.remove(unit.uid)
        self._units[unit.uid] = unit
        self._activate(unit, event_labels.POD_ADD)

    def defer(self, uid: str, update: Callable[[], None]) -> None:
        """Update a unit before the queue is next read, by a function that puts or removes it.

        A later update of the same unit replaces it. So many changes of a gang cost one update, which visits all
        members.
        """
        self._deferred[uid] = update

    def _settle(self) -> None:
        """Do the deferred updates. They do not nest: an update may wake other units."""
        if self._is_settling:
            return
        self._is_settling = True
        try:
            while self._deferred:
                self._deferred.pop(next(iter(self._deferred)))()
        finally:
            self._is_settling = False

    def put_early(self, unit: U, until: float) -> None:
        """Add or replace a unit with missing ResourceClaims. It is decided once one is created, or at `until`.

        kube-scheduler does not decide such a pod either (PreEnqueue).
        """
        self.remove(unit.uid)
        self._units[unit.uid] = unit
        self._due[unit.uid] = until
        heapq.heappush(self._waiting, (until, unit.uid))
        for claim in _claims(unit):
            self._early[claim].add(unit.uid)

    def remove(self, uid: str) -> None:
        """Remove a unit that was bound or deleted."""
        unit = self._units.pop(uid, None)
        if unit is None:
            return
        self._is_active.pop(uid, None)
        self._activated_at.pop(uid, None)
        self._due.pop(uid, None)
        self._tries.pop(uid, None)
        for claim in _claims(unit):
            _discard(self._early, claim, uid)
        self._leave_woken(unit)
        self._unpark(unit)

    def pop(self, now: float, *, with_costly: bool = True) -> U | None:
        """Return the next unit to decide. It stays in the queue until it is removed, parked or put again.

        Without `with_costly`, return a unit whose decision is short.
        """
        self._settle()
        while (due := self.next_due()) is not None and due <= now:
            _, uid = heapq.heappop(self._waiting)
            del self._due[uid]
            self._activate(self._units[uid], event_labels.BACKOFF_COMPLETE)
        first = self._lane.first(self._is_active) if with_costly else None
        if self.has_others() and (first is None or self._active[0][0] < first.order):
            _, uid = heapq.heappop(self._active)
        elif first is not None:
            self._lane.pop(first)
            uid = first.uid
        else:
            return None
        del self._is_active[uid]
        unit = self._units[uid]
        self._leave_woken(unit)
        return unit

    def has_others(self) -> bool:
        """Return whether a unit is active whose decision is short."""
        self._settle()
        while self._active and self._is_active.get(self._active[0][1]) != self._active[0][0]:
            heapq.heappop(self._active)
        return bool(self._active)

    def is_costly_first(self) -> bool:
        """Return whether a unit whose decision may take long has a higher priority than all active ones."""
        first = self._lane.first(self._is_active)
        return first is not None and self.has_others() and first.order[0] < self._active[0][0][0]

    def has_costly(self) -> bool:
        """Return whether a unit is active whose decision may take long."""
        self._settle()
        return self._lane.first(self._is_active) is not None

    @property
    def turns(self) -> NamespaceTurns:
        """Return the time that the namespaces' units of the lane have taken."""
        return self._lane.turns

    def put_back(self, unit: U) -> None:
        """Make a popped unit active again whose decision was not finished. The unit may have changed since."""
        self._units[unit.uid] = unit
        self._push(unit)

    def parked_failure(self, unit: U) -> Failure | None:
        """Return the still valid failure with which the unit's class is parked; None if it is not parked."""
        self._settle()
        parked = self._parked.get(unit.class_key)
        return parked.failure if parked else None

    def is_outdated(self, unit: U) -> bool:
        """Return whether the failure with which a popped unit's class is parked is older than the unit's activation."""
        self._settle()
        parked = self._parked.get(unit.class_key)
        return parked is not None and parked.version < self._activated_at.get(unit.uid, 0)

    def park(self, unit: U, failure: Failure) -> list[U]:
        """Park a unit until a change may help. The unit's class may have changed since `pop`.

        Return the units that are parked with it: the units of its class that were woken and have not been popped.
        """
        self._units[unit.uid] = unit
        self._activated_at.pop(unit.uid, None)
        if (parked := self._parked.get(unit.class_key)) is None:
            requests = tuple(dict.fromkeys(unit.requests))
            parked = self._parked[unit.class_key] = Parked[U](failure, requests, self.version)
            for claim in _claims(unit):
                self._claiming[claim].add(unit.class_key)
        parked.units[unit.uid] = unit
        followers = self._woken.pop(unit.class_key, {})
        for uid in followers:
            self._is_active.pop(uid, None)
            self._activated_at.pop(uid, None)
        parked.units |= followers
        self._awaited |= parked.bits
        self._count(event_labels.UNSCHEDULABLE, event_labels.ATTEMPT_FAILURE, unit, *followers.values())
        return [*followers.values()]

    def back_off(self, unit: U, now: float, longest: float = MAX_BACKOFF) -> None:
        """Back off a unit whose Binding or preemption failed, longer each time. It may have changed since `pop`."""
        if (current := self._units.get(unit.uid)) is not None:
            self._is_active.pop(unit.uid, None)
            self._activated_at.pop(unit.uid, None)
            self._leave_woken(current)
            self._unpark(current)
        self._units[unit.uid] = unit
        tries = self._tries[unit.uid] = self._tries.get(unit.uid, 0) + 1
        self._due[unit.uid] = now + pause(tries, longest)
        heapq.heappush(self._waiting, (self._due[unit.uid], unit.uid))
        self._count(event_labels.BACKOFF, event_labels.ATTEMPT_FAILURE, unit)

    def awaits(self, change: Change) -> bool:
        """Return whether any parked unit may wait for a change."""
        return bool(self._awaited & int(change))

    def wake(self, change: Change, hint: Hint[U] = lambda _parked: None) -> bool:
        """Activate all units that a change may help, by a hint on each class; return whether there are any."""
        if not self.awaits(change):
            return False
        bits = int(change)
        class_keys = []
        for key, parked in self._parked.items():
            if parked.bits & bits:
                rejecting = hint(parked)
                if rejecting is None:
                    class_keys.append(key)
                elif rejecting:
                    # It also waits for the filters that still reject it.
                    parked.await_filters(rejecting)
        for key in class_keys:
            self._wake_class(key, event_labels.of(change))
        self._awaited = reduce(or_, (parked.bits for parked in self._parked.values()), 0)
        return bool(class_keys)

    def wake_claiming(self, claim: str) -> None:
        """Activate the units that use a ResourceClaim (namespace/name) and wait for its change."""
        for uid in self._early.pop(claim, ()):
            if self._due.pop(uid, None) is not None:
                self._activate(self._units[uid], event_labels.POD_ADD)
        for key in [*self._claiming.get(claim, ())]:
            if self._parked[key].bits & int(Change.RESOURCE_CLAIM):
                self._wake_class(key, event_labels.of(Change.RESOURCE_CLAIM))

    def parked_before(self, version: int) -> list[Hashable]:
        """Return the keys of the classes that were parked before a version, the longest parked first."""
        self._settle()
        return [key for key, parked in self._parked.items() if parked.version < version]

    def wake_class(self, class_key: Hashable, event: str = event_labels.TIMEOUT) -> None:
        """Activate all units of a class, whatever they wait for."""
        self._settle()
        self._wake_class(class_key, event)

    def _wake_class(self, class_key: Hashable, event: str) -> None:
        """Do the same without the deferred updates: while hints are evaluated, the Fleet lacks some nominees."""
        if (parked := self._remove_class(class_key)) is not None:
            units = sorted(parked.units.values(), key=order_of)
            self._woken[class_key] = {unit.uid: unit for unit in units}
            self._count(event_labels.ACTIVE, event, *units)
            self._push(units[0])

    def active(self) -> list[U]:
        """Return the units that are about to be decided."""
        self._settle()
        followers = (each for woken in self._woken.values() for each in woken.values())
        return [
            *(self._units[uid] for uid in self._is_active),
            *(each for each in followers if each.uid not in self._is_active),
        ]

    def backing_off(self) -> list[U]:
        """Return the units that back off."""
        self._settle()
        return [self._units[uid] for uid in self._due]

    def due(self) -> list[tuple[float, U]]:
        """Return the units that back off, each with the end of its back-off."""
        self._settle()
        return [(due, self._units[uid]) for uid, due in self._due.items()]

    def parked(self) -> list[Parked[U]]:
        """Return the classes that are parked."""
        self._settle()
        return list(self._parked.values())

    def next_due(self) -> float | None:
        """Return when the next back-off ends; None if no unit backs off."""
        self._settle()
        while self._waiting and self._due.get(self._waiting[0][1]) != self._waiting[0][0]:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def _activate(self, unit: U, event: str) -> None:
        if unit.uid not in self._is_active:
            self._push(unit)
            self._count(event_labels.ACTIVE, event, unit)

    def _push(self, unit: U) -> None:
        order = self._is_active[unit.uid] = order_of(unit)
        self._activated_at[unit.uid] = self.version
        if self._is_costly(unit):
            self._lane.push(unit.namespace, order, unit.uid)
        else:
            heapq.heappush(self._active, (order, unit.uid))

    def _leave_woken(self, unit: U) -> None:
        """Remove a unit from the units woken with its class. If it was active, the next unit becomes active."""
        woken = self._woken.get(unit.class_key, {})
        if woken.pop(unit.uid, None) is None:
            return
        if not woken:
            del self._woken[unit.class_key]
        elif (following := next(iter(woken.values()))).uid not in self._is_active:
            self._push(following)

    def _count(self, queue: str, event: str, *units: U) -> None:
        self.incoming[queue, event] += sum(unit.size for unit in units)

    def _unpark(self, unit: U) -> None:
        parked = self._parked.get(unit.class_key)
        if parked is not None:
            parked.units.pop(unit.uid, None)
            if not parked.units:
                self._remove_class(unit.class_key)

    def _remove_class(self, class_key: Hashable) -> Parked[U] | None:
        parked = self._parked.pop(class_key, None)
        for request in parked.requests if parked is not None else ():
            for use in request.claims:
                _discard(self._claiming, use.claim, class_key)
        return parked


def _claims(unit: Unit) -> Iterator[str]:
    """Yield the ResourceClaims that a unit names (namespace/name)."""
    return (use.claim for request in unit.requests for use in request.claims if use.claim)


def _discard(index: dict[str, set[K]], name: str, key: K) -> None:
    if name in index:
        index[name].discard(key)
        if not index[name]:
            del index[name]


def _place(unit: Unit) -> tuple[object, ...]:
    return (unit.class_key, unit.priority, unit.weight)


def order_of(unit: Unit) -> Order:
    """Return the sort key of a unit; the lowest is decided first."""
    return -unit.priority, -unit.weight, unit.created, unit.arrived, unit.uid
