"""The pod's ResourceClaims exist and can be used, and so do the DeviceClasses that they name.

The reasons are kube-scheduler's (DynamicResources). An invalid claim excludes all nodes until the claim changes.
"""

from typing import Final

import numpy as np

from berth_operator.core.claims.objects.status import ClaimState
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import claim_counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.pod_claims import ClaimUse
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "resource-claims"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.RESOURCE_CLAIM | Change.DEVICE_CLASS
TRAITS: Final = Traits(
    plugin="DynamicResources",
    of_pod=True,
    one_node=False,
    needed="the devices that a placement chooses for claims must exist",
)
MAX_RESERVED: Final = 256
"""Pods for which a claim can be reserved."""
IN_USE: Final = "resourceclaim in use"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return all rows, or none if a claim cannot be used."""
    if request.claims and problem(fleet, request):
        return np.zeros_like(fleet.present)
    return fleet.present


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield the problem of the first claim that cannot be used for all rows."""
    yield problem(fleet, request), rejected


def problem(fleet: Fleet, request: PodRequest) -> str:
    """Return the problem of the first claim that cannot be used; empty if all can."""
    for use in request.claims:
        if not use.claim:
            made_of = f"; check that ResourceClaimTemplate {use.template} exists" if use.template else ""
            return f'pod "{use.pod}": ResourceClaim not created yet{made_of}'
        claim, name = fleet.claims.claims.get(use.claim), use.claim.partition("/")[2]
        if claim is None:
            return f'could not find ResourceClaim "{use.claim}"'
        if claim.deleting:
            return f'resourceclaim "{name}" is being deleted'
        if use.owner and claim.owner != use.owner:
            return f"ResourceClaim {use.claim} was not created for Pod {use.pod} (Pod is not owner)"
    # Only once all of them are valid, as in kube-scheduler.
    for use in request.claims:
        claim = fleet.claims.claims[use.claim]
        if claim.allocation:
            if len(claim.reserved_for) >= MAX_RESERVED and not _may_be_reserved_for(fleet, claim, use):
                return IN_USE
            continue
        if fleet.claims.supply.is_assumed(use.claim):
            return f"resource claim {use.claim} is in the process of being allocated"
        for choice in (choice for alternatives in claim.claim.requests for choice in alternatives.choices):
            if choice.device_class not in fleet.claims.classes:
                return f"request {choice.full_name}: device class {choice.device_class} does not exist"
    return claim_counts.refusal(fleet, request)


def _may_be_reserved_for(fleet: Fleet, claim: ClaimState, use: ClaimUse) -> bool:
    """Return whether a claim may be reserved for a waiting pod of the class already, as after a Binding that failed.

    If pods share the claim, the class does not show which of them has the reservation. The API server's answer to the
    reservation then refuses the others before their Binding.
    """
    if use.owner:
        return use.owner in claim.reserved_for
    return not fleet.claims.own_consumers(claim) <= fleet.charges.keys()
