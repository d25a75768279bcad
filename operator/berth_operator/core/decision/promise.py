"""Places for a workload's pods that do not exist yet: whether all fit now, may fit soon, or never can.

    place_pods(fleet, pods, policy)          ->  FoundPlaces: the placements, and why the first other pod has none
    why_never(fleet, pods, policy, ...)      ->  why no node could ever take one of the pods; empty if one could
    has_capacity(fleet, pods, policy, gone)  ->  whether they may fit once these pods have ended
    is_doubtful(fleet, request, place, ...)  ->  whether a promised place has to be searched again

The pods are decided one after another by the same `decide` as any pod, and members of a pod group by `decide_gang`. The
Fleet stays unchanged. The caller promises the placements (docs/decisions/0034-promised-places.md).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from berth_api.objects.leader_lease import MAX_PLACES, MAX_PROMISED_GANGS
from berth_api.request import AMOUNTS, PLUGIN_UNIT, is_device
from berth_api.resources import CPU, MEMORY
from berth_api.values import keys
from berth_operator.core.decision import capacity, cycle
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.gang import Gang, decide_gang, place_all_that_fit, place_each, with_expected
from berth_operator.core.decision.messages import cut, invalid_request
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import settled
from berth_operator.core.decision.what_if import WhatIf, one_pod_per_place
from berth_operator.core.filters import Filter, could_pass, volume_claims
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.fleet import claim_counts, extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.kubelet_allocation import BEYOND
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.fleet.pods.placed_pods import PlacedPods
from berth_operator.core.values.charge import Charge
from berth_operator.core.values.owner import Owner
from berth_operator.core.values.request import Membership, PendingPod, PodRequest
from berth_operator.core.values.verdict import Verdict

NAMESPACE_SHARE: Final = 4
"""Gangs of a namespace get at most this part, a quarter, of all places, and of all gangs with places."""
FEW: Final = 8
"""Places that a namespace may have even if no object confirms its pods and the fleet is small."""
NO_PLACES_LEFT: Final = "not evicting pods for pods that come later: too few of their places may be kept."
KIND: Final = "Workload"
"""The kind of the owner of places that are promised to Kueue's workloads."""
_SIZES: Final = (CPU, MEMORY)
"""Resources of a Node that do not come and go, unlike device plugins' resources."""

PolicyOf = Callable[[str], Policy]
"""Returns the policy of a scheduler name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlaces:
    """The places found for the pods of a workload."""

    placed: tuple[Placement, ...] = ()
    why: Failure | None = None
    """Why the first other pod has no place; None if all have one."""


def promised(placement: Placement, key: str, *, since: int, until: int) -> Charge:
    """Return the capacity kept for a pod. No pod ignores it only because of a higher priority.

    The caller gives it up where a pod of higher priority fits nowhere else.

    Args:
        placement: the place.
        key: namespace/name of a workload, or the key of a gang.
        since: since when it is kept, in seconds since 1970.
        until: until when; `ending.UNKNOWN` if that is not known yet.
    """
    kind, _, name = key.rpartition(" ")
    owner = Owner(kind=kind or KIND, name=keys.split(name)[1])
    kept = replace(placement.charge, gang=None, alike_key=None, priority=BEYOND, owner=owner)
    return replace(kept, started=since, ends=until)


def is_promised(charge: Charge) -> bool:
    """Return whether a nominee is a promised place."""
    return charge.priority == BEYOND and bool(charge.workload)


def places_allowed(gang: Membership, others: Mapping[Membership, int], *, of_workloads: int = 0) -> int:
    """Return how many places may be kept for pods that come after the members of a gang.

    Pods may state any size, so no namespace gets all places.

    Args:
        gang: the gang.
        others: other gangs -> number of places that are kept for them.
        of_workloads: number of places that are promised to workloads of Kueue.
    """
    namespace = keys.split(gang.group)[0]
    in_namespace = [places for other, places in others.items() if keys.split(other.group)[0] == namespace]
    if len(others) >= MAX_PROMISED_GANGS or len(in_namespace) >= MAX_PROMISED_GANGS // NAMESPACE_SHARE:
        return 0
    of_all = of_workloads + sum(others.values())
    return max(0, min(MAX_PLACES - of_all, MAX_PLACES // NAMESPACE_SHARE - sum(in_namespace)))


def unconfirmed_allowed(fleet: Fleet, places: Sequence[Charge], others: Sequence[Charge]) -> int:
    """Return how many of the first places may be kept for pods that no object confirms.

    Anybody may write a size on a pod, and no quota counts places. So the cards of a namespace's places are a part of
    the cards that the fleet has. A few places are always allowed, because a group may need all nodes of a small fleet.

    Args:
        fleet: the fleet.
        places: the places that were found.
        others: the places that are kept for other gangs of the namespace.
    """
    cards = [{(grant.type, grant.minor) for grant in place.grants} for place in (*others, *places)]
    types = {device_type for of_place in cards for device_type, _ in of_place}
    total = sum(int(fleet.cards[device_type].present[fleet.present].sum()) for device_type in types)
    # A device plugin's cards may not be known.
    used = np.cumsum([max(1, len(of_place)) for of_place in cards])
    fitting = int(np.count_nonzero(used <= total // NAMESPACE_SHARE))
    return max(0, max(fitting, FEW) - len(others))


def exceeds(fleet: Fleet, gang: Gang, places: int) -> bool:
    """Return whether more pods that come after the members of a gang need a place than may be kept."""
    return len(with_expected(fleet, gang).members) - len(gang.members) > places


# --- where ----------------------------------------------------------------------------------------------------


def place_pods(fleet: Fleet, pods: Sequence[PendingPod], policy: PolicyOf, *, partly: bool = False) -> FoundPlaces:
    """Place all pods or, with `partly`, as many as fit. The Fleet is left unchanged."""
    # Decided together: members of one gang, and pods of none, by scheduler.
    units: dict[tuple[str, str], list[PendingPod]] = {}
    for pod in pods:
        units.setdefault((pod.scheduler, "" if pod.gang is None else pod.gang.key), []).append(pod)
    placed: list[Placement] = []
    whys: list[Failure] = []
    try:
        for unit in units.values():
            placements, why = _place_unit(fleet, unit, policy(unit[0].scheduler), partly=partly)
            whys += [why] if why is not None else []
            if whys and not partly:
                break
            for placement in placements:
                fleet.charge(placement.charge)
                placed.append(placement)
    finally:
        for placement in placed:
            fleet.release(placement.pod.uid)
    return FoundPlaces(placed=tuple(placed), why=whys[0] if whys else None)


def _place_unit(
    fleet: Fleet, pods: Sequence[PendingPod], policy: Policy, *, partly: bool
) -> tuple[Sequence[Placement], Failure | None]:
    """Return the placements of pods that are decided together, and why the first other one has none."""
    if pods[0].gang is not None:
        gang = Gang(membership=pods[0].gang, minimum=len(pods), members=tuple(pods))
        members = decide_gang(fleet, gang, policy)
        if not isinstance(members, Failure):
            return members, None
        return (place_all_that_fit(fleet, gang, policy, fleet.present) if partly else ()), members
    if len(pods) > 1:
        placements, why = place_each(fleet, pods, policy, partly=partly)
        if why is not None:
            found = f"{len(placements)} of {len(pods)} pods have a place; next pod: " if placements else ""
            why = replace(why, message=cut(f"{found}{why.message}"))
        return placements, why
    single = decide(fleet, pods[0], policy)
    return ((), single) if isinstance(single, Failure) else ((single,), None)


def undecidable(fleet: Fleet, pods: Sequence[PendingPod]) -> str:
    """Return why places of pods cannot be promised before the pods exist; empty if they can."""
    for request in {pod.request: None for pod in pods}:
        if claim_counts.needs_devices(fleet, request):
            return "its pods use ResourceClaims, whose devices are chosen when the pods exist"
        if volume_claims.passes(fleet, request) is not fleet.present:
            return "its pods use PersistentVolumeClaims that are not ready, so places are chosen when the pods exist"
    return ""


# --- when -----------------------------------------------------------------------------------------------------


def has_capacity(fleet: Fleet, pods: Sequence[PendingPod], policy: PolicyOf, gone: Sequence[Charge]) -> bool:
    """Return whether the pods may fit once the pods of `gone` have ended; False only if they certainly do not.

    It counts for each class alone how many pods each node could take, as `capacity` does.
    """
    rows = np.unique([fleet.rows[charge.node] for charge in gone]).astype(np.intp)
    with fleet.without(fleet.lower_priority_nominees("", min(pod.priority for pod in pods))):
        placed = PlacedPods.of(fleet, gone)
        what_if, places = WhatIf(fleet, rows, placed), np.searchsorted(rows, placed.rows)
        for turn in one_pod_per_place(np.arange(len(gone)), places):
            what_if.take(places[turn], turn)
        for (request, scheduler), count in Counter((pod.request, pod.scheduler) for pod in pods).items():
            own = policy(scheduler)
            lasting = settled(fleet, request, own, forever=True)
            now = capacity.of_class(fleet, request, lasting & cycle.feasible(fleet, request, own.local))
            later = capacity.of_class(what_if.fleet, request, lasting[rows] & what_if.fits(request, own))
            if now.sum() - now[rows].sum() + later.sum() < count:
                return False
    return True


# --- never ----------------------------------------------------------------------------------------------------


def why_never(fleet: Fleet, pods: Sequence[PendingPod], policy: PolicyOf, *, fleet_grows: bool) -> str:
    """Return why no node could ever take one of the pods; empty if one could.

    Only the size of nodes and the models and numbers of their cards count. Changeable state is ignored: pods, cordons,
    taints, labels, silent agents, and failed cards. If the fleet grows, only requests that are invalid on any node
    count.
    """
    for pod in {(pod.request, pod.scheduler, pod.error): pod for pod in pods}.values():
        if pod.error:
            return invalid_request(pod.error)
        order = policy(pod.scheduler).filters_of(pod.request)
        refused = cycle.refusing(fleet, pod.request, order) is not None
        if refused or not (fleet_grows or _could_ever(fleet, pod.request, order).any()):
            return cycle.failure(fleet, pod.request, order).message
    return ""


def _could_ever(fleet: Fleet, request: PodRequest, order: Sequence[Filter]) -> Mask:
    mask = fleet.present.copy()
    if not mask.any():
        return np.ones_like(mask)
    for name, amount in request.resources:
        if name in _SIZES:
            mask &= fleet.total(name) >= amount
    for filter_ in order:
        if filter_.NAME == DeviceFilter.NAME and request.devices:
            mask &= could_pass(filter_, fleet, request) | _may_change(fleet, request)
    return mask


def _may_change(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows whose cards may be others soon: broken, cut in another way, or not known yet."""
    parts = request.devices.parts
    if request.devices.names_cards or any(part.unit not in (AMOUNTS, PLUGIN_UNIT) for part in parts):
        return np.ones_like(fleet.present)
    mask = ~fleet.has_device & fleet.starting
    for name in fleet.resources:
        if is_device(name, fleet.kinds):
            mask |= ~fleet.has_device & (fleet.total(name) > 0)
    for part in parts:
        cards = fleet.cards[part.type]
        mask |= (cards.present & ~cards.announced).any(axis=1) | (cards.unknown > 0)
    return mask if fleet.has_device.any() else np.ones_like(mask)


# --- promised places ------------------------------------------------------------------------------------------


def _is_overcommitted(fleet: Fleet, row: int, place: Charge) -> bool:
    """Return whether pods request more of a node's resources than it has.

    Of a resource that the node does not have, pods have it by class, unless the place is by name.
    """
    short = fleet.allocatable[:, row] < fleet.requested[:, row]
    by_name = {name for name, _ in place.resources} - place.claims.by_class
    needed = [index for name, index in fleet.resources.items() if name in by_name]
    return bool((short & (fleet.allocatable[:, row] > 0)).any() or short[needed].any())


def is_doubtful(fleet: Fleet, request: PodRequest, place: Charge, policy: Policy) -> bool:
    """Return whether a promised place may be lost, so that it has to be searched again."""
    row = fleet.rows.get(place.node)
    if row is None:
        return True
    without_grants = extended_resources.rows_without_grants(fleet, request)
    if request.devices and not (fleet.fresh[row] or (without_grants is not None and without_grants[row])):
        return True
    lasting = [
        filter_
        for filter_ in policy.filters_of(request)
        if filter_.TRAITS.one_node and not filter_.TRAITS.capacity and filter_.VERDICT is Verdict.UNRESOLVABLE
    ]
    if not cycle.feasible(fleet, request, lasting)[row] or _is_overcommitted(fleet, row, place):
        return True
    for device_type in {grant.type for grant in place.grants}:
        # A used card is broken, or more is charged to it than it has.
        cards = fleet.cards[device_type]
        too_much = (cards.total[:, row] < cards.used[:, row]).any(axis=0)
        if ((cards.users[row] > 0) & (too_much | ~cards.announced[row])).any():
            return True
    return False
