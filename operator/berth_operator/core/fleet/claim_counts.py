"""The claims of a pod, and the rows that may have enough devices for them: array expressions over counts by node."""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.request import CARD
from berth_operator.core.claims.allocation.plans import MAX_DEVICES
from berth_operator.core.claims.allocation.preference import MAX_RANKED
from berth_operator.core.claims.allocation.results import MAX_SUBREQUESTS
from berth_operator.core.claims.bounds.errors import AllocationError, NoWorkError
from berth_operator.core.claims.matching.selected import SelectorPair
from berth_operator.core.claims.objects import capacity
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.capacity import CapacityError
from berth_operator.core.claims.objects.nodes import NAME
from berth_operator.core.claims.objects.requests import ALL, Alternatives, Request
from berth_operator.core.claims.objects.slices import Device
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.claims.pools.stock import Stock
from berth_operator.core.fleet import extended_resources, node_terms
from berth_operator.core.fleet.claims.answers import DeviceCounts, DeviceKind
from berth_operator.core.fleet.claims.node_devices import NodeDevices
from berth_operator.core.fleet.claims.withheld import NOTHING_HELD, Held
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.held_devices import held_devices
from berth_operator.core.fleet.nodes.cards import Indices, Mask
from berth_operator.core.values.request import NodeTerm, PodRequest

Points = npt.NDArray[np.int64]

LOOK: Final = 0.25
"""Work for a device for which it is known whether it matches."""
UNLIMITED: Final = 1_000_000
"""Number of pods for which a row has devices if nothing limits them."""
KEPT: Final = 5
"""Hundredths of a device that a free device on a row is worth: pods gather where few are free."""
MAX_COUNTED: Final = 8
"""Kinds of devices of a pod that are counted. The search handles the pod's requests for other kinds."""


def states(fleet: Fleet, request: PodRequest) -> list[ClaimState]:
    """Return the pod's claims that exist, in the order of its spec."""
    known = (fleet.claims.claims.get(use.claim) for use in request.claims)
    return [state for state in known if state is not None]


def unallocated(fleet: Fleet, request: PodRequest) -> list[ClaimState]:
    """Return the pod's claims that need devices."""
    return [state for state in states(fleet, request) if not state.allocation]


def needs_devices(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether the pod has claims, or gets one for extended resources on some node."""
    return bool(request.claims or extended_resources.rows_by_class(fleet, request))


def device_classes(fleet: Fleet, request: PodRequest) -> set[str]:
    """Return the names of the DeviceClasses that devices have to be chosen of."""
    provided = {fleet.device_classes[name] for name in extended_resources.rows_by_class(fleet, request)}
    of_claims = (alternatives for state in unallocated(fleet, request) for alternatives in state.claim.requests)
    return provided | {choice.device_class for alternatives in of_claims for choice in alternatives.choices}


def is_searched(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether devices have to be chosen for a pod on some node."""
    return bool(unallocated(fleet, request) or extended_resources.rows_by_class(fleet, request))


def usable_rows(fleet: Fleet, claim: ClaimState) -> Mask:
    """Return the rows where an allocated claim can be used."""
    if claim.selector is None:
        return fleet.present
    terms = (
        NodeTerm(
            labels=tuple(requirement for requirement in requirements if requirement.key != NAME),
            names=tuple(requirement for requirement in requirements if requirement.key == NAME),
        )
        for requirements in claim.selector
    )
    return node_terms.any_of(fleet, terms)


def rows_with_devices(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that may have enough devices for the claims that are not allocated yet.

    Rows on which a search found nothing are left out. If the work about claims is used up, all rows are left out.
    """
    if not is_searched(fleet, request):
        return fleet.present
    mask, requests = fleet.present.copy(), list(_counted_requests(fleet, request))
    # For each request alone.
    for alternatives, rows in requests:
        choices = [(kind_of(fleet, choice), choice.summed_count) for choice in alternatives.choices]
        mask &= np.logical_or.reduce([_enough(fleet, kind, count) for kind, count in choices]) | ~rows
    # For all that want one kind together.
    for kind, amounts in _wanted(fleet, requests).items():
        if not kind.wants_all:
            counts = _counted(fleet, kind)
            mask &= counts.shared | (counts.devices >= amounts)
    mask[[fleet.rows[node] for node in refusals(fleet, request) if node in fleet.rows]] = False
    return np.zeros_like(mask) if fleet.claims.supply.work.is_over() else mask


def rows_with_possible_devices(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that may have enough devices for each request alone, if claims and pods held no devices."""
    mask = fleet.present
    for alternatives, rows in _counted_requests(fleet, request):
        choices = [(_counted(fleet, kind_of(fleet, choice)), choice.summed_count) for choice in alternatives.choices]
        mask = mask & (np.logical_or.reduce([counts.possible >= max(1, count) for counts, count in choices]) | ~rows)
    return mask


def rows_not_counted(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows whose devices are not counted for a request of the pod, because the work was used up."""
    mask = np.zeros_like(fleet.present)
    for alternatives, _ in _counted_requests(fleet, request):
        for choice in alternatives.choices:
            stale = _counted(fleet, kind_of(fleet, choice)).stale or ()
            mask[[fleet.rows[node] for node in stale if node in fleet.rows]] = True
    return mask


def missing_devices(fleet: Fleet, request: PodRequest) -> Points:
    """Return how many devices each row lacks at least, of the devices that claims and pods hold."""
    missing: Points = np.zeros(len(fleet.names), np.int64)
    wanted: Counter[DeviceKind] = Counter()
    for alternatives, rows in _counted_requests(fleet, request):
        choices = [(kind_of(fleet, choice), choice.summed_count) for choice in alternatives.choices]
        missing = np.maximum(missing, rows * np.minimum.reduce([_missing(fleet, *choice) for choice in choices]))
        wanted.update(dict(choices) if not alternatives.prioritized and rows is fleet.present else {})
    for kind, amount in wanted.items():
        missing = np.maximum(missing, _missing(fleet, kind, amount))
    return missing


def _missing(fleet: Fleet, kind: DeviceKind, amount: int) -> Points:
    counts = _counted(fleet, kind)
    wanted = counts.possible if kind.wants_all else np.where(counts.shared, 0, amount)
    missing = np.maximum(wanted - counts.devices, 0).astype(np.int64) * (not kind.admin)
    return np.where(counts.divided, np.minimum(missing, 1), missing)


def _wanted(fleet: Fleet, requests: Sequence[tuple[Alternatives, Mask]]) -> dict[DeviceKind, Points]:
    """Return how many devices of each kind are taken on each row, whatever alternatives there are."""
    wanted: dict[DeviceKind, Points] = {}
    for alternatives, rows in requests:
        for choice in alternatives.choices if not alternatives.prioritized else ():
            if not (kind := kind_of(fleet, choice)).admin:
                wanted[kind] = wanted.get(kind, 0) + choice.summed_count * rows.astype(np.int64)
    return wanted


def pods_per_row(fleet: Fleet, request: PodRequest, shared: Collection[str]) -> Points:
    """Return how many such pods each row has devices for, or more. `shared` claims count once for all pods."""
    everywhere = np.arange(len(fleet.names))
    return pods_once_freed(fleet, request, shared, everywhere, np.zeros_like(everywhere))


def pods_once_freed(fleet: Fleet, request: PodRequest, shared: Collection[str], rows: Indices, freed: Points) -> Points:
    """Return how many such pods some rows have devices for, or more, once so many more devices are free there."""
    pods = np.full(len(rows), UNLIMITED, np.int64)
    for kind, amounts in _wanted(fleet, list(_counted_requests(fleet, request, shared))).items():
        counts, wanted = _counted(fleet, kind), amounts[rows]
        devices: Points = np.minimum(counts.devices[rows] + freed, np.maximum(counts.possible, counts.devices)[rows])
        # One of them may free several.
        devices = np.where(counts.divided[rows] & (freed > 0), UNLIMITED, devices)
        # Who wants all devices leaves none.
        of_kind = np.minimum(devices, 1) if kind.wants_all else devices // np.maximum(wanted, 1)
        pods = np.where(counts.shared[rows] | (wanted == 0), pods, np.minimum(pods, of_kind))
    return pods


def certainly_wanted(fleet: Fleet, request: PodRequest, but: Collection[str]) -> Counter[DeviceKind]:
    """Return how many devices of each kind a pod's claims take, whichever they get, without the claims `but`."""
    wanted: Counter[DeviceKind] = Counter()
    for state in unallocated(fleet, request):
        for alternatives in state.claim.requests if state.key not in but else ():
            kind = kind_of(fleet, alternatives.choices[0])
            if not (alternatives.prioritized or kind.admin or kind.wants_all):
                wanted[kind] += alternatives.choices[0].summed_count
    return wanted


def may_have(fleet: Fleet, row: int, wanted: Mapping[DeviceKind, int]) -> bool:
    """Return whether a row may have so many devices of each kind, and of all kinds together."""
    node = fleet.names[row]
    for kind, amount in wanted.items():
        counts = _counted(fleet, kind)
        if counts.devices[row] < amount and not counts.shared[row]:
            return False
    devices = fleet.claims.supply.on(node, fleet.labels[row])
    held = held_devices(fleet, node, devices)
    fleet.claims.supply.work.spend(len(devices.own) * LOOK)
    free = [device for device in devices.own if device.id not in held]
    return sum(wanted.values()) <= len(free) or any(device.shareable for device in free)


def _counted_requests(
    fleet: Fleet, request: PodRequest, but: Collection[str] = ()
) -> Iterator[tuple[Alternatives, Mask]]:
    """Yield the first requests of the claims that are not allocated, as far as their kinds of devices are counted.

    Each comes with the rows where it is requested. Those of the claims `but` (namespace/name) are left out.
    """
    claims = (state for state in unallocated(fleet, request) if state.key not in but)
    of_claims = [(alternatives, fleet.present) for state in claims for alternatives in state.claim.requests]
    left = MAX_COUNTED
    for alternatives, rows in (*of_claims, *extended_resources.requests_by_class(fleet, request)):
        if (left := left - len(alternatives.choices)) < 0:
            return
        yield alternatives, rows


def rows_with_invalid_pools(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows of nodes with an invalid pool, as the claims that are not allocated yet find them."""
    mask = np.zeros_like(fleet.present)
    for alternatives, rows in _counted_requests(fleet, request):
        for kind in {kind_of(fleet, choice) for choice in alternatives.choices}:
            mask |= _counted(fleet, kind).invalid & rows
    return mask


def preference_points(fleet: Fleet, request: PodRequest) -> list[Points]:
    """Return, for each request with `firstAvailable`, each row's points for the first subrequest that it can meet.

    The first subrequest counts 8 points, the second 7, and so on. A subrequest counts as met where the counts of
    devices are high enough. So the search may give a row a later subrequest, but never an earlier one.
    """
    prioritized = (alternatives for alternatives, _ in _counted_requests(fleet, request) if alternatives.prioritized)
    return [_of_first_met(fleet, alternatives.choices, range(MAX_SUBREQUESTS, 0, -1)) for alternatives in prioritized]


def _of_first_met(fleet: Fleet, choices: Sequence[Request], values: Sequence[Points | int]) -> Points:
    """Return each row's value for the first subrequest that it can meet; 0 if there is none."""
    of_first: Points = np.zeros(len(fleet.names), np.int64)
    # numpy.select takes five times as long.
    for choice, value in reversed(list(zip(choices, values, strict=False))):
        of_first = np.where(_enough(fleet, kind_of(fleet, choice), choice.summed_count), value, of_first)
    return of_first


def waste(fleet: Fleet, request: PodRequest) -> list[Points]:
    """Return, for each request, its cost on each row, in hundredths of a device; 0 where nothing is allocated for it.

    It is the cost of the cheapest device there, and KEPT for each free device that the row has.
    """
    wasted = []
    for alternatives, rows in _counted_requests(fleet, request):
        counted = [_counted(fleet, kind_of(fleet, choice)) for choice in alternatives.choices]
        costs = [counts.cost + KEPT * np.minimum(counts.devices, MAX_DEVICES) for counts in counted]
        wasted.append(np.where(rows, _of_first_met(fleet, alternatives.choices, costs), 0))
    return wasted


def refusals(fleet: Fleet, request: PodRequest) -> dict[str, str]:
    """Return why a search found nothing, by node."""
    return fleet.claims.supply.refusals(key_of(fleet, request)).by_node


def nodes_not_searched(fleet: Fleet, request: PodRequest) -> set[str]:
    """Return the nodes where a search ended at its bound. It is unknown whether they have the devices."""
    if not is_searched(fleet, request):
        return set()
    known = fleet.claims.supply.refusals(key_of(fleet, request))
    return known.by_node.keys() & known.doublings.keys()


def refusal(fleet: Fleet, request: PodRequest) -> str:
    """Return what is wrong with a claim or class of a request on every node; empty if nothing is known to be wrong."""
    if not is_searched(fleet, request):
        return ""
    return fleet.claims.supply.refusals(key_of(fleet, request)).everywhere


def key_of(fleet: Fleet, request: PodRequest) -> tuple[PodRequest, tuple[str, ...]]:
    """Return what a search on a node depends on, apart from the node."""
    return request, tuple(state.uid for state in states(fleet, request))


def kind_of(fleet: Fleet, request: Request) -> DeviceKind:
    """Return what a request requires of each device."""
    device_class = fleet.claims.classes.get(request.device_class)
    selectors = (() if device_class is None else device_class.selectors, request.selectors)
    return DeviceKind(
        selectors=selectors,
        wants_all=request.mode == ALL,
        admin=bool(request.admin),
        capacity=tuple(sorted(request.capacity.items(), key=itemgetter(0))),
    )


def _enough(fleet: Fleet, kind: DeviceKind, amount: int) -> Mask:
    mask: Mask = _counted(fleet, kind).devices >= (1 if kind.wants_all else amount)
    return mask


def _counted(fleet: Fleet, kind: DeviceKind) -> DeviceCounts:
    """Return the counts of a kind, up to date as far as there is work left."""
    supply = fleet.claims.supply
    counts = supply.counts(kind, len(fleet.names))
    if counts.stale is None:
        counts.stale = set(fleet.rows)
    put_off = set()
    while counts.stale and not supply.work.is_over():
        node = counts.stale.pop()
        try:
            _count(fleet, node, kind, counts)
        except NoWorkError:
            put_off.add(node)
    counts.stale |= put_off
    return counts


def _count(fleet: Fleet, node: str, kind: DeviceKind, counts: DeviceCounts) -> None:
    if (row := fleet.rows.get(node)) is None:
        return
    devices = fleet.claims.supply.on(node, fleet.labels[row])
    candidates = devices.pools.devices if kind.wants_all else devices.own
    held = held_devices(fleet, node, devices) if candidates and not kind.admin else NOTHING_HELD
    matched = devices.pools.selected.of(kind.selectors)
    number, possible, shared, local = 0, 0, False, []
    for device in candidates:
        if not device.nodes.name:
            # Of a pool for many nodes: counting it for each of them would take too long.
            number, possible, shared = MAX_DEVICES, MAX_DEVICES, True
        # The search reports selectors that fail.
        elif device.nodes.name == node and matches(matched, device) is not False:
            possible += 1
            if device.id not in held:
                number, shared = number + 1, shared or device.shareable
                local.append(device)
    fleet.claims.supply.work.spend(1 + len(candidates) * LOOK)
    excluded, least = (0, 0.0) if kind.admin or kind.wants_all else _costs(fleet, kind, devices, held, local)
    counts.devices[row], counts.possible[row], counts.cost[row] = number - excluded, possible, round(CARD * least)
    counts.divided[row], counts.shared[row], counts.invalid[row] = excluded > 0, shared, devices.pools.invalid


def _costs(
    fleet: Fleet, kind: DeviceKind, devices: NodeDevices, held: Held, candidates: Sequence[Device]
) -> tuple[int, float]:
    """Return how many of the devices have too little left for the kind, and the least cost of the others.

    Only devices that take from counters or are shared are compared.
    """
    pools = devices.pools.by_id
    divided = (device for device in candidates if device.consumes or device.shareable)
    compared = [device for device in divided if pools[device.pool].is_of_one_node][:MAX_RANKED]
    if not compared:
        return 0, 0.0
    fleet.claims.supply.work.spend(len(compared))
    allocated = replace(fleet.claims.supply.holdings.allocated, withheld=held.withheld)
    stock = Stock(devices.pools, allocated)
    costs = [stock.cost(device, {}) for device in compared if not device.shareable or _fits(kind, device, allocated)]
    left = [cost for cost in costs if cost < math.inf]
    return len(compared) - len(left), min(left, default=0.0)


def _fits(kind: DeviceKind, device: Device, allocated: Allocated) -> bool:
    """Return whether a shared device has enough left for a kind. The search reports what cannot be computed."""
    held = allocated.capacity.get(device.id)
    try:
        amounts = capacity.consumed(device.capacity, dict(kind.capacity))
    except CapacityError:
        return True
    return amounts is not None and capacity.fits(device.capacity, amounts, () if held is None else (held,))


def matches(matched: SelectorPair, device: Device) -> bool | None:
    """Return whether a device matches the selectors of a kind; None if they fail.

    Raises:
        NoWorkError: it would have to be evaluated, and there is no work left, or the worker process does it.
    """
    try:
        return matched.matches(device, "class", "claim")
    except NoWorkError:
        raise
    except AllocationError:
        return None
