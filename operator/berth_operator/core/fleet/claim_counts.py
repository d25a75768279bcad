"""The claims of a pod, and the rows that may have enough devices for them: array expressions over counts by node."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from berth_api.values.selectors import Requirement
from berth_operator.core.claims import matching
from berth_operator.core.claims.errors import AllocationError
from berth_operator.core.claims.nodes import NAME
from berth_operator.core.claims.plans import MAX_DEVICES
from berth_operator.core.claims.requests import ALL, Request
from berth_operator.core.claims.selectors import compile_selector
from berth_operator.core.claims.slices import Device
from berth_operator.core.claims.status import ClaimState
from berth_operator.core.fleet import node_terms
from berth_operator.core.fleet.claims.answers import Counts, DeviceKind
from berth_operator.core.fleet.claims.withheld import NOTHING_HELD
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.held_devices import held_devices
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import NodeTerm, PodRequest

EVALUATION: Final = 4
"""What evaluating the selectors of a device costs, in devices that are looked at."""


def states(fleet: Fleet, request: PodRequest) -> list[ClaimState]:
    """Return the pod's claims that exist, in the order of its spec."""
    known = (fleet.claims.claims.get(use.claim) for use in request.claims)
    return [each for each in known if each is not None]


def unallocated(fleet: Fleet, request: PodRequest) -> list[ClaimState]:
    """Return the pod's claims for which devices have to be chosen."""
    return [each for each in states(fleet, request) if not each.allocation]


def usable_rows(fleet: Fleet, claim: ClaimState) -> Mask:
    """Return the rows where an allocated claim can be used."""
    if claim.selector is None:
        return fleet.present
    return node_terms.any_of(fleet, map(_term, claim.selector))


def _term(requirements: Sequence[Requirement]) -> NodeTerm:
    return NodeTerm(
        labels=tuple(each for each in requirements if each.key != NAME),
        names=tuple(each for each in requirements if each.key == NAME),
    )


def rows_with_devices(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that may have enough devices for the claims that are not allocated yet.

    Rows on which a search found nothing are left out, and all of them if the work about claims is used up.
    """
    claims = unallocated(fleet, request)
    mask = fleet.present.copy() if claims else fleet.present
    wanted: Counter[DeviceKind] = Counter()
    for state in claims:
        for alternatives in state.claim.requests:
            choices = [(kind_of(fleet, each), each.count) for each in alternatives.choices]
            mask &= np.logical_or.reduce([_enough(fleet, *each) for each in choices])
            wanted.update(dict(choices) if not alternatives.prioritized else {})
    for kind, amount in wanted.items():
        if not (kind.wants_all or kind.admin):
            counts = _counted(fleet, kind)
            mask &= counts.shared | (counts.devices >= amount)
    if claims:
        refused = [fleet.rows[each] for each in refusals(fleet, request) if each in fleet.rows]
        mask[refused] = False
        if fleet.claims.supply.work.is_over():
            mask[:] = False
    return mask


def refusals(fleet: Fleet, request: PodRequest) -> dict[str, str]:
    """Return why a search found nothing, by node."""
    return fleet.claims.supply.refusals(key_of(fleet, request)).by_node


def refusal(fleet: Fleet, request: PodRequest) -> str:
    """Return what is wrong with a claim or a class of a request on every node; empty if nothing is known."""
    if not unallocated(fleet, request):
        return ""
    return fleet.claims.supply.refusals(key_of(fleet, request)).everywhere


def key_of(fleet: Fleet, request: PodRequest) -> tuple[PodRequest, tuple[str, ...]]:
    """Return what a search on a node depends on, apart from the node."""
    return request, tuple(each.uid for each in states(fleet, request))


def kind_of(fleet: Fleet, request: Request) -> DeviceKind:
    """Return what a request wants of each device."""
    device_class = fleet.claims.classes.get(request.device_class)
    selectors = (() if device_class is None else device_class.selectors, request.selectors)
    return DeviceKind(selectors=selectors, wants_all=request.mode == ALL, admin=bool(request.admin))


def _enough(fleet: Fleet, kind: DeviceKind, amount: int) -> Mask:
    mask: Mask = _counted(fleet, kind).devices >= (1 if kind.wants_all else amount)
    return mask


def _counted(fleet: Fleet, kind: DeviceKind) -> Counts:
    """Return the counts of a kind, up to date as far as there is work left."""
    supply = fleet.claims.supply
    counts = supply.counts(kind, len(fleet.names))
    if counts.stale is None:
        counts.stale = set(fleet.rows)
    while counts.stale and not supply.work.is_over():
        _count(fleet, counts.stale.pop(), kind, counts)
    return counts


def _count(fleet: Fleet, node: str, kind: DeviceKind, counts: Counts) -> None:
    if (row := fleet.rows.get(node)) is None:
        return
    devices = fleet.claims.supply.on(node, fleet.labels[row])
    candidates = devices.pools.devices if kind.wants_all else devices.own
    fleet.claims.supply.work.spend(len(candidates))
    held = held_devices(fleet, node, devices) if candidates and not kind.admin else NOTHING_HELD
    matched = devices.pools.selected.of(kind.selectors)
    number, shared = 0, False
    for device in candidates:
        if not device.nodes.name:
            # Of a pool for many nodes: counting it for each of them would take too long.
            number, shared = MAX_DEVICES, True
        # The search reports selectors that fail.
        elif device.nodes.name == node and device.id not in held and matches(fleet, kind, matched, device) is not False:
            number, shared = number + 1, shared or device.shareable
    counts.devices[row], counts.shared[row] = number, shared


def matches(fleet: Fleet, kind: DeviceKind, matched: dict[Device, bool], device: Device) -> bool | None:
    """Return whether a device matches a kind's selectors, of which `matched` has what is known; None if they fail."""
    known = matched.get(device)
    if known is None:
        fleet.claims.supply.work.spend(EVALUATION)
        try:
            of_class, of_request = kind.selectors
            known = matched[device] = matching.matches(
                device, of_class, compile_selector, "class"
            ) and matching.matches(device, of_request, compile_selector, "claim")
        except AllocationError:
            return None
    return known
