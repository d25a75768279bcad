"""The pod's ResourceClaims can be used on the node: they are allocated, or Berth's own pools may have enough devices.

The same holds for the claim for extended resources that DeviceClasses provide on the node. If Berth has no own pools,
it creates no claim for extended resources. Then a node does not pass if only a DeviceClass could provide an extended
resource of the pod, by devices that slices list for the node. As in kube-scheduler's DynamicResources, a resource in
the node's allocatable comes from a device plugin, whatever DeviceClasses exist.

An earlier attempt to bind a pod may have left the name of its deleted claim in the pod's status. Only the next claim
replaces the name, and until then kubelet starts no container. So such a pod fits only where it gets a claim.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from berth_operator.core.claims.bounds.errors import INVALID_POOLS
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import claim_counts, extended_resources
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "dynamic-resources"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = (
    Change.NODE_ALLOCATABLE
    | Change.NODE_ADDED
    | Change.NODE_LABELS
    | Change.DEVICE
    | Change.CAPACITY_FREED
    | Change.DEVICE_CLASS
    | Change.RESOURCE_CLAIM
    | Change.CLAIM_DEVICES
)
TRAITS: Final = Traits(
    plugin="DynamicResources",
    one_node=False,
    partly_unresolvable=True,
    needed="a pod would run without a feature that it requests",
)
NOT_AVAILABLE: Final = "resourceclaim not available on the node"
NOT_ALL: Final = "cannot allocate all claims"
NOT_COUNTED: Final = "node(s) have devices that are not compared with the ResourceClaims yet"
WITHOUT_CLAIM: Final = (
    "node(s) would get the pod without a ResourceClaim, but its status names one of an earlier attempt to bind it"
)


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where the pod's claims can be used, and where it needs no other ones."""
    if not (request.claims or request.names_claim or fleet.device_classes):
        return fleet.present  # most pods of most clusters
    mask = usable(fleet, request)
    if claim_counts.needs_devices(fleet, request):
        mask = mask & claim_counts.rows_with_devices(fleet, request)
    return mask


def usable(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that pass if they have devices for the claims that are not allocated yet."""
    mask = _available(fleet, request)
    for _, needs_claim in _needing_claims(fleet, request):
        mask = mask & ~needs_claim
    return mask & ~_without_claim(fleet, request) if request.names_claim else mask


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where the pod's claims could be used if no pods and no other claims held devices there.

    Allocated claims stay where they are.
    """
    mask = fleet.present
    if claim_counts.needs_devices(fleet, request):
        mask = _available(fleet, request) & claim_counts.rows_with_possible_devices(fleet, request)
    for _, needs_claim in _needing_claims(fleet, request):
        mask = mask & ~needs_claim
    return mask & ~_without_claim(fleet, request) if request.names_claim else mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield for each row why claims cannot be used, or the first resource that only a DeviceClass provides."""
    left = rejected.copy()
    if request.names_claim:
        without_claim = _without_claim(fleet, request)
        yield WITHOUT_CLAIM, left & without_claim
        left &= ~without_claim
    if claim_counts.needs_devices(fleet, request):
        for reason, rows in _of_claims(fleet, request):
            yield reason, left & rows
            left &= ~rows
    for name, needs_claim in _needing_claims(fleet, request):
        reason = (
            f"node(s) provide {name} only by DeviceClass {fleet.device_classes[name]} (Berth allocates ResourceClaims "
            "only from pools in claims.drivers or claims.pools of its configuration)"
        )
        yield reason, left & needs_claim
        left &= ~needs_claim


def _without_claim(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where the pod gets no claim for extended resources; none if kube-scheduler makes the claim."""
    mask = np.zeros_like(fleet.present) if not request.extended else fleet.present
    for by_class in extended_resources.rows_by_class(fleet, request).values():
        mask = mask & ~by_class
    return mask


def _available(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where all claims that are allocated can be used."""
    mask = fleet.present
    for claim in claim_counts.states(fleet, request):
        if claim.allocation:
            mask = mask & claim_counts.usable_rows(fleet, claim)
    return mask


def _of_claims(fleet: Fleet, request: PodRequest) -> Reasons:
    """Yield the reasons about claims; a row may have several, of which the first counts."""
    yield NOT_AVAILABLE, ~_available(fleet, request)
    enough = claim_counts.rows_with_devices(fleet, request)
    refused: dict[str, Mask] = {}
    for node, reason in claim_counts.refusals(fleet, request).items():
        if (row := fleet.rows.get(node)) is not None:
            refused.setdefault(reason or NOT_ALL, np.zeros_like(enough))[row] = True
    yield from refused.items()
    if fleet.claims.supply.work.is_over():
        yield NOT_COUNTED, ~enough
    else:
        yield INVALID_POOLS, ~enough & claim_counts.rows_with_invalid_pools(fleet, request)
        yield NOT_ALL, ~enough


def _needing_claims(fleet: Fleet, request: PodRequest) -> Iterator[tuple[str, Mask]]:
    if fleet.device_classes and not fleet.claims.own:
        for name, _ in request.resources:
            if name in fleet.device_classes:
                yield name, (fleet.total(name) == 0) & extended_resources.rows_of_class(fleet, name)
