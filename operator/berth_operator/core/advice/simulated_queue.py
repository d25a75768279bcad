"""The queue of a simulation, and the capacity that it keeps for pods, as `state.cache` does for an operator."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from berth_api.values import keys
from berth_operator.core.claims.objects import status
from berth_operator.core.decision import promise
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.decision.gang import Gang, pods_of
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.queue import waking
from berth_operator.core.queue.queue import Queue
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.request import Membership, PendingPod
from berth_operator.core.values.verdict import Change

Unit = PendingPod | Gang


class SimulatedQueue:
    """The waiting units in their current state: with their nominations, and gangs without their placed members."""

    def __init__(self, fleet: Fleet, units: Iterable[Unit]) -> None:
        self._fleet = fleet
        self._queue: Queue[Unit] = Queue()
        self._units: dict[str, Unit] = {unit.uid: unit for unit in units}
        """UID of a pod or key of a gang -> unit."""
        self._unit_of = {pod.uid: unit.uid for unit in self._units.values() for pod in pods_of(unit)}
        """UID of a pod -> UID of its unit; also of the pods that come later and have a place."""
        self._later: dict[Membership, int] = {}
        """Gang -> number of places that are kept for pods that come after its members."""
        self.in_flight: set[str] = set()
        """UIDs of the pods that were placed and whose Bindings are not confirmed yet."""

    def start(self) -> None:
        """Make all units active."""
        for unit in self._units.values():
            self._queue.put(unit)

    def put(self, unit: Unit) -> None:
        """Make a unit active if it has changed."""
        self._queue.put(unit)

    def pop(self) -> Unit | None:
        """Return the next unit to decide; None if there is none."""
        return self._queue.pop(0.0)

    def classes(self) -> list[Hashable]:
        """Return the keys of the parked classes, the longest parked first."""
        return [parked.unit.class_key for parked in self._queue.parked()]

    def review(self, class_key: Hashable) -> None:
        """Make the units of a class active, whatever they wait for."""
        self._queue.wake_class(class_key)

    def confirm(self) -> None:
        """Confirm all Bindings, and wake the units that could not preempt because of them."""
        self.in_flight.clear()
        self._queue.wake(Change.BOUND)

    def parked_failure(self, unit: Unit) -> Failure | None:
        """Return the failure with which the unit's class is parked; None if the class is not parked."""
        return self._queue.parked_failure(unit)

    def park(self, unit: Unit, failure: Failure) -> list[Unit]:
        """Park a unit until a change may help; return the units of its class that are parked with it."""
        return self._queue.park(unit, failure)

    # --- nominations ------------------------------------------------------------------------------------------

    def pods(self) -> list[PendingPod]:
        """Return the pods that wait."""
        return [pod for unit in self._units.values() for pod in pods_of(unit)]

    def unit(self, uid: str) -> Unit:
        """Return a unit in its current state."""
        return self._units[uid]

    def unit_of(self, uid: str) -> str:
        """Return the UID of the unit that a pod belongs to."""
        return self._unit_of[uid]

    def nominate(self, pod: PendingPod, nominee: Charge) -> PendingPod:
        """Keep a node's capacity for a pod; return the pod with this nomination."""
        self._fleet.nominate(nominee)
        return self._replaced(pod, nominated_node=nominee.node)

    def reserve(self, pod: PendingPod, nominee: Charge) -> PendingPod:
        """Reserve a node's capacity for a pod; return the pod with this node reservation."""
        before = self._fleet.withdraw(pod.uid)
        self._fleet.nominate(nominee)
        if before is not None and (before.node, before.grants) != (nominee.node, nominee.grants):
            waking.capacity_freed(self._fleet, self._queue, before)
        return self._replaced(pod, reserved_node=nominee.node)

    def withdraw(self, pod: PendingPod) -> PendingPod:
        """Withdraw the capacity kept for a pod; return the pod without it."""
        if (nominee := self._fleet.withdraw(pod.uid)) is not None:
            waking.capacity_freed(self._fleet, self._queue, nominee)
        return self._replaced(pod)

    def keep_later(self, unit: Gang, places: Sequence[Charge]) -> None:
        """Keep places for the pods that come after the members of a gang, in place of earlier ones."""
        self.release_later(unit.uid)
        places = places[: self.may_keep(unit)]
        if not unit.is_confirmed:
            of_namespace = [gang.key for gang in self._later if keys.split(gang.group)[0] == unit.namespace]
            others = [place for key in of_namespace for place in self._later_places(key)]
            places = places[: promise.unconfirmed_allowed(self._fleet, places, others)]
        if places:
            self._later[unit.membership] = len(places)
        for place in places:
            self._fleet.nominate(place)
            self._unit_of[place.uid] = unit.uid

    def may_keep(self, gang: Gang) -> int:
        """Return how many places may be kept for pods that come after the members of a gang."""
        others = {other: places for other, places in self._later.items() if other != gang.membership}
        return promise.places_allowed(gang.membership, others)

    def release_later(self, uid: str) -> None:
        """Release the places of the pods that come after the members of a gang."""
        self._later = {gang: places for gang, places in self._later.items() if gang.key != uid}
        for nominee in self._later_places(uid):
            if self._fleet.withdraw(nominee.uid) is not None:
                waking.capacity_freed(self._fleet, self._queue, nominee)

    def _later_places(self, uid: str) -> list[Charge]:
        """Return the places of the pods that come after the members of a gang."""
        unit = self._units.get(uid)
        existing = () if unit is None else {pod.uid for pod in pods_of(unit)}
        return [nominee for nominee in self.nominees(uid) if nominee.uid not in existing]

    def nominees(self, uid: str) -> list[Charge]:
        """Return the capacity kept for the pods of a unit."""
        return [nominee for nominee in self._fleet.nominees.values() if self._unit_of[nominee.uid] == uid]

    def withdraw_unit(self, uid: str) -> None:
        """Withdraw the capacity kept for all pods of a unit, and make the unit active."""
        self.release_later(uid)
        if (unit := self._units.get(uid)) is None:
            return
        waiting = {pod.uid: pod for pod in pods_of(unit)}
        for nominee in self.nominees(uid):
            self.withdraw(waiting[nominee.uid])
        self._queue.put(self._units[uid])

    def displace(self, node: str, priority: int) -> None:
        """Withdraw the capacity kept on a node for pods of lower priority, and make these pods active."""
        for nominee in tuple(self._fleet.nominees_on(node)):
            if nominee.priority < priority and nominee.uid in self._fleet.nominees:
                self.withdraw_unit(self.unit_of(nominee.uid))

    def _replaced(self, pod: PendingPod, *, nominated_node: str = "", reserved_node: str = "") -> PendingPod:
        new = replace(pod, nominated_node=nominated_node, reserved_node=reserved_node)
        unit = self._units[self._unit_of[pod.uid]]
        if isinstance(unit, Gang):
            members = tuple(new if member.uid == pod.uid else member for member in unit.members)
            version = unit.version + (new.class_key != pod.class_key)
            self._units[unit.uid] = replace(unit, members=members, version=version)
        else:
            self._units[pod.uid] = new
        return new

    # --- placements -------------------------------------------------------------------------------------------

    def placed(self, unit: Unit, placements: Sequence[Placement]) -> None:
        """Charge placements, wake the units that they may help, and leave the unit's other members in the queue."""
        self._queue.remove(unit.uid)
        known = self._fleet.claims.claims
        for placement in placements:
            charge, claims = placement.charge, placement.claims
            nominee = self._fleet.withdraw(charge.uid)
            self._fleet.charge(charge)
            # What its ResourceClaims get is shown, so that other pods use them as soon as in the cluster.
            written = {str(allocation.claim): allocation.written() for allocation in claims.of_claims}
            for key in (*written, *claims.reserved):
                known[key] = status.used_by(known[key], placement.pod.uid, written.get(key))
            for key in written:
                self._queue.wake_claiming(key)
            self.in_flight.add(charge.uid)
            if nominee is not None and (nominee.node, nominee.grants) != (charge.node, charge.grants):
                # Even on the nominated node it may take other cards than were kept for it.
                waking.capacity_freed(self._fleet, self._queue, nominee)
            waking.pod_assigned(self._fleet, self._queue, charge)
        uids = {placement.pod.uid for placement in placements}
        members = tuple(member for member in unit.members if member.uid not in uids) if isinstance(unit, Gang) else ()
        if not isinstance(unit, Gang) or not members:
            del self._units[unit.uid]
            return
        # A gang with a PodGroup is as old as that.
        is_dated = unit.membership.minimum is None
        self._units[unit.uid] = rest = replace(
            unit,
            members=members,
            placed=unit.placed + len(placements),
            nodes=(*unit.nodes, *(placement.node for placement in placements)),
            held=(*unit.held, *(placement.pod.uid for placement in placements)),
            created=unit.created if is_dated else min(member.created for member in members),
            arrived=min(member.arrived for member in members),
            version=unit.version + 1,
        )
        self._queue.put(rest)
