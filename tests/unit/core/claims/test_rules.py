"""The rules of Kubernetes' allocator that are easy to get wrong, each with the smallest cluster that shows it."""

from collections.abc import Sequence
from typing import Any

import pytest

from berth_operator.core.claims.bounds.errors import ClaimError, InvalidPoolsError, NodeError, TooMuchWorkError
from berth_operator.core.claims.objects import allocated as held
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.slices import DeviceID
from tests.claims import objects
from tests.claims.objects import (
    Object,
    allocation,
    chosen,
    claim,
    device,
    exactly,
    first_available,
    mig_gpu,
    request,
    slice_of,
)

MODEL = "gpu.io/model"
_MODEL = 'device.attributes["gpu.io"].model'
TWO = slice_of(device("a"), device("b"))
MODELS = slice_of(device("a", model="x"), device("b", model="x"), device("c", model="y"))
SHARED = slice_of(device("a", memory="4Gi", allowMultipleAllocations=True))


SET = {"name": "set", "counters": {"memory": {"value": "4"}, "cores": {"value": "4"}}}


def counted(name: str, amount: str, counter: str = "memory", **fields: Any) -> Object:
    use = {"counterSet": "set", "counters": {counter: {"value": amount}}}
    return device(name, consumesCounters=[use], **fields)


def partitions(*devices: Object) -> list[Object]:
    return [slice_of(*devices, count=2), slice_of(name="slice-1", count=2, sharedCounters=[SET])]


def taken(*names: str) -> Allocated:
    return Allocated(devices={DeviceID("gpu.io", objects.NODE, name) for name in names})


# The order of the search


def test_the_score_prefers_first_subrequests() -> None:
    got = allocation([TWO], claim(first_available("one", exactly(3), exactly()), request()))
    assert got is not None
    assert got[0].score() == 7


def test_a_search_that_takes_too_long_ends() -> None:
    # Each of the devices is large enough for one of the requests, and all have to be tried with all.
    shared = slice_of(*(device(f"d{number}", memory="10", allowMultipleAllocations=True) for number in range(8)))
    wanted = [request(f"r{number}", capacity={"requests": {"memory": "6"}}) for number in range(9)]
    with pytest.raises(TooMuchWorkError, match="no devices were found within 2000 steps"):
        chosen([shared], claim(*wanted), max_steps=1000, max_narrowing=2000)
    assert len(chosen([shared], claim(*wanted[:8]), max_steps=10) or []) == 1


# The search that goes on where the one in Kubernetes' order did not end


def test_a_request_with_few_devices_decides_for_those_before_it() -> None:
    root, kind = "resource.kubernetes.io/pcieRoot", 'device.attributes["gpu.io"].kind == '
    devices = [
        device(
            f"gpu-{gpu}-mig-{part}",
            attributes={root: {"string": f"root-{gpu}"}, "kind": {"string": "mig"}},
            capacity={f"c-{number}": {"value": "1"} for number in range(15)},
        )
        for gpu in range(8)
        for part in range(7)
    ]
    nics = [
        device(f"nic-{number}", attributes={root: {"string": f"root-{number}"}, "kind": {"string": "nic"}})
        for number in range(8)
    ]
    held = taken(*(f"nic-{number}" for number in range(8) if number != 5))
    wanted = request("gpu", 2, where=f'{kind}"mig"'), request("nic", where=f'{kind}"nic"')
    constraint = {"matchAttribute": root}
    expected = ["gpu:gpu-5-mig-0", "gpu:gpu-5-mig-1", "nic:nic-5"]
    got = chosen([slice_of(*devices, *nics)], claim(*wanted, constraints=[constraint]), allocated=held, max_steps=5000)
    assert got == [expected]
    # Without any step in Kubernetes' order.
    assert got == chosen(
        [slice_of(*devices, *nics)],
        claim(*wanted, constraints=[constraint]),
        allocated=held,
        max_steps=0,
        max_narrowing=100,
    )


@pytest.mark.parametrize(
    "claims",
    [
        (claim(request("a", 12), request("b", 2), constraints=[{"distinctAttribute": MODEL, "requests": ["b"]}]),),
        (claim(request("a", 20)), claim(request("b", 5))),
        (claim(request("a", 0), request("b", 1)),),
        (claim(request("a", 2), constraints=[{"matchAttribute": "gpu.io/other"}]),),
    ],
)
def test_what_is_not_there_is_not_searched(claims: tuple[Object, ...]) -> None:
    many = slice_of(*(device(f"d{number}", model="x") for number in range(24)))
    assert chosen([many], *claims, max_steps=0, max_narrowing=30) is None


def test_claims_with_equal_constraints_get_different_values() -> None:
    devices = [device(f"{model}{number}", model=model) for model in "xy" for number in range(2)]
    pair = [
        claim(request("a", 2), name=name, constraints=[{"matchAttribute": MODEL}]) for name in ("claim-0", "claim-1")
    ]
    assert chosen([slice_of(*devices)], *pair, max_steps=0) == [["a:x0", "a:x1"], ["a:y0", "a:y1"]]


def instances(counts: Sequence[int], *, steps: int) -> list[list[str]] | None:
    """Return what claims for so many instances get of a GPU, next to one for a `2g`; the largest are listed first."""
    [_, *devices], counters = mig_gpu("gpu-0")
    published = [slice_of(*devices[::-1], count=2), slice_of(name="slice-1", count=2, sharedCounters=[counters])]
    wanted = [claim(request("any", count), name=f"claim-{place}") for place, count in enumerate(counts)]
    large = claim(request("large", where=f"{_MODEL} == '2g'"), name="large")
    return chosen(published, *wanted, large, max_steps=0, max_narrowing=steps)


@pytest.mark.parametrize("counts", [(1,) * 5, (2, 2, 1), (3, 2), (1, 4), (5,)])
def test_equal_requests_of_several_claims_are_one_demand(counts: Sequence[int]) -> None:
    got = instances(counts, steps=50)
    assert got is not None
    assert [len(names) for names in got] == [*counts, 1]
    assert len({name.partition(":")[2] for names in got for name in names}) == 6


@pytest.mark.parametrize("counts", [(1,) * 6, (2, 2, 2), (3, 3), (6,)])
def test_counters_show_that_requests_do_not_fit_together(counts: Sequence[int]) -> None:
    assert instances(counts, steps=20) is None


def test_the_first_subrequests_that_are_possible_are_found_before_the_devices() -> None:
    # The only device of model x is also the first for the other request.
    published = [slice_of(device("a", model="x"), device("b", model="y"), device("c", model="y"))]
    either = first_available("two", exactly(where=f"{_MODEL} == 'x'"), exactly(where=f"{_MODEL} == 'y'"))
    wanted = claim(request("one", where=f"{_MODEL} in ['x', 'y']"), either)
    assert chosen(published, wanted, max_steps=0) == [["one:b", "two/sub-0:a"]]
    # Kubernetes' order decides about the devices of the first request first.
    assert chosen(published, wanted) == [["one:a", "two/sub-1:b"]]


# Pools


def test_counted_requests_pass_over_incomplete_pools_and_all_is_an_error() -> None:
    published = [slice_of(device("a"), pool="pool-a", count=2), slice_of(device("b"), pool="pool-b")]
    assert chosen(published, claim(request())) == [["gpu:b"]]
    with pytest.raises(NodeError, match=r"claim ns/claim-0, request gpu: asks for all devices, but resource pool "):
        chosen(published, claim(request(count=0)))


def test_an_invalid_pool_is_an_error_only_if_nothing_else_is_found() -> None:
    twice = slice_of(device("a"), device("a"), pool="pool-a")
    assert chosen([twice, TWO], claim(request())) == [["gpu:a"]]
    with pytest.raises(InvalidPoolsError, match="invalid resource pools were encountered"):
        chosen([twice], claim(request()))


# Selectors and classes


def test_a_missing_attribute_is_an_error_and_ends_the_allocation() -> None:
    published = [slice_of(device("a"), device("b", model="x"))]
    with pytest.raises(NodeError, match=r"claim ns/claim-0: selector #0 on device gpu.io/node-0/a: CEL runtime error"):
        chosen(published, claim(request(where="device.attributes['gpu.io'].model == 'x'")))
    guarded = "'model' in device.attributes['gpu.io'] && device.attributes['gpu.io'].model == 'x'"
    assert chosen(published, claim(request(where=guarded))) == [["gpu:b"]]


def test_what_is_wrong_with_a_claim_itself_is_wrong_on_every_node() -> None:
    with pytest.raises(ClaimError, match=r"request gpu: could not retrieve device class gpu: deviceclass .gpu. not f"):
        chosen([TWO], claim(request()), classes=())
    with pytest.raises(ClaimError, match="selector #0: CEL compile error"):
        chosen([TWO], claim(request(where="device.")))
    with pytest.raises(ClaimError, match="adding 9223372036854775807 devices exceeds the claim limit of 32, with 1 al"):
        chosen([TWO], claim(request("a"), request("b", 2**63 - 1)))
    with pytest.raises(ClaimError, match="cannot handle request with derived attributes"):
        chosen([TWO], claim(request(derivedAttributes=[{"name": "x"}])))


def test_a_selector_that_no_device_reaches_is_not_found_wrong() -> None:
    assert chosen([TWO], claim(request(where="device.")), allocated=taken("a", "b")) is None


# All and admin access


def test_a_device_of_all_that_breaks_a_constraint_ends_the_search() -> None:
    with pytest.raises(NodeError, match=r"cannot add device gpu.io/node-0/c because a claim constraint would not be "):
        chosen([MODELS], claim(request(count=0), constraints=[{"matchAttribute": MODEL}]))


# Constraints


def test_values_of_two_types_are_not_equal() -> None:
    typed = [device(name, attributes={"model": value}) for name, value in (("a", {"int": 1}), ("b", {"bool": True}))]
    assert chosen([slice_of(*typed)], claim(request(count=2), constraints=[{"matchAttribute": MODEL}])) is None
    assert chosen([slice_of(*typed)], claim(request(count=2), constraints=[{"distinctAttribute": MODEL}])) is not None


# Counters


def test_counters_that_are_exceeded_keep_all_devices_of_the_pool_from_being_allocated() -> None:
    published = partitions(counted("a", "3"), counted("b", "3"), counted("c", "1", "cores"), device("d"))
    assert chosen(published, claim(request()), allocated=taken("a", "b")) == [["gpu:d"]]


def test_shares_of_a_device_charge_its_counters_once() -> None:
    published = partitions(counted("a", "3", allowMultipleAllocations=True))
    assert chosen(published, claim(request("x"), request("y"))) == [["x:a", "y:a"]]
    shared = Allocated(shared={DeviceID("gpu.io", objects.NODE, "a")})
    assert chosen(published, claim(request()), allocated=shared) == [["gpu:a"]]


# Capacity


@pytest.mark.parametrize("capacity", [{}, {"memory": "80Gi"}])
def test_a_device_that_shares_hold_is_given_to_no_other_claim_if_its_slice_offers_no_shares_any_more(
    capacity: dict[str, str],
) -> None:
    published, id_ = [slice_of(device("a", **capacity))], DeviceID("gpu.io", objects.NODE, "a")
    shared = Allocated(shared={id_}, capacity={id_: {"memory": 20 * 2**30 * 10**9}} if capacity else {})
    part: Object = {"capacity": {"requests": {"memory": "40Gi"}}} if capacity else {}
    assert chosen(published, claim(request(**part)), allocated=shared) is None
    assert chosen(published, claim(request(adminAccess=True)), allocated=shared) == [["gpu:a"]]


@pytest.mark.parametrize("requested", ["100E", "8Ei", "1u", "9223372036854775807"])
def test_a_request_that_cannot_be_rounded_ends_the_allocation(requested: str) -> None:
    policy = {"default": "1", "validRange": {"min": "1", "step": "2"}}
    capacity = {"memory": {"value": "4", "requestPolicy": policy}}
    published = [slice_of(device("a", capacity=capacity, allowMultipleAllocations=True), device("b", memory="100E"))]
    wanted = claim(request(capacity={"requests": {"memory": requested}}))
    if requested == "1u":
        assert chosen(published, wanted) == [["gpu:a"]]
        return
    with pytest.raises(NodeError, match=r'checking capacity for device gpu.io/node-0/a: capacity "memory": request '):
        chosen(published, wanted)


def test_a_negative_request_ends_the_allocation() -> None:
    with pytest.raises(NodeError, match='capacity "memory": capacity value is negative'):
        chosen([SHARED], claim(request(capacity={"requests": {"memory": "-1"}})))


# Results


def test_what_claims_hold_is_read_from_their_status() -> None:
    entry = {"driver": "gpu.io", "pool": "node-0", "request": "gpu"}
    shares = [entry | {"device": "b", "shareID": each, "consumedCapacity": {"memory": "1Gi"}} for each in "12"]
    admin = entry | {"device": "c", "adminAccess": True}
    allocations = [{"devices": {"results": [entry | {"device": "a"}, *shares, admin]}}]
    a, b = (DeviceID("gpu.io", "node-0", name) for name in "ab")
    assert held.of_claims(allocations) == Allocated(devices={a}, shared={b}, capacity={b: {"memory": 2**31 * 10**9}})
