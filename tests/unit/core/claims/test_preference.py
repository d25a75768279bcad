"""Berth's preference of devices for ResourceClaims: those that leave most for others, close to each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from berth_operator.core.claims.allocation.allocator import allocate
from berth_operator.core.claims.allocation.closeness import NUMA_NODE, PARTITION, PCIE_ROOT
from berth_operator.core.claims.allocation.preference import MAX_LOOKS, MAX_RANKED, Preference
from berth_operator.core.claims.allocation.search import MAX_STEPS
from berth_operator.core.claims.objects import requests
from berth_operator.core.claims.objects.allocated import Allocated
from berth_operator.core.claims.objects.slices import DeviceID
from berth_operator.core.claims.pools.stock import MAX_COMPARED
from tests.claims import objects
from tests.claims.objects import NODE, NOTHING, Object, claim, device, exactly, first_available, request, slice_of

EIGHT = [(root, root // 2) for root in (0, 0, 1, 1, 2, 2, 3, 3)]
"""The PCIe root and the NUMA node of eight GPUs."""


def at(name: str, root: int | None = None, numa: int | None = None, **fields: Any) -> Object:
    attributes: Object = {} if root is None else {PCIE_ROOT: {"string": f"pci0000:{root}"}}
    attributes |= {} if numa is None else {NUMA_NODE: {"int": numa}}
    return device(name, **fields) | {"attributes": attributes | fields.get("attributes", {})}


def eight() -> Object:
    return slice_of(*(at(f"gpu-{number}", *place) for number, place in enumerate(EIGHT)))


def held(*names: str, shared: Mapping[str, int] | None = None) -> Allocated:
    shares = {DeviceID(objects.DRIVER, NODE, name): {"memory": amount} for name, amount in (shared or {}).items()}
    return Allocated(
        devices={DeviceID(objects.DRIVER, NODE, name) for name in names}, shared=shares.keys(), capacity=shares
    )


def preferred(
    published: Sequence[Object],
    *claims: Object,
    allocated: Allocated = NOTHING,
    links: Mapping[str, str] | None = None,
    before: Sequence[str] = (),
    max_steps: int = MAX_STEPS,
    max_narrowing: int = MAX_STEPS,
) -> list[list[str]] | None:
    """Return the names of the devices that each claim gets; `before` are selectors of other requests of late."""
    pools = objects.pools_of(published)
    for expression in before:
        selection = pools.selected.of(((), (expression,)))
        assert all(selection.matches(each, "", "") in (True, False) for each in pools.devices)
    linked = {DeviceID(objects.DRIVER, NODE, name): group for name, group in (links or {}).items()}
    found = allocate(
        [requests.read_claim(each) for each in claims],
        pools=pools,
        classes={"gpu": requests.read_class({"metadata": {"name": "gpu"}, "spec": {}})},
        allocated=allocated,
        new_share_id=lambda: "share",
        prefer=lambda: Preference(pools, allocated, linked).order,
        max_steps=max_steps,
        max_narrowing=max_narrowing,
    )
    return None if found is None else [[each.device.id.device for each in one.results] for one in found]


@pytest.mark.parametrize(
    ("count", "taken", "expected"),
    [
        pytest.param(1, (), ["gpu-0"], id="all are equal"),
        pytest.param(1, ("gpu-3",), ["gpu-2"], id="one goes where a pair is broken already"),
        pytest.param(1, ("gpu-1", "gpu-2", "gpu-6", "gpu-7", "gpu-4"), ["gpu-5"], id="and where fewer are free nearby"),
        pytest.param(2, ("gpu-0", "gpu-3"), ["gpu-4", "gpu-5"], id="two below one root"),
        pytest.param(2, ("gpu-0", "gpu-3", "gpu-4", "gpu-7"), ["gpu-1", "gpu-2"], id="else at one NUMA node"),
        pytest.param(2, ("gpu-7",), ["gpu-4", "gpu-5"], id="at the NUMA node that is in use"),
        pytest.param(3, ("gpu-7",), ["gpu-4", "gpu-5", "gpu-6"], id="three at one NUMA node"),
        pytest.param(4, ("gpu-0", "gpu-1"), ["gpu-4", "gpu-5", "gpu-6", "gpu-7"], id="four at one NUMA node"),
        pytest.param(5, (), ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4"], id="more than there are at one"),
    ],
)
def test_devices_are_close_and_leave_whole_groups(count: int, taken: Sequence[str], expected: list[str]) -> None:
    assert preferred([eight()], claim(request(count=count)), allocated=held(*taken)) == [expected]


def test_nvlinks_come_before_pcie() -> None:
    links = {"gpu-0": "a", "gpu-2": "b", "gpu-4": "a", "gpu-6": "b"}
    assert preferred([eight()], claim(request(count=2)), allocated=held("gpu-0"), links=links) == [["gpu-2", "gpu-6"]]


def test_a_partition_of_nvidias_fabric_manager_is_linked() -> None:
    partitions = [{PARTITION.format(2): {"int": number % 2}} for number in range(4)]
    published = slice_of(*(at(f"gpu-{n}", root=n // 2, attributes=each) for n, each in enumerate(partitions)))
    assert preferred([published], claim(request(count=2))) == [["gpu-0", "gpu-2"]]


def test_requests_of_a_pod_get_devices_close_to_each_other() -> None:
    gpus = slice_of(*(at(f"gpu-{number}", root=number) for number in range(3)))
    nics = slice_of(*(at(f"nic-{number}", root=number, model="nic") for number in range(3)), pool="nics", name="nics")
    nics["spec"]["devices"] = [each | {"attributes": each["attributes"] | NIC} for each in nics["spec"]["devices"]]
    is_nic = '"nic" in device.attributes["gpu.io"]'
    wanted = claim(request("gpu", where=f"!({is_nic})"), request("nic", where=is_nic))
    assert preferred([gpus, nics], wanted, allocated=held("gpu-0", "gpu-1")) == [["gpu-2", "nic-2"]]


NIC = {"nic": {"bool": True}}


def mig_node(gpus: int = 2) -> list[Object]:
    made = [objects.mig_gpu(f"gpu-{number}") for number in range(gpus)]
    devices = [each for parts, _ in made for each in parts]
    sets = [counters for _, counters in made]
    return [slice_of(*devices, count=2), slice_of(name="slice-1", count=2, sharedCounters=sets)]


def mig(profile: str, count: int = 1) -> Object:
    return claim(request(count=count, where=f'device.attributes["gpu.io"].model == "{profile}"'))


@pytest.mark.parametrize(
    ("profile", "count", "taken", "expected"),
    [
        pytest.param("1g", 1, (), ["gpu-0-1g-6"], id="the place that leaves most others"),
        pytest.param("1g", 1, ("gpu-1-1g-6",), ["gpu-1-1g-4"], id="on the GPU that is divided already"),
        pytest.param("1g", 2, (), ["gpu-0-1g-6", "gpu-0-1g-4"], id="two on one GPU"),
        pytest.param("2g", 1, ("gpu-1-3g-4",), ["gpu-1-2g-0"], id="next to a larger one"),
        pytest.param("whole", 1, ("gpu-0-1g-0",), ["gpu-1"], id="a whole GPU"),
    ],
)
def test_a_divided_gpu_is_filled_before_a_whole_one_is_broken(
    profile: str, count: int, taken: Sequence[str], expected: list[str]
) -> None:
    assert preferred(mig_node(), mig(profile, count), allocated=held(*taken)) == [expected]


def test_of_a_large_set_the_smallest_device_is_taken() -> None:
    amounts = [("large", 4), *((f"d-{number:03}", 2) for number in range(MAX_COMPARED)), ("small", 1)]
    uses = {name: [{"counterSet": "set", "counters": {"memory": {"value": str(n)}}}] for name, n in amounts}
    published = [
        slice_of(*(device(name, consumesCounters=each) for name, each in uses.items()), count=2),
        slice_of(name="slice-1", count=2, sharedCounters=[{"name": "set", "counters": {"memory": {"value": "8"}}}]),
    ]
    assert preferred(published, claim(request())) == [["small"]]


def test_a_request_for_any_device_leaves_the_gpus_that_can_be_divided() -> None:
    published = [*mig_node(1), slice_of(device("plain"), pool="plain", name="plain")]
    assert preferred(published, claim(request()), allocated=held("gpu-0-1g-6")) == [["gpu-0-1g-4"]]
    whole = claim(
        request(where='!has(device.attributes["gpu.io"].model) || device.attributes["gpu.io"].model == "whole"')
    )
    assert preferred(published, whole) == [["plain"]]


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        pytest.param("1Gi", "c", id="the fullest"),
        pytest.param("3Gi", "b", id="the fullest on which it fits"),
        pytest.param("8Gi", "a", id="an empty one if there is no other"),
    ],
)
def test_shares_gather(memory: str, expected: str) -> None:
    used = held(shared={"b": 4 * 2**30 * 10**9, "c": 6 * 2**30 * 10**9})
    published = [slice_of(*(device(name, memory="8Gi", allowMultipleAllocations=True) for name in "abc"))]
    part = request(capacity={"requests": {"memory": memory}})
    assert preferred(published, claim(part), allocated=used) == [[expected]]


def test_the_smallest_device_is_taken_as_a_whole() -> None:
    published = [slice_of(device("a", memory="80Gi"), device("b", memory="40Gi"), device("c", memory="80Gi"))]
    assert preferred(published, claim(request())) == [["b"]]


def test_what_other_requests_select_is_left_for_them() -> None:
    published = [slice_of(device("a", model="x"), device("b", model="y"))]
    assert preferred(published, claim(request()), before=['device.attributes["gpu.io"].model == "x"']) == [["b"]]


def test_devices_that_must_be_alike_are_of_one_group() -> None:
    models = [("a", "x"), ("b", "y"), ("c", "y"), ("d", "x"), ("e", "x")]
    published = [slice_of(*(device(name, model=model) for name, model in models))]
    alike = {"matchAttribute": "gpu.io/model"}
    assert preferred(published, claim(request(count=2), constraints=[alike])) == [["b", "c"]]


def test_devices_with_binding_conditions_come_last() -> None:
    conditions: Object = {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
    published = [slice_of(device("a", memory="1Gi", **conditions), device("b", memory="2Gi"))]
    assert preferred(published, claim(request())) == [["b"]]


def test_a_subrequest_that_is_not_taken_keeps_nothing() -> None:
    published = [eight()]
    wanted = first_available("one", exactly(9), exactly(2))
    assert preferred(published, claim(wanted, request("two"))) == [["gpu-0", "gpu-1", "gpu-2"]]


def test_a_selector_that_fails_for_another_device_leaves_the_first_fit() -> None:
    published = [slice_of(device("a", model="x"), device("b"), device("c", model="x"))]
    assert preferred(published, claim(request(where='device.attributes["gpu.io"].model == "x"'))) == [["a"]]


def test_a_preference_that_takes_too_long_leaves_the_first_fit() -> None:
    wanted, taken = claim(request(count=3)), held("gpu-7")
    assert preferred([eight()], wanted, allocated=taken) == [["gpu-4", "gpu-5", "gpu-6"]]
    # Of the search that narrows down what is left as well.
    assert preferred([eight()], wanted, allocated=taken, max_steps=10) == [["gpu-4", "gpu-5", "gpu-6"]]
    assert preferred([eight()], wanted, allocated=taken, max_steps=10, max_narrowing=0) == [["gpu-0", "gpu-1", "gpu-2"]]


def test_only_so_many_devices_are_compared() -> None:
    published = [slice_of(*(device(f"d-{number}") for number in range(2 * MAX_RANKED)))]
    pools = objects.pools_of(published)
    order = Preference(pools, NOTHING)
    many = [requests.read_claim(claim(request(), name=f"c-{number}")) for number in range(20)]
    found = allocate(
        many,
        pools=pools,
        classes={"gpu": requests.read_class({"metadata": {"name": "gpu"}, "spec": {}})},
        allocated=NOTHING,
        new_share_id=str,
        prefer=lambda: order.order,
    )
    assert found is not None
    assert len({each.results[0].device for each in found}) == len(many)
    assert order.looks <= MAX_LOOKS + 4 * MAX_RANKED


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_devices_of_other_requests_leave_those_of_the_first_subrequest(names: str) -> None:
    # The smaller device is the better one for any request. Kubernetes' order takes the first one.
    sizes, models = {"a": "40Gi", "b": "80Gi"}, {"a": "x", "b": "y"}
    published = [slice_of(*(device(name, model=models[name], memory=sizes[name]) for name in names))]
    of_model = [exactly(where=f'device.attributes["gpu.io"].model == "{model}"') for model in "xy"]
    wanted = claim(request("one"), first_available("two", *of_model))
    assert preferred(published, wanted) == [["b", "a"]]
    in_order = [["one:b", "two/sub-0:a"]] if names == "ba" else [["one:a", "two/sub-1:b"]]
    assert objects.chosen(published, wanted) == in_order
