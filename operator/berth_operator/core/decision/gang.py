"""Decide a gang: pods that are placed all or not at all, close together.

    decide_gang(fleet, gang, policy)  ->  [Placement, ...] | Failure

Members are decided one after the other by the same `decide` as any pod, each charged to the Fleet before the next.
However it ends, all of that is taken back: the caller assumes what it is given, as with a single pod.

Closeness is tried from the narrowest domain to the widest: one that seems to have room for all members is tried alone.
Within it, and where no domain can hold them all, members are drawn to where others of their gang are, and a new domain
is opened where it fits best.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth_api.resources import CPU, MEMORY
from berth_operator.core.decision import capacity
from berth_operator.core.decision.cycle import Failure, Floats, Placement, decide, failure, feasible
from berth_operator.core.decision.messages import cut
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.cards import Column, Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.labels import ABSENT, Numbers
from berth_operator.core.values.affinity import NO_AFFINITY
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.mounts import PodVolumes
from berth_operator.core.values.request import Membership, PendingPod, PodRequest
from berth_operator.core.values.verdict import Change

TRIES: Final = 2
"""Domains of one kind that are tried."""
STEPS: Final = 256
"""Shades of how well a domain suits."""
BIAS: Final = 2.0**14
"""More than all other scores together."""
OTHERS: Final = "node(s) were taken by other members of the pod group"
_FREES: Final = Change.NODE_ADDED | Change.NODE_ALLOCATABLE | Change.DEVICE | Change.CAPACITY_FREED
"""What can make room for more members on a node that has room for some."""

_OF_MANY: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})

NO_ROOM: Final = Failure(message="no node fits.", wakes_on=_FREES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A unit of the queue: the members of one group that wait, and what the decision needs to know of the others."""

    membership: Membership
    """As any of its members says it."""
    minimum: int
    """Members without which none is placed."""
    members: tuple[PendingPod, ...]
    placed: int = 0
    """Members that have a node, or have had one and succeeded."""
    nodes: tuple[str, ...] = ()
    """Where the former are."""
    created: str = ""
    arrived: int = 0
    """As the first of its members did."""
    version: int = 0
    """Higher whenever another decision may come out."""

    @property
    def key(self) -> str:
        """Return what tells it from all others, in words for its user."""
        return self.membership.key

    @property
    def uid(self) -> str:
        """Return the gang's key: no pod's UID looks like it."""
        return self.key

    @property
    def needed(self) -> int:
        """Return how many of the members must be placed, or none is."""
        return max(0, self.minimum - self.placed)

    @property
    def priority(self) -> int:
        """Return the highest priority among the members."""
        return max(each.priority for each in self.members)

    @property
    def lowest(self) -> int:
        """Return the lowest priority among the members: only pods below it leave for them."""
        return min(each.priority for each in self.members)

    @property
    def weight(self) -> int:
        """Return the highest weight among the members."""
        return max(each.weight for each in self.members)

    @property
    def kind(self) -> tuple[str, int]:
        """Return what no other unit equals."""
        return self.key, self.version

    @property
    def requests(self) -> tuple[PodRequest, ...]:
        """Return what is requested."""
        return tuple(each.request for each in self.members)


def pods_of(unit: PendingPod | Gang) -> tuple[PendingPod, ...]:
    """Return the pods that a unit of the queue consists of."""
    return unit.members if isinstance(unit, Gang) else (unit,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Class:
    """Equal members of a gang."""

    request: PodRequest
    count: int
    room: Column
    """How many each row may take."""

    @property
    def shrinks(self) -> bool:
        """Return whether room for it can only become less by placing others: no wish of its comes true by that."""
        return self.request.affinity == NO_AFFINITY and not self.request.mounts

    @property
    def possible(self) -> int:
        """Return how many may be placed at most."""
        return min(self.count, int(self.room.sum())) if self.shrinks else self.count


_Members = Sequence[tuple[PendingPod, Class]]


def decide_gang(fleet: Fleet, gang: Gang, policy: Policy) -> list[Placement] | Failure:
    """Place at least the members that are needed, and the others if they fit; the Fleet is left as it was."""
    if len(gang.members) < gang.needed:
        return Failure(message=too_few(gang.key, gang.placed + len(gang.members), gang.minimum), wakes_on=Change(0))
    with fleet.without(lower_priority_nominees(fleet, gang)):
        return _decide_gang(fleet, gang, policy)


def lower_priority_nominees(fleet: Fleet, gang: Gang) -> list[Charge]:
    """Return the nominees that a gang need not mind: its members, and those below all of them."""
    own = {each.uid for each in gang.members} if fleet.nominees else ()
    return [each for each in fleet.nominees.values() if each.uid in own or each.priority < gang.lowest]


def place_most(fleet: Fleet, gang: Gang, policy: Policy) -> list[Placement]:
    """Place as many members as there is room for, and perhaps too few; the Fleet is left as it was."""
    pods = sorted(gang.members, key=order)
    classes = _classes(fleet, pods, policy)
    return _Try(fleet, gang, policy, fleet.present).place([(each, classes[each.request]) for each in pods])[0]


def _decide_gang(fleet: Fleet, gang: Gang, policy: Policy) -> list[Placement] | Failure:
    pods = sorted(gang.members, key=order)
    classes = _classes(fleet, pods, policy)
    possible = sum(each.possible for each in classes.values())
    if possible < gang.needed:
        return _told(gang, possible, _short(fleet, classes, policy))
    members = [(each, classes[each.request]) for each in pods]
    for rows in _domains(fleet, gang, policy.gang_topology_keys, tuple(classes.values())):
        placed, _ = _Try(fleet, gang, policy, rows).place(members, enough=len(members))
        if len(placed) == len(members):
            return placed
    placed, why = _Try(fleet, gang, policy, fleet.present).place(members)
    if placed and len(placed) >= gang.needed:
        return placed
    return _told(gang, len(placed), why)


def order(pod: PendingPod) -> tuple[object, ...]:
    """Order members, the largest first: what is left is then easier to fill."""
    request = pod.request
    cards = sum(part.count * max((amount for _, amount in part.amounts), default=0) for part in request.devices.parts)
    plain = dict(request.resources)
    return -cards, -plain.get(CPU, 0), -plain.get(MEMORY, 0), -pod.priority, pod.created, pod.arrived, pod.uid


def _classes(fleet: Fleet, pods: Sequence[PendingPod], policy: Policy) -> dict[PodRequest, Class]:
    """Return the members' classes, in their order."""
    counts = Counter(each.request for each in pods)
    fits = {each: feasible(fleet, each, policy.filters_of(each)) for each in counts}
    rooms = {each: capacity.of_class(fleet, each, fits[each]) for each in counts}
    return {each: Class(request=each, count=count, room=rooms[each]) for each, count in counts.items()}


def too_few(key: str, have: int, minimum: int) -> str:
    """Tell that a gang waits for members."""
    return f"{key}: waiting for members: {have} of {minimum}"


# --- why not --------------------------------------------------------------------------------------------------


def _short(fleet: Fleet, classes: Mapping[PodRequest, Class], policy: Policy) -> Failure:
    """Explain without placing anyone that there is too little room."""
    tight = next(each for each in classes.values() if each.possible < each.count)
    why = failure(fleet, tight.request, policy.filters_of(tight.request), others=OTHERS)
    return replace(why, wakes_on=why.wakes_on | _FREES)


def _told(gang: Gang, placed: int, why: Failure) -> Failure:
    if not gang.needed:
        return why
    message = f"{gang.key}: {placed} of the {gang.needed} required members fit; next member: {why.message}"
    return replace(why, message=cut(message))


# --- claims that members share --------------------------------------------------------------------------------


def _shared(fleet: Fleet, gang: Gang) -> frozenset[str]:
    """Return the claims of several members that pods of many nodes may use, and that are not bound.

    A volume is made for one member. It is taken for granted that it will reach the others wherever its class allows;
    if it does not, no member is bound, and the next decision goes by the volume that is there then.
    """
    uses = Counter(use.claim for each in gang.members for use in each.request.mounts.claims)
    claims = (fleet.volumes.claims.get(key) for key, count in uses.items() if count > 1)
    return frozenset(each.key for each in claims if each and not each.bound and not each.modes.isdisjoint(_OF_MANY))


def _without(chosen: PodVolumes, made: Collection[str]) -> PodVolumes:
    """Return what is chosen without the volumes to be made for some claims."""
    if not made or not chosen.provisions:
        return chosen
    return replace(chosen, provisions=tuple(each for each in chosen.provisions if each not in made))


# --- where ----------------------------------------------------------------------------------------------------


def _domains(fleet: Fleet, gang: Gang, keys: Sequence[str], classes: Sequence[Class]) -> Iterator[Mask]:
    """Return the domains that may hold all members, the narrowest first, each as the rows in it."""
    mates = [fleet.rows[name] for name in gang.nodes if name in fleet.rows]
    for key in keys:
        numbers = fleet.labels.column(key).numbers
        size = int(numbers.max()) + 1
        rooms = np.array([np.bincount(numbers, weights=each.room, minlength=size) for each in classes])
        counts = np.array([[each.count] for each in classes])
        holds = np.all(rooms >= counts, axis=0)
        beside = np.bincount(numbers[mates], minlength=size)
        if mates:
            holds &= beside > 0
        holds[ABSENT] = False
        # The last key sorts first: most of its own kind, then what has the least left over.
        order = np.lexsort((rooms.sum(axis=0), -beside))
        for domain in order[holds[order]][:TRIES]:
            yield numbers == domain


class _Try:
    """One attempt to place the members, on some of the rows."""

    def __init__(self, fleet: Fleet, gang: Gang, policy: Policy, rows: Mask) -> None:
        self._fleet, self._policy, self._rows = fleet, policy, rows
        self._columns = [fleet.labels.column(key).numbers for key in policy.gang_topology_keys]
        self._taken = [np.zeros(int(each.max()) + 1, np.bool_) for each in self._columns]
        """Per key: the domains in which the gang has members."""
        self._shared = _shared(fleet, gang)
        self._made: set[str] = set()
        """Those of the shared claims for which a member has a volume made."""
        for name in gang.nodes:
            self._take(name)

    def place(self, members: _Members, *, enough: int = 0) -> tuple[list[Placement], Failure]:
        """Return the placements, and why the first of the others has none; give up where `enough` cannot be reached."""
        placed: list[Placement] = []
        whys: dict[Class, Failure] = {}
        waiting, most = members, len(members)
        try:
            while waiting and most >= enough:
                left = self._round(waiting, placed, whys, most - enough)
                most = len(placed) + len(left)
                # Who wishes to be near others may fit once they are placed.
                waiting = left if len(left) < len(waiting) else ()
        finally:
            for each in placed:
                self._fleet.release(each.pod.uid)
        return placed, next(iter(whys.values()), NO_ROOM)

    def _round(
        self, members: _Members, placed: list[Placement], whys: dict[Class, Failure], spare: int
    ) -> list[tuple[PendingPod, Class]]:
        """Try each member once, until more than `spare` are lost; give those who may fit later."""
        left: list[tuple[PendingPod, Class]] = []
        failed: set[Class] = set()
        for number, (pod, its) in enumerate(members):
            if its not in failed:
                outcome = decide(self._fleet, pod, self._policy, self._pull(its.room, len(members) - number))
                if isinstance(outcome, Placement):
                    self._note(outcome, placed)
                    whys.pop(its, None)
                    continue
                failed.add(its)
                whys[its] = outcome
            if not its.shrinks:
                left.append((pod, its))
            elif (spare := spare - 1) < 0:
                break
        return left

    def _note(self, placement: Placement, placed: list[Placement]) -> None:
        # Nothing is promised of a shared claim: where its volume will be does not bind the others.
        self._fleet.charge(replace(placement.charge, volumes=_without(placement.volumes, self._shared)))
        self._take(placement.node)
        placed.append(replace(placement, volumes=_without(placement.volumes, self._made)))
        self._made |= self._shared.intersection(placement.volumes.provisions)

    def _take(self, name: str) -> None:
        """Note that a member is on a node."""
        row = self._fleet.rows.get(name)
        for numbers, taken in zip(self._columns, self._taken, strict=True):
            if row is not None and numbers[row] != ABSENT:
                taken[numbers[row]] = True

    def _pull(self, room: Column, left: int) -> Floats:
        """Return what draws the next of `left` members: to the widest domain that suits, and in it to the next."""
        inside = np.where(self._rows, room, 0)
        total = np.zeros(len(room))
        for numbers, taken in zip(reversed(self._columns), reversed(self._taken), strict=True):
            total = total * STEPS + _suits(numbers, taken, inside, left)[numbers]
        return np.where(self._rows, total * BIAS, -np.inf)


def _suits(numbers: Numbers, taken: Mask, room: Column, left: int) -> Floats:
    """Return for each domain how well it suits, in steps: the gang's own, then the tightest, then the roomiest."""
    here = np.bincount(numbers, weights=room, minlength=len(taken))
    tight = np.where(here >= left, 1.0 + left / np.maximum(here, 1.0), here / left)
    steps = np.where(taken, STEPS - 1, np.floor(tight * (STEPS // 2 - 1)))
    steps[ABSENT] = 0
    return steps
