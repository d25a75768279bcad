"""Search the devices of Berth's own pools that a pod's ResourceClaims get on a node.

    claim_counts.rows_with_devices(fleet, request)    ->  the rows that may have enough, by counts
    claim_choice.choose(fleet, row, pod, grants)      ->  PodClaims, or None if the search on the row found nothing
    claim_choice.choose_together(fleet, row, pods)    ->  the PodClaims of several pods, or None

The allocator of `core.claims` does the search. It runs only on the row with the highest score. If it finds nothing, it
runs on the next row. The reason is cached for the row until something changes there.
"""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Final

from berth_api.allocation import Grant
from berth_operator.core.claims.allocation import allocator
from berth_operator.core.claims.allocation.choices import prevented
from berth_operator.core.claims.allocation.plans import Order, RequestPlan
from berth_operator.core.claims.allocation.preference import Preference
from berth_operator.core.claims.allocation.results import Allocation
from berth_operator.core.claims.bounds.errors import (
    AllocationError,
    ClaimError,
    NodeError,
    NoWorkError,
    TooMuchWorkError,
)
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.extended import RequestMapping
from berth_operator.core.claims.objects.requests import ALL
from berth_operator.core.claims.objects.slices import Device
from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.claims.pools.pools import MAX_SELECTORS
from berth_operator.core.fleet import claim_charges, extended_resources
from berth_operator.core.fleet.claim_counts import LOOK, key_of, kind_of, matches, refusal, states
from berth_operator.core.fleet.claims.matching import NO_MATCH
from berth_operator.core.fleet.claims.node_devices import NodeDevices
from berth_operator.core.fleet.claims.withheld import Held
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.held_devices import held_devices
from berth_operator.core.values.pod_claims import NO_POD_CLAIMS, PodClaims
from berth_operator.core.values.request import PendingPod, PodRequest

MAX_STEPS: Final = 5_000
"""Devices that a search on one node tries in an order, each as many times as it has capacities that are compared.

Devices that are certainly not allocated are left out before. Decision 33 has how long the search takes.
"""
MAX_NARROWING: Final = 2_000
"""Steps of the search that continues where the search in an order did not end."""
MAX_DOUBLINGS: Final = 2
"""How often, while the loop has nothing else to do, this bound is doubled for a search that ended at it."""
MAX_LOOKS: Final = 60_000
"""Devices that all requests of a pod compare on one node."""
LOOKS_OF_MATCH: Final = 2
LOOKS_OF_CAPACITY: Final = 5
"""How many times as long each device takes that matches a request for all devices, and each of its capacities."""
SEARCH: Final = 50
"""Work for a search in addition to the devices that it tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A node on which a pod's claims may be allocated."""

    fleet: Fleet
    node: str
    devices: NodeDevices
    held: Held
    first_fit: bool
    """Whether devices are tried in Kubernetes' order alone."""

    @property
    def allocated(self) -> Allocated:
        """Return the devices that are not free."""
        return replace(self.fleet.claims.supply.holdings.allocated, withheld=self.held.withheld)

    def order(self, plan: RequestPlan, devices: Sequence[Device]) -> list[Device]:
        """Return the devices that may be given for a request, in Kubernetes' order."""
        request = plan.request
        kind = kind_of(self.fleet, request)
        matched = self.devices.pools.selected.of(kind.selectors)
        left = []
        for device in devices:
            # In the order of the search, in which a selector may fail for a tainted device, but not for one in use.
            if device.id in self.devices.foreign or (not kind.admin and device.id in self.held):
                continue
            suits = matches(matched, device)
            if suits is None or (suits and not (device.taints and prevented(device, request))):
                left.append(device)
        self.fleet.claims.supply.work.spend(len(devices) * LOOK)
        return left


def choose(
    fleet: Fleet, row: int, pod: PendingPod, grants: Collection[Grant], *, first_fit: bool = False
) -> PodClaims | None:
    """Return the devices that the pod's claims get on a row that passed the filters; None if the search found none.

    `grants` are the cards that the pod gets by name. `first_fit`: take the first devices that fit, as kube-scheduler
    does.
    """
    if not (pod.request.claims or fleet.device_classes):
        return NO_POD_CLAIMS
    needs = _needs(fleet, row, pod)
    if not needs.claims:
        return _chosen(fleet, row, needs, ())
    # Why the search found nothing is kept for equal pods.
    node, known = fleet.names[row], fleet.claims.supply.refusals(key_of(fleet, pod.request))
    target, doublings = _target(fleet, row, grants, first_fit=first_fit), known.doublings.get(node, 0)
    try:
        _check_size(target, needs.claims)
        allocations = _allocate(target, needs.claims, doublings)
    except NoWorkError:
        return None
    except TooMuchWorkError as error:
        known.by_node[node], known.doublings[node] = str(error), doublings + 1
        fleet.claims.supply.search_ended(key_of(fleet, pod.request))
        return None
    except ClaimError as error:
        known.everywhere = str(error)
        return None
    except NodeError as error:
        known.by_node[node] = str(error)
        return None
    if allocations is None:
        known.by_node[node] = ""
        return None
    return _chosen(fleet, row, needs, allocations)


def choose_together(
    fleet: Fleet, row: int, pods: Sequence[PendingPod], elsewhere: Collection[str], *, first_fit: bool
) -> tuple[PodClaims, ...] | None:
    """Return the devices that the claims of several pods get on a row, by one search; None if it found none.

    `elsewhere` are the claims (namespace/name) that pods on other rows share with these pods, and that are allocated
    there.

    Raises:
        NoWorkError: there is no work left.
        TooMuchWorkError: the search ended at its bound.
    """
    known, needs = set(elsewhere), []
    for pod in pods:
        needs.append(_needs(fleet, row, pod, known))
        known |= {claim.key for claim in needs[-1].claims}
    target, claims = _target(fleet, row, first_fit=first_fit), [claim for of_pod in needs for claim in of_pod.claims]
    try:
        _check_size(target, claims)
    except AllocationError as error:
        # The bounds are those of one pod: without them, the claims of several pods might fit.
        raise TooMuchWorkError(str(error)) from error
    try:
        allocations = _allocate(target, claims)
    except (NoWorkError, TooMuchWorkError):
        raise
    except AllocationError:
        return None
    if allocations is None:
        return None
    left = iter(allocations)
    return tuple(_chosen(fleet, row, of_pod, tuple(islice(left, len(of_pod.claims)))) for of_pod in needs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needs:
    """What a pod needs of claims on a row."""

    pod: PendingPod
    claims: tuple[ClaimState, ...]
    """The claims that need devices. The claim for extended resources comes last."""
    reserved: tuple[str, ...]
    """namespace/name of the claims that are allocated already."""
    mappings: tuple[RequestMapping, ...]


def _needs(fleet: Fleet, row: int, pod: PendingPod, allocated: Collection[str] = ()) -> _Needs:
    """Return what a pod needs on a row. `allocated` are further claims that count as allocated."""
    extended, mappings = extended_resources.claim_on(fleet, row, pod)
    claims = states(fleet, pod.request)
    reserved = tuple(claim.key for claim in claims if claim.allocation or claim.key in allocated)
    waiting = (claim for claim in claims if claim.key not in reserved)
    return _Needs(pod=pod, claims=(*waiting, *([extended] if extended else [])), reserved=reserved, mappings=mappings)


def _chosen(fleet: Fleet, row: int, needs: _Needs, allocations: tuple[Allocation, ...]) -> PodClaims:
    """Return what a pod gets: allocations, with the cards that they are."""
    if not (needs.claims or needs.reserved):
        return NO_POD_CLAIMS
    if needs.mappings:
        allocations = (*allocations[:-1], extended_resources.of_pod(allocations[-1], needs.pod))
    node = fleet.names[row]
    cards = fleet.claims.supply.on(node, fleet.labels[row]).cards
    results = (result for allocation in allocations for result in allocation.results if not result.request.admin)
    card_matches = [cards.get(result.device.id, NO_MATCH) for result in results]
    return PodClaims(
        allocations=allocations,
        reserved=needs.reserved,
        grants=tuple(claim_charges.grants_of(fleet, node, card_matches)),
        unknown=tuple(sorted({match.unknown for match in card_matches if match.unknown})),
        mappings=needs.mappings,
    )


def may_continue(fleet: Fleet, request: PodRequest) -> bool:
    """Return whether another row may be tried after a row on which the search found nothing."""
    return not (fleet.claims.supply.work.is_over() or refusal(fleet, request))


def _target(fleet: Fleet, row: int, grants: Collection[Grant] = (), *, first_fit: bool) -> _Target:
    node = fleet.names[row]
    devices = fleet.claims.supply.on(node, fleet.labels[row])
    held = held_devices(fleet, node, devices, grants)
    return _Target(fleet=fleet, node=node, devices=devices, held=held, first_fit=first_fit)


def _check_size(target: _Target, claims: Sequence[ClaimState]) -> None:
    """Compare the number of requests with what may be compared before a search.

    Raises:
        ClaimError: there are too many selections of devices.
        NodeError: there are too many requests for the devices of the node.
    """
    pools, looks = target.devices.pools, 0
    choices = [choice for state in claims for alternatives in state.claim.requests for choice in alternatives.choices]
    if (kinds := len({kind_of(target.fleet, request).selectors for request in choices})) > MAX_SELECTORS:
        raise ClaimError(f"the pod's claims have {kinds} different selections of devices; allowed are {MAX_SELECTORS}")
    for request in choices:
        looks += len(pools.devices)
        if request.mode == ALL:
            # The capacity of each device for a request for all of them is compared before the search begins.
            matched = pools.selected.of(kind_of(target.fleet, request).selectors)
            wanted = (device for device in pools.devices if matched.get(device) is not False)
            looks += sum(LOOKS_OF_MATCH + LOOKS_OF_CAPACITY * len(device.capacity) for device in wanted)
    target.fleet.claims.supply.work.spend(len(choices))
    if looks > MAX_LOOKS:
        raise NodeError(f"the pod's claims have too many requests for {len(pools.devices)} devices on one node")


def _allocate(target: _Target, claims: Sequence[ClaimState], doublings: int = 0) -> tuple[Allocation, ...] | None:
    """Return the devices that claims get, by a search; None if it found none.

    The search's bounds are doubled `doublings` times. After a doubling, the search in an order is left out, because it
    can only have ended at its own bound before. Each doubling changes to the other order of devices: devices that one
    order finds late the other often finds soon.

    Raises:
        AllocationError: the search would take too long before its first step, did not end, or found what cannot be
            written.
    """
    supply, pools = target.fleet.claims.supply, target.devices.pools
    try:
        preferences: list[Preference] = []

        def prefer() -> Order:
            preference = Preference(pools, target.allocated, target.devices.links)
            preferences.append(preference)

            def order(plan: RequestPlan, devices: Sequence[Device]) -> Sequence[Device]:
                return preference.order(plan, target.order(plan, devices))

            return order

        # Shares of other claims have other IDs, and equal decisions equal ones.
        numbers, uids = count(), "/".join(state.uid for state in claims)

        def new_share_id() -> str:
            return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{uids}/{next(numbers)}"))

        allocations = allocator.allocate(
            [state.claim for state in claims],
            pools=pools,
            classes=target.fleet.claims.classes,
            allocated=target.allocated,
            new_share_id=new_share_id,
            order=target.order,
            prefer=None if target.first_fit == (doublings % 2 == 0) else prefer,
            max_steps=0 if doublings else MAX_STEPS,
            max_narrowing=MAX_NARROWING << doublings,
            spend=supply.work.spend,
        )
        supply.work.spend(sum(preference.looks for preference in preferences))
        for allocation in allocations or ():
            # Also with admin access.
            for result in allocation.results:
                if result.device.id in target.devices.foreign:
                    raise NodeError(
                        f"claim {allocation.claim}: device {result.device.id} is not of a pool in claims.pools"
                    )
            allocation.written()  # raises an error if it cannot be
        return allocations
    finally:
        supply.work.spend(SEARCH + len(pools.devices) * LOOK)
