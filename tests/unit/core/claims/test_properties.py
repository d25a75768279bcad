"""Properties of every allocation, checked on the API objects by other means than the allocator's."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from berth_operator.core.claims.objects import slices
from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.claims.selectors import compile_selector
from tests.claims import generate, pinned, scenario

Object = Mapping[str, Any]
Key = tuple[str, str, str]


@given(st.integers(0, 2**40), st.booleans())
def test_no_device_counter_or_capacity_is_given_twice_and_what_is_requested_holds(seed: int, preferred: bool) -> None:
    drawn = pinned.with_places(generate.scenario(seed), seed)
    outcome = scenario.outcome(drawn, preferred=preferred)
    if not outcome["results"]:
        assert not (preferred and scenario.outcome(drawn)["results"])
        return
    devices = dict(_devices(drawn))
    given_to = [
        (number, result, devices[result["driver"], result["pool"], result["device"]])
        for number, allocation in enumerate(outcome["results"])
        for result in allocation["devices"]["results"]
    ]
    _check_exclusive(drawn, given_to)
    # Admin access takes nothing.
    takes = [each for each in given_to if not each[1].get("adminAccess")]
    _check_counters(drawn, devices, takes)
    _check_capacity(drawn, takes)
    for claim, allocation in zip(drawn["claims"], outcome["results"], strict=True):
        assert len(allocation["devices"]["results"]) <= 32
        _check_claim(claim, drawn, allocation["devices"]["results"], devices)


def _devices(drawn: Object) -> Iterator[tuple[Key, Object]]:
    """Yield the devices of the newest generation; names that a pool has twice are in no result."""
    for each in sorted(drawn["slices"], key=lambda one: one["spec"]["pool"]["generation"]):
        spec = each["spec"]
        for device in spec.get("devices", ()):
            yield (spec["driver"], spec["pool"]["name"], device["name"]), device


def _amount(text: str) -> int:
    return ExactQuantity.parse(text).amount


def _key(entry: Object) -> Key:
    return entry["driver"], entry["pool"], entry["device"]


def _check_exclusive(drawn: Object, given_to: list[tuple[int, Object, Object]]) -> None:
    shareable = "ConsumableCapacity" in drawn["features"]
    held = {_key(each) for each in drawn["held"] if "shareID" not in each}
    ordinary = Counter(_key(result) for _, result, _ in given_to if not result.get("adminAccess"))
    within = Counter((number, _key(result)) for number, result, _ in given_to)
    for number, result, device in given_to:
        if device.get("allowMultipleAllocations") and shareable:
            continue
        assert within[number, _key(result)] == 1
        if not result.get("adminAccess"):
            assert ordinary[_key(result)] == 1
            assert _key(result) not in held


def _check_counters(drawn: Object, devices: Mapping[Key, Object], given_to: list[tuple[int, Object, Object]]) -> None:
    left: dict[tuple[str, str, str, str], int] = defaultdict(int)
    for each in drawn["slices"]:
        driver, pool = each["spec"]["driver"], each["spec"]["pool"]["name"]
        for group in each["spec"].get("sharedCounters", ()):
            for name, counter in group["counters"].items():
                left[driver, pool, group["name"], name] = _amount(counter["value"])
    charged = {_key(each) for each in drawn["held"]} & devices.keys() | {_key(result) for _, result, _ in given_to}
    for driver, pool, name in charged:
        for use in devices[driver, pool, name].get("consumesCounters", ()):
            for counter, amount in use["counters"].items():
                left[driver, pool, use["counterSet"], counter] -= _amount(amount["value"])
    charging = {_key(result)[:2] for _, result, device in given_to if device.get("consumesCounters")}
    held_shares = {_key(each) for each in drawn["held"]}
    if all(_key(result) not in held_shares for _, result, _ in given_to):
        assert [key for key, amount in left.items() if key[:2] in charging and amount < 0] == []


def _check_capacity(drawn: Object, given_to: list[tuple[int, Object, Object]]) -> None:
    used: dict[tuple[Key, str], int] = defaultdict(int)
    for each in drawn["held"]:
        for name, amount in each.get("capacity", {}).items():
            used[_key(each), name] += _amount(amount)
    for _, result, device in given_to:
        for name, amount in result.get("consumedCapacity", {}).items():
            used[_key(result), name] += _amount(amount)
            assert used[_key(result), name] <= _amount(device["capacity"][name]["value"])


def _check_claim(claim: Object, drawn: Object, results: list[Object], devices: Mapping[Key, Object]) -> None:
    spec = claim["spec"]["devices"]
    classes = {each["metadata"]["name"]: each["spec"] for each in drawn["classes"]}
    for request in spec["requests"]:
        own = [result for result in results if result["request"].partition("/")[0] == request["name"]]
        names = {result["request"].partition("/")[2] for result in own}
        assert len(names) == 1
        chosen = request.get("exactly") or {each["name"]: each for each in request["firstAvailable"]}[names.pop()]
        if chosen["allocationMode"] == "ExactCount":
            assert len(own) == chosen["count"]
        selectors = [*chosen.get("selectors", ()), *classes[chosen["deviceClassName"]].get("selectors", ())]
        for result in own:
            raw = {"spec": {"driver": result["driver"], "pool": {"name": ""}, "devices": [devices[_key(result)]]}}
            view = slices.read(raw).devices[0].view
            assert all(compile_selector(each["cel"]["expression"]).matches(view) for each in selectors)
    for constraint in spec.get("constraints", ()):
        _check_constraint(constraint, results, devices)


def _check_constraint(constraint: Object, results: list[Object], devices: Mapping[Key, Object]) -> None:
    named = constraint.get("requests")
    concerned = [
        result
        for result in results
        if not named or result["request"] in named or result["request"].partition("/")[0] in named
    ]
    attribute = constraint.get("matchAttribute") or constraint["distinctAttribute"]
    values = [_value(devices[_key(result)], result["driver"], attribute) for result in concerned]
    assert None not in values
    different = len({str(value) for value in values})
    assert different == (min(len(values), 1) if "matchAttribute" in constraint else len(values))


def _value(device: Object, driver: str, attribute: str) -> object:
    attributes = device["attributes"]
    domain, _, name = attribute.partition("/")
    return attributes.get(attribute) or (attributes.get(name) if domain == driver else None)
