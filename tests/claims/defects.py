"""Defects of upstream's allocator, each with its name. Version 0.37.2 fixes all defects of 0.36.3 but one.

A difference that a defect explains is counted by the defect's name. Any other difference is Berth's.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from berth_operator.core.claims.objects.amounts import MAX_INT64, UNIT, ExactQuantity

Object = Mapping[str, Any]

ROWS: Final = {
    "consumable-capacity-multi-allocatable-device-allocation-mode-all-in-use-insufficient": "All skips devices in use",
    "prioritized-list-class-config": "requests of configurations",
    "prioritized-list-device-config": "requests of configurations",
    "with-class-device-config": "requests of configurations",
    "list-attributes-disabled-match-constraint-with-lists": "attributes with lists are an error",
    "list-attributes-disabled-distinct-constraint-with-lists": "attributes with lists are an error",
}
"""Rows of the tables of 0.36.3 that expect a wrong result."""


def name_of(scenario: Object, ours: Object, theirs: Object, *, old: bool) -> str:
    """Return the name of the defect that explains a difference, from 0.36.3 if `old`; empty if none does."""
    defects = _DEFECTS | _OF_ALL if old else _OF_ALL
    return next((name for name, explains in defects.items() if explains(scenario, ours, theirs)), "")


def _admin_takes(scenario: Object, *_: Object) -> bool:
    """kubernetes#140729: admin access takes from counters and from the capacities of shared devices."""
    devices = [device for each in scenario["slices"] for device in each["spec"].get("devices", ())]
    taken = any(each.get("consumesCounters") or each.get("allowMultipleAllocations") for each in devices)
    return taken and any(request.get("adminAccess") for request in _requests(scenario))


def _configurations(_: Object, ours: Object, theirs: Object) -> bool:
    """allocator_incubating.go: compares lengths of lists, and does not clear names that are all."""
    return _without_config(ours) == _without_config(theirs)


def _formats(_: Object, ours: Object, theirs: Object) -> bool:
    """consumable_capacity.go: amounts that were rounded are written in binary units."""
    return _with_amounts(_without_config(ours)) == _with_amounts(_without_config(theirs))


def _distinct(scenario: Object, *_: Object) -> bool:
    """kubernetes#140438: `distinctAttribute` remembers one value for each name of a request."""
    distinct = any(
        "distinctAttribute" in constraint
        for claim in scenario["claims"]
        for constraint in claim["spec"]["devices"].get("constraints", ())
    )
    return distinct and any(_is_all(request) or request.get("count", 1) > 1 for request in _requests(scenario))


def _relevant_counters(scenario: Object, *_: Object) -> bool:
    """pools_incubating.go: a slice with counters is for every node, and so is its pool, incomplete or invalid."""
    return any("sharedCounters" in each["spec"] for each in scenario["slices"])


def _pools_by_name(scenario: Object, *_: Object) -> bool:
    """allocator_incubating.go: counters are kept by the pool's name, without its driver."""
    drivers = defaultdict(set)
    for each in scenario["slices"]:
        if "sharedCounters" in each["spec"]:
            drivers[each["spec"]["pool"]["name"]].add(each["spec"]["driver"])
    return any(len(names) > 1 for names in drivers.values())


def _shares_without_capacity(scenario: Object, *_: Object) -> bool:
    """allocator_incubating.go: a share without capacity of a device does not count as one, and counters are charged."""
    shares = {_key(held) for held in scenario["held"] if "shareID" in held and not held.get("capacity")}
    return any(
        (each["spec"]["driver"], each["spec"]["pool"]["name"], device["name"]) in shares
        for each in scenario["slices"]
        for device in each["spec"].get("devices", ())
        if device.get("consumesCounters")
    )


def _all_skips(scenario: Object, *_: Object) -> bool:
    """allocator_incubating.go: `All` leaves out a device whose capacity is in use, and is content with the others."""
    return any(held.get("capacity") for held in scenario["held"]) and any(map(_is_all, _requests(scenario)))


def _extreme_capacity(scenario: Object, *_: Object) -> bool:
    """consumable_capacity.go: a request that is negative or does not fit into 64 bits wraps."""
    amounts = (
        ExactQuantity.parse(amount).amount
        for request in _requests(scenario)
        for amount in request.get("capacity", {}).get("requests", {}).values()
    )
    return any(not 0 <= amount < MAX_INT64 // 2 * UNIT for amount in amounts)


def _large_count(scenario: Object, *_: Object) -> bool:
    """allocator_incubating.go: a sum of counts wraps."""
    return any(request.get("count", 1) > MAX_INT64 // 4 for request in _requests(scenario))


_DEFECTS: Final[dict[str, Callable[[Object, Object, Object], bool]]] = {
    "requests of configurations": _configurations,
    "format of consumed capacity": _formats,
    "distinctAttribute within a request": _distinct,
    "counters by the name of the pool": _pools_by_name,
    "shares without capacity": _shares_without_capacity,
    "All skips devices in use": _all_skips,
    "extreme capacity requests": _extreme_capacity,
    "large counts": _large_count,
    "slices with counters are for every node": _relevant_counters,
}
_OF_ALL: Final[dict[str, Callable[[Object, Object, Object], bool]]] = {"admin access takes": _admin_takes}


def _requests(scenario: Object) -> Iterator[Object]:
    for claim in scenario["claims"]:
        for request in claim["spec"]["devices"]["requests"]:
            yield from request.get("firstAvailable") or (request["exactly"],)


def _is_all(request: Object) -> bool:
    return request.get("allocationMode") == "All"


def _key(held: Object) -> tuple[str, str, str]:
    return held["driver"], held["pool"], held["device"]


def _without_config(outcome: Object) -> Object:
    plain = copy.deepcopy(dict(outcome))
    for allocation in plain["results"] or ():
        allocation["devices"].pop("config", None)
    return plain


def _with_amounts(outcome: Object) -> Object:
    for allocation in outcome["results"] or ():
        for result in allocation["devices"].get("results", ()):
            consumed = result.get("consumedCapacity", {})
            consumed.update({name: ExactQuantity.parse(amount).amount for name, amount in consumed.items()})
    return outcome
