"""Node reservations: the capacity of one node is gathered for a pod that has waited too long for it.

    may_have(fleet, pod, policy, now)       ->  whether a pod has waited long enough for one
    entitled(pods, limit)                   ->  the pods that should have a node reservation
    may_keep(fleet, pods, policy, now)      ->  the pods that keep the last leader's
    reserve(fleet, pod, policy, now)        ->  NodeReservation | None
    backfill(fleet, pod, policy, kept, now) ->  Placement on a reserved node | None

A node reservation is a nomination without victims: the pods that have to leave end by themselves. A node can be
reserved if it lacks only amounts, and if the pod would fit there without the pods that may end. Among these nodes, the
one whose pods are known to end soonest is chosen, then the one with the fewest missing cards. Only the nodes with the
fewest missing cards are examined, so that the cost does not grow with the cluster
(docs/decisions/0028-node-reservations.md).
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from berth_api.allocation import Grant
from berth_api.objects.leader_lease import MAX_RESERVED_NODES
from berth_api.request import Part, is_device
from berth_operator.core import allocators, filters
from berth_operator.core.allocators import candidates
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.messages import SCHEDULER_ERROR
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.what_if import WhatIf, one_pod_per_place
from berth_operator.core.filters.resources import NAME as RESOURCES
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.arrays.column_cache import ALL
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import is_pod, leaves_soon
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask
from berth_operator.core.fleet.pods.placed_pods import PlacedPods
from berth_operator.core.values import ending
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.dependence import depends_on
from berth_operator.core.values.request import PendingPod, PodRequest
from berth_operator.core.values.verdict import Verdict

PART_OF_NODES: Final = 20
"""One of this many nodes with devices may be reserved at once, at least one."""
MAX_RESERVATIONS: Final = MAX_RESERVED_NODES
"""Reservations at once; each adds 0.1 ms to a decision of a higher priority, which ignores it."""
MAX_NODES: Final = 64
"""Nodes that are examined: the nodes with the fewest missing cards."""
MAX_PODS: Final = 1024
"""Pods on these nodes that are examined; fewer nodes are if they have more."""
HORIZON: Final = 3600
"""Seconds within which an end is known well enough. Deadlines are upper bounds: most pods end long before a distant
one."""
START_SECONDS: Final = 10
"""Seconds from a decision to the start of its pod, from which kubelet counts the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDevices:
    """How many of the devices of one type that a pod requests are free on its reserved node."""

    type: str
    free: int
    requested: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReservation:
    """What is reserved for a pod, and the pods that have to end first."""

    nominee: Charge
    """What the pod will be charged on the node."""
    request: PodRequest
    """The pod's request when the node was reserved."""
    awaited: tuple[Charge, ...]
    """The pods that have to end, by name."""
    ends: int
    """The latest end of all these pods, as in `core.values.ending`; 0 if there are no pods."""
    placed: tuple[Charge, ...]
    """All pods of the node at that time."""
    devices: tuple[FreeDevices, ...] = ()
    """What is free of each part of the request."""
    missing: tuple[tuple[str, int], ...] = ()
    """(resource of the Node, amount) that the node has too little of."""
    since: int = 0
    """When something was last freed for it, or when it began, in seconds since 1970; 0 if unknown."""
    least: tuple[int, int] = (0, 0)
    """The least that it has lacked on its node, as in `lacking`."""

    @property
    def node(self) -> str:
        """Return the reserved node."""
        return self.nominee.node

    @property
    def free(self) -> int:
        """Return how many of the requested devices are free."""
        return sum(devices.free for devices in self.devices)

    @property
    def lacking(self) -> tuple[int, int]:
        """Return how many devices are not free yet, and how many pods have to end."""
        return sum(devices.requested - devices.free for devices in self.devices), len(self.awaited)

    def is_open_to(self, lifetime: int, now: float) -> bool:
        """Return whether a pod that ends within its lifetime (seconds) may use the node until it is needed."""
        return now + lifetime + START_SECONDS <= self.ends <= now + HORIZON

    def is_taken_by_higher(self, other: "NodeReservation") -> bool:
        """Return whether pods of higher priority that came since `other` now have to end, too."""
        before = {charge.uid for charge in other.placed}
        return any(
            charge.priority > self.nominee.priority and is_pod(charge) and charge.uid not in before
            for charge in self.awaited
        )


def most_nodes(fleet: Fleet) -> int:
    """Return how many nodes may be reserved at once."""
    return min(MAX_RESERVATIONS, max(1, int((fleet.present & fleet.has_device).sum()) // PART_OF_NODES))


def entitled(pods: Iterable[PendingPod], limit: int) -> list[PendingPod]:
    """Return the pods that should have a node reservation: one of each namespace, `limit` at most.

    The highest priority comes first, then pods that have a reservation, then the longest wait.
    """
    by_rank = sorted(
        pods, key=lambda pod: (-pod.priority, not pod.reserved_node, pod.unschedulable_since, pod.created, pod.uid)
    )
    of_namespaces: dict[str, PendingPod] = {}
    for pod in by_rank:
        of_namespaces.setdefault(pod.namespace, pod)
    return list(of_namespaces.values())[:limit]


def may_have(fleet: Fleet, pod: PendingPod, policy: Policy, now: float) -> bool:
    """Return whether a waiting pod may have a reservation: it requests devices and has waited long enough.

    `now` is in seconds since 1970.
    """
    if not pod.request.devices or not pod.unschedulable_since or pod.gang is not None or pod.error:
        return False
    # A pod whose Binding is refused would keep the room without end.
    if pod.nominated_node or pod.last_reason == SCHEDULER_ERROR or pod.uid in fleet.charges:
        return False
    since = datetime.fromtimestamp(now - policy.reserve_after, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return bool(policy.reserve_after) and pod.unschedulable_since <= since


def may_keep(fleet: Fleet, pods: Iterable[PendingPod], policy: Callable[[str], Policy], now: float) -> list[PendingPod]:
    """Return which pods with reservations of the last leader may keep them, in order.

    `policy` returns the policy of a scheduler name. `now` is in seconds since 1970.
    """
    keeping = (pod for pod in pods if may_have(fleet, pod, policy(pod.scheduler), now))
    return entitled(keeping, most_nodes(fleet))


def backfill(
    fleet: Fleet, pod: PendingPod, policy: Policy, kept: Mapping[str, NodeReservation], now: float
) -> Placement | None:
    """Place a pod that fits nowhere else on a reserved node that it leaves in time; None if there is none.

    `kept` has the reservations by the UIDs of their pods, `now` is in seconds since 1970.
    """
    usable = [
        reservation.nominee
        for uid, reservation in kept.items()
        if reservation.is_open_to(pod.lifetime, now) and uid in fleet.nominees
    ]
    if not usable:
        return None
    with fleet.without(usable):
        return cycle.place(fleet, replace(pod, ends=int(now) + pod.lifetime + START_SECONDS), policy)


def reserve(
    fleet: Fleet,
    pod: PendingPod,
    policy: Policy,
    now: float,
    *,
    node: str = "",
    in_vain: Collection[Hashable] = (),
) -> NodeReservation | None:
    """Return the node reservation of a pod; None if no node could take the pod.

    It is on `node` if that could take the pod, whichever is best. `now` is in seconds since 1970, and `in_vain` has the
    UIDs of placed pods that are not waited for unless their end is known.
    """
    lower = fleet.lower_priority_nominees(pod.uid, pod.priority)
    with fleet.without(lower):
        row = fleet.rows.get(node)
        if row is not None and settled(fleet, pod.request, policy, forever=True)[row]:
            kept = _Search(fleet, pod, policy, np.array([row]), now=now, in_vain=in_vain).best()
            # Once it has the amounts, nothing else may keep the pod from its node.
            if kept is not None and (kept.awaited or settled(fleet, pod.request, policy, forever=False)[row]):
                return kept
        rows = _rows_to_examine(fleet, pod.request, policy)
        displaced = {nominee.node for nominee in lower if nominee.uid != pod.uid}
        if not rows.size:
            return None
        return _Search(fleet, pod, policy, rows, now=now, in_vain=in_vain, reserved=displaced).best()


def settled(fleet: Fleet, request: PodRequest, policy: Policy, *, forever: bool) -> Mask:
    """Return the rows that lack at most amounts; with `forever`, also rows rejected because of their pods."""
    settled = [
        filter_
        for filter_ in policy.filters_of(request)
        if filter_ not in policy.local and not (forever and filter_.VERDICT is Verdict.UNSCHEDULABLE)
    ]
    return cycle.feasible(fleet, request, settled)


def _rows_to_examine(fleet: Fleet, request: PodRequest, policy: Policy) -> Indices:
    """Return the rows with the fewest missing cards that could take the pod if they were empty."""
    mask = settled(fleet, request, policy, forever=False)
    for filter_ in policy.local:
        mask = mask & filters.could_pass(filter_, fleet, request)
    rows = np.flatnonzero(mask)
    nearest = rows[np.argsort(missing_devices(fleet, request)[rows], kind="stable")][:MAX_NODES]
    pods = np.cumsum([len(tuple(fleet.on_node(fleet.names[row]))) for row in nearest.tolist()])
    few: Indices = nearest[: max(1, int(np.searchsorted(pods, MAX_PODS, side="right")))]
    return few


def missing_devices(fleet: Fleet, request: PodRequest) -> Column:
    """Return how many of the requested devices each row lacks."""
    missing = np.zeros(len(fleet.names), np.int64)
    for part in request.devices.parts:
        missing += np.maximum(part.count - _free_devices(fleet, request, part), 0)
    without_grants = extended_resources.rows_without_grants(fleet, request)
    return missing if without_grants is None else np.where(without_grants, 0, missing)


def _free_devices(fleet: Fleet, request: PodRequest, part: Part) -> Column:
    """Return how many devices each row has free for a part of a request."""
    in_subdevices = allocators.in_subdevices(fleet, part)
    free: Column = (
        allocators.subdevices_left(fleet, request, part, ALL).sum(axis=1)
        if in_subdevices
        else candidates.free(fleet, request, part).sum(axis=1)
    )
    return free


class _Search:
    """Searches the pods that have to end on each of some nodes; places index the nodes."""

    def __init__(
        self,
        fleet: Fleet,
        pod: PendingPod,
        policy: Policy,
        rows: Indices,
        *,
        now: float,
        in_vain: Collection[Hashable],
        reserved: Collection[str] = (),
    ) -> None:
        """Create a search. Nodes that are reserved for others are taken only if no equal node is left."""
        self._reserved = reserved
        self._fleet, self._pod, self._policy, self._rows = fleet, pod, policy, rows
        on_nodes = [tuple(fleet.on_node(fleet.names[row])) for row in rows.tolist()]
        self._on_nodes = on_nodes
        self._placed = PlacedPods.of(fleet, [charge for charges in on_nodes for charge in charges])
        self._places = np.repeat(np.arange(len(rows)), [len(charges) for charges in on_nodes])
        ends = []
        for charge in self._placed.charges:
            end = charge.ends
            if leaves_soon(fleet, charge):
                end = min(charge.ends, int(now))
            elif charge.uid in fleet.overdue:
                end = ending.NEVER
            elif charge.ends > now + HORIZON:
                # What is beyond the horizon is unknown. A pod whose end depends on the waiting one never ends for it.
                is_awaited = charge.uid not in in_vain and not depends_on(charge, pod)
                end = max(charge.ends, ending.UNKNOWN) if is_awaited else ending.NEVER
            ends.append(end)
        self._ends = np.array(ends, np.int64)
        """When each of these pods is expected to end, as in `core.values.ending`."""
        self._fits, self._awaited = self._wait()

    def _wait(self) -> tuple[Mask, Indices]:
        """Return the places that the pod would fit if their pods had ended, and the pods that have to end there."""
        what_if, request = WhatIf(self._fleet, self._rows, self._placed), self._pod.request
        cards = np.array([len(charge.grants) for charge in self._placed.charges], np.int64)
        ending_pods = np.flatnonzero(self._ends < ending.NEVER)
        gone = ending_pods[cards[ending_pods] > 0]
        self._take(what_if, gone)
        # A node may have a hundred pods without cards, which seldom are in the way.
        fits = what_if.fits(request, self._policy)
        without_cards = ending_pods[(cards[ending_pods] == 0) & ~fits[self._places[ending_pods]]]
        self._take(what_if, without_cards)
        fits, gone = what_if.fits(request, self._policy), np.concatenate((gone, without_cards))
        # Pods with fewer cards are reprieved first, so that few pods remain to be waited for.
        last_first = gone[np.lexsort((cards[gone], -self._ends[gone]))]
        potential = last_first[fits[self._places[last_first]]]
        return fits, what_if.reprieve(self._places, potential, request, self._policy)

    def _take(self, what_if: WhatIf, pods: Indices) -> None:
        for turn in one_pod_per_place(pods, self._places):
            what_if.take(self._places[turn], turn)

    def best(self) -> NodeReservation | None:
        """Return the reservation of the best node; None if no node fits."""
        places = np.flatnonzero(self._fits).tolist()
        if not places:
            return None
        last = np.zeros(len(self._rows), np.int64)
        np.maximum.at(last, self._places[self._awaited], self._ends[self._awaited])
        pods = np.bincount(self._places[self._awaited], minlength=len(self._rows))
        missing = missing_devices(self._fleet, self._pod.request)[self._rows]
        names = [self._fleet.names[row] for row in self._rows.tolist()]
        keys = [(last[at], missing[at], pods[at], names[at] in self._reserved, names[at], at) for at in places]
        place = min(keys)[-1]
        row, request = int(self._rows[place]), self._pod.request
        awaited = self._awaited[self._places[self._awaited] == place]
        what_if = WhatIf(self._fleet, self._rows[[place]], self._placed)
        for pod in awaited:
            what_if.take(np.array([0]), np.array([pod]))
        what_if.let_go(0, awaited)
        charges = [self._placed.charges[pod] for pod in awaited.tolist()]
        grants = self._policy.choose(what_if.fleet, 0, request)
        # The Node's sums of devices are freed together with the devices: they count if nothing else is missing.
        lacking = lacking_resources(self._fleet, row, request)
        others = tuple(amount for amount in lacking if not is_device(amount[0], self._fleet.kinds))
        return NodeReservation(
            nominee=Placement(pod=self._pod, node=self._fleet.names[row], grants=grants).charge,
            request=request,
            awaited=tuple(sorted(charges, key=lambda charge: charge.pod)),
            ends=max((charge.ends for charge in charges), default=0),
            placed=self._on_nodes[place],
            devices=tuple(self._devices(row, grants, charges)),
            missing=others if others or missing_devices(self._fleet, request)[row] else lacking,
        )

    def _devices(self, row: int, grants: Sequence[Grant], awaited: Sequence[Charge]) -> Iterator[FreeDevices]:
        """Yield the free amount for each part.

        If there are enough devices, but not where the part needs them (one NUMA node, one partition), only the devices
        that the part would get are counted.
        """
        fleet, request = self._fleet, self._pod.request
        passes = all(
            bool(filter_.passes(fleet, request)[row]) for filter_ in self._policy.local if filter_.NAME != RESOURCES
        )
        scattered = not passes and not missing_devices(fleet, request)[row]
        for part in request.devices.parts:
            free = int(_free_devices(fleet, request, part)[row])
            if any(part.type in charge.unknown for charge in awaited):
                free = 0
            elif scattered:
                held = {grant.minor for charge in awaited for grant in charge.grants if grant.type == part.type}
                free = sum(grant.type == part.type and grant.minor not in held for grant in grants)
            yield FreeDevices(type=part.type, free=min(free, part.count), requested=part.count)


def lacking_resources(fleet: Fleet, row: int, request: PodRequest) -> tuple[tuple[str, int], ...]:
    """Return each resource of the Node that a row has too little of, with the missing amount."""
    by_class = {name for name, rows in extended_resources.rows_by_class(fleet, request).items() if rows[row]}
    missing = ((name, int(amount - fleet.left(name)[row])) for name, amount in request.resources)
    return tuple((name, amount) for name, amount in missing if amount > 0 and name not in by_class)
