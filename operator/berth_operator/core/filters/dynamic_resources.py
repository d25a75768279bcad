"""No DeviceClass provides an extended resource of the pod on the node, because Berth does not allocate ResourceClaims.

As in kube-scheduler's DynamicResources, a resource in the node's allocatable comes from a device plugin, whatever
DeviceClasses exist.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "dynamic-resources"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_ALLOCATABLE | Change.NODE_ADDED | Change.DEVICE_CLASS


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where the pod needs no ResourceClaim."""
    mask = fleet.present
    for _, needs_claim in _needing_claims(fleet, request):
        mask = mask & ~needs_claim
    return mask


def explain(fleet: Fleet, request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count the rows by the first resource that only a DeviceClass provides."""
    counts: Counter[str] = Counter()
    left = rejected.copy()
    for name, needs_claim in _needing_claims(fleet, request):
        source = f"DeviceClass {fleet.device_classes[name]}"
        reason = f"node(s) provide {name} only by {source} (Berth allocates no ResourceClaims)"
        counts[reason] += int((left & needs_claim).sum())
        left &= ~needs_claim
    return +counts


def _needing_claims(fleet: Fleet, request: PodRequest) -> Iterator[tuple[str, Mask]]:
    if fleet.device_classes:
        for name, _ in request.resources:
            if name in fleet.device_classes:
                yield name, fleet.total(name) == 0
