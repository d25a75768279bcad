"""A scenario, as upstream's program and Berth's read it, and Berth's result for it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from berth_operator.core.claims.allocation.allocator import allocate
from berth_operator.core.claims.allocation.preference import Preference
from berth_operator.core.claims.bounds.errors import AllocationError, InvalidPoolsError, TooMuchWorkError
from berth_operator.core.claims.objects import requests, slices
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.claims.objects.features import Features
from berth_operator.core.claims.objects.nodes import TargetNode
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.claims.pools.pools import SliceIndex, gather
from berth_operator.core.fleet import claim_choice

Object = Mapping[str, Any]

GATES: Final = {
    "AdminAccess": "admin_access",
    "PrioritizedList": "prioritized_list",
    "PartitionableDevices": "partitionable_devices",
    "DeviceTaints": "device_taints",
    "DeviceBindingAndStatus": "binding_conditions",
    "ConsumableCapacity": "consumable_capacity",
    "FractionalCapacityRange": "fractional_ranges",
}
"""Upstream's names of features, and ours."""
SHARE_ID: Final = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"
MAX_STEPS: Final = 300_000


UNLIMITED: Final = ((MAX_STEPS, MAX_STEPS),)
BOUNDED: Final = (
    (claim_choice.MAX_STEPS, claim_choice.MAX_NARROWING),
    *((0, claim_choice.MAX_NARROWING << doublings) for doublings in range(1, claim_choice.MAX_DOUBLINGS + 1)),
)
"""The bounds of the operator's attempts, each after one that ended at its bound."""


def outcome(
    scenario: Object,
    *,
    preferred: bool = False,
    bounds: Sequence[tuple[int, int]] = UNLIMITED,
) -> dict[str, Any]:
    """Return what our allocator does, in the form of upstream's program: results, or an error.

    It takes the first devices that fit, or those that it prefers. `bounds` are those of each attempt, in steps.
    """
    message = ""
    for attempt, bound in enumerate(bounds):
        try:
            # Each attempt changes to the other order of devices, as the operator's do.
            return _outcome(scenario, *bound, preferred=preferred ^ (attempt % 2 == 1))
        except TooMuchWorkError as error:
            message = str(error)
    return {"results": None, "error": message}


def _outcome(scenario: Object, max_steps: int, max_narrowing: int, *, preferred: bool) -> dict[str, Any]:
    features = Features(**{ours: theirs in scenario["features"] for theirs, ours in GATES.items()})
    metadata = scenario["node"]["metadata"]
    node = TargetNode(name=metadata["name"], labels=metadata.get("labels") or {})
    classes = [requests.read_class(each) for each in scenario["classes"] or ()]
    claims = [requests.read_claim(each) for each in scenario["claims"] or ()]
    pools = gather(SliceIndex.of(map(slices.read, scenario["slices"] or ())), node, features)
    allocated = held(scenario["held"])
    try:
        allocations = allocate(
            claims,
            pools=pools,
            classes={each.name: each for each in classes},
            allocated=allocated,
            new_share_id=lambda: SHARE_ID,
            features=features,
            prefer=(lambda: Preference(pools, allocated).order) if preferred else None,
            max_steps=max_steps,
            max_narrowing=max_narrowing,
        )
        if allocations is None:
            return {"results": None}
        bindings = features.binding_conditions
        return {"results": [each.written(binding_conditions=bindings) for each in allocations]}
    except InvalidPoolsError as error:
        return {"results": None, "error": str(error), "oneNode": True}
    except TooMuchWorkError:
        raise
    except AllocationError as error:
        return {"results": None, "error": str(error)}


def held(listed: list[Object]) -> Allocated:
    """Return what is allocated already."""
    devices, shared = set(), set()
    capacity: dict[DeviceID, dict[str, int]] = {}
    for each in listed:
        device = DeviceID(each["driver"], each["pool"], each["device"])
        only_capacity = each.get("capacityOnly", False)
        if "shareID" in each:
            shared.add(device)
        elif not only_capacity:
            devices.add(device)
        if only_capacity or each.get("capacity"):
            sums = capacity.setdefault(device, {})
            for name, amount in (each.get("capacity") or {}).items():
                sums[name] = sums.get(name, 0) + ExactQuantity.parse(amount).amount
    return Allocated(devices=devices, shared=shared, capacity=capacity)


def same(ours: Object, theirs: Object) -> bool:
    """Return whether two outcomes are equal; of errors only whether they concern one node alone."""
    if theirs.get("error") or ours.get("error"):
        kinds = [(bool(each.get("error")), bool(each.get("oneNode"))) for each in (ours, theirs)]
        return kinds[0] == kinds[1]
    return bool(ours["results"] == theirs["results"])


def kind(outcome: Object) -> str:
    """Return what came of a scenario: found, none or error."""
    if outcome.get("error"):
        return "error"
    return "none" if outcome["results"] is None else "found"


def subrequests(scenario: Object, outcome: Object) -> list[int]:
    """Return, for each request of each claim with `firstAvailable`, the place of the subrequest that was taken."""
    places = []
    for claim, allocation in zip(scenario["claims"], outcome["results"], strict=True):
        taken = {result["request"] for result in allocation["devices"].get("results", ())}
        for request in claim["spec"]["devices"]["requests"]:
            names = [f"{request['name']}/{choice['name']}" for choice in request.get("firstAvailable", ())]
            places += [place for place, name in enumerate(names) if name in taken][:1]
    return places
