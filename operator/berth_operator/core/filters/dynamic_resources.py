"""No DeviceClass provides an extended resource of the pod on the node, because Berth does not allocate ResourceClaims.

As in kube-scheduler's DynamicResources, a resource in the node's allocatable comes from a device plugin, whatever
DeviceClasses exist.
"""

from collections.abc import Iterator
from typing import Final

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "dynamic-resources"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_ALLOCATABLE | Change.NODE_ADDED | Change.DEVICE_CLASS
TRAITS: Final = Traits(one_node=False, needed="a pod would run without a feature that it requests")


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where the pod needs no ResourceClaim."""
    mask = fleet.present
    for _, needs_claim in _needing_claims(fleet, request):
        mask = mask & ~needs_claim
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield for each row the first resource that only a DeviceClass provides."""
    left = rejected.copy()
    for name, needs_claim in _needing_claims(fleet, request):
        source = f"DeviceClass {fleet.device_classes[name]}"
        yield f"node(s) provide {name} only by {source} (Berth allocates no ResourceClaims)", left & needs_claim
        left &= ~needs_claim


def _needing_claims(fleet: Fleet, request: PodRequest) -> Iterator[tuple[str, Mask]]:
    if fleet.device_classes:
        for name, _ in request.resources:
            if name in fleet.device_classes:
                yield name, fleet.total(name) == 0
