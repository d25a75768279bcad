"""Types of devices that plug-ins add: how they are declared, and how pods request them."""

from collections.abc import Mapping
from typing import Any

import pytest

from berth_api import request
from berth_api.request import Hint, Kind, KindError, Kinds, Part, RequestError
from berth_api.request.kinds import read_gpu_vendors

NPU, CORE = "example.com/npu", "example.com/npu-core"
DECLARED: dict[str, Any] = {"name": "npu", "resources": {NPU: 1, CORE: 100}}


def kinds(**fields: Any) -> Kinds:
    return Kinds((Kind(**{**DECLARED, **fields}),))


def npus(count: int, amount: int = 100, **fields: Any) -> Part:
    return Part(type="npu", count=count, amounts=(("npu", amount),), **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"name": "My NPU"}, "name 'My NPU'; allowed are up to 32 lower-case letters", id="type"),
        pytest.param({"name": "n" * 33}, "up to 32", id="long type"),
        pytest.param({"resources": {}}, "type npu names no resource; allowed is at least one", id="no resource"),
        pytest.param({"resources": {"npu": 1}}, "resource 'npu'; allowed are names such as", id="no domain"),
        pytest.param({"resources": {"kubernetes.io/npu": 1}}, "not of kubernetes.io", id="Kubernetes' domain"),
        pytest.param({"resources": {"koordinator.sh/npu": 1}}, "not of kubernetes.io", id="Berth's other prefix"),
        pytest.param({"resources": {NPU: 0}}, f"resource {NPU}: 0 are a whole device; allowed are div", id="none"),
        pytest.param({"resources": {NPU: 3}}, "3 are a whole device; allowed are divisors of 100", id="no divisor"),
        pytest.param({"resources": {NPU: 1.0}}, "1.0 are a whole device", id="no integer"),
        pytest.param({"counted": ("npu",)}, "counted 'npu'; allowed are names of the type's own", id="counted twice"),
        pytest.param({"counted": ("kubernetes.io/x",)}, "without a prefix", id="counted with a prefix"),
        pytest.param({"counted": ("nvidia.com/mig-1g.10gb",)}, "names of the type's own", id="counted instances"),
    ],
)
def test_a_wrong_declaration_is_refused_with_what_is_allowed(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(KindError) as refused:
        Kind(**{**DECLARED, **fields})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "annotations", "part"),
    [
        pytest.param({NPU: 1}, {}, npus(1), id="one"),
        pytest.param({NPU: 2}, {}, npus(2), id="two"),
        pytest.param({CORE: 50}, {}, npus(1, 50), id="half"),
        pytest.param({CORE: 300}, {}, npus(3), id="hundredths of three"),
        pytest.param({NPU: 1}, {"allocateStrategy": "ApplyForAll"}, npus(1, every=True), id="all there are"),
        pytest.param({CORE: 4}, {"allocateStrategy": "RequestsAsCount"}, npus(4, 1), id="as count"),
    ],
)
def test_requests_become_parts(asked: Mapping[str, int], annotations: Mapping[str, str], part: Part) -> None:
    hints = {"npu": Hint(strategy=annotations.get("allocateStrategy", ""))}
    devices = request.of_resources({"cpu": 1000, **asked}, hints, kinds())
    assert (devices.parts, devices.vendor) == ((part,), "")


def test_they_are_allocated_next_to_gpus_and_nics() -> None:
    devices = request.of_resources({"nvidia.com/gpu": 1, "kubernetes.io/rdma": 100, NPU: 1}, kinds=kinds())
    assert [part.type for part in devices.parts] == ["gpu", "rdma", "npu"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param({CORE: 150}, f"{CORE}: 150; allowed are 1 to 100 (part of a device) or mult", id="one and a half"),
        pytest.param({CORE: 50, NPU: 1}, f"{NPU}: 1, {CORE}: 50 is not a request for type npu", id="two at once"),
    ],
)
def test_what_means_nothing_is_refused(asked: Mapping[str, int], message: str) -> None:
    with pytest.raises(RequestError) as refused:
        request.of_resources(asked, kinds=kinds())
    assert message in str(refused.value)


def test_without_its_plug_in_it_is_an_ordinary_resource() -> None:
    assert not request.is_device(NPU)
    assert request.of_resources({NPU: 1}) == request.NOTHING
    assert request.is_device(NPU, kinds())


def with_memory(wanted: Mapping[str, int], _hint: Hint) -> Part:
    return npus(1, wanted[CORE]) if wanted[CORE] < 100 else Part(type="gpu", count=1, amounts=(("gpu", 1),))


def test_a_plug_in_may_read_requests_itself_but_only_make_parts_of_its_own() -> None:
    own = kinds(reads=with_memory)
    assert request.of_resources({CORE: 7}, kinds=own).parts == (npus(1, 7),)
    with pytest.raises(RequestError, match=r"the plug-in of type npu made .* ask its author"):
        request.of_resources({CORE: 100}, kinds=own)


def part(**fields: Any) -> Part:
    return Part(**{"type": "npu", "count": 1, "amounts": (("npu", 1),), **fields})


@pytest.mark.parametrize(
    ("made", "message"),
    [
        pytest.param(lambda _wanted, _hint: None, "made None of it", id="no part"),
        pytest.param(lambda _wanted, _hint: npus(0), "made Part", id="of nothing"),
        pytest.param(lambda _wanted, _hint: npus(1, 0), "made Part", id="nothing of each"),
        pytest.param(lambda _wanted, _hint: part(amounts=(("npu", 1.5),)), "made Part", id="no whole number"),
        pytest.param(lambda _wanted, _hint: part(amounts=[["npu", 1]]), "failed: TypeError", id="unhashable"),
        pytest.param(lambda _wanted, _hint: part(count="1"), "failed: TypeError", id="a count that is text"),
        pytest.param(lambda wanted, _hint: wanted["other"], "failed: KeyError: 'other'", id="raises"),
    ],
)
def test_what_it_makes_of_a_request_by_mistake_is_reported(made: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        request.of_resources({CORE: 7}, kinds=kinds(reads=made))
    assert f"{CORE}: 7: the plug-in of type npu {message}" in str(refused.value)
    assert str(refused.value).endswith("ask its author")


def test_what_it_refuses_itself_is_reported_in_its_words() -> None:
    def refuse(_wanted: Mapping[str, int], _hint: Hint) -> Part:
        raise RequestError("no NPUs on Sundays")

    with pytest.raises(RequestError, match=r"^no NPUs on Sundays$"):
        request.of_resources({CORE: 7}, kinds=kinds(reads=refuse))


def test_hints_and_joint_allocation_may_name_them() -> None:
    annotations = {
        "scheduling.koordinator.sh/device-allocate-hint": '{"npu": {"allocateStrategy": "ApplyForAll"}}',
        "scheduling.koordinator.sh/device-joint-allocate": '{"deviceTypes": ["gpu", "npu"]}',
    }
    with pytest.raises(RequestError, match="npu"):
        request.of_pod({"nvidia.com/gpu": 1}, annotations, {})
    devices = request.of_pod({"nvidia.com/gpu": 1, NPU: 1}, annotations, {}, kinds())
    assert [part.every for part in devices.parts] == [False, True]


@pytest.mark.parametrize("text", ["", "huawei", "AMD", "nvidia,a b"])
def test_a_wrong_vendor_for_berths_resources_is_refused(text: str) -> None:
    with pytest.raises(KindError, match="allowed"):
        read_gpu_vendors(text)


def test_vendors_for_berths_resources_are_a_list() -> None:
    assert read_gpu_vendors("nvidia,amd") == {"nvidia", "amd"}
    assert read_gpu_vendors("*") == {"*"}
