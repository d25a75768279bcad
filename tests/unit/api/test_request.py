"""The device requests that mean something, and what they mean."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth_api import names, quantity, request
from berth_api.request import DeviceRequest, Part, RequestError, of_resources
from tests.builders import CORE, FPGA, GI, GPU, MEMORY, NVIDIA, RATIO, RDMA, SHARED

AMD, DCU = "amd.com/gpu", "dcu.com/gpu"
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
GPU_NAMES = (NVIDIA, AMD, DCU, GPU, SHARED, CORE, MEMORY, RATIO, NPU_CORE, NPU_CPU, NPU_DVPP)

VALID = (
    {NVIDIA},
    {AMD},
    {DCU},
    {GPU},
    {MEMORY},
    {RATIO},
    {CORE, MEMORY},
    {CORE, RATIO},
    {NPU_CORE, RATIO},
    {SHARED, MEMORY},
    {SHARED, RATIO},
    {SHARED, CORE, MEMORY},
    {SHARED, CORE, RATIO},
    {SHARED, NPU_CORE, NPU_CPU, MEMORY},
    {SHARED, NPU_CORE, NPU_CPU, MEMORY, NPU_DVPP},
)
"""With rdma and fpga these are Koordinator's seventeen."""


def gpu(count: int, **amounts: int) -> Part:
    long = {"core": "gpu-core", "ratio": "gpu-memory-ratio", "memory": "gpu-memory"}
    long |= {"npu": NPU_CORE, "npu_cpu": NPU_CPU, "dvpp": NPU_DVPP}
    return Part(type="gpu", count=count, amounts=tuple(sorted((long[key], value) for key, value in amounts.items())))


def renamed(amounts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.replace(names.PREFIX, prefix): amount for name, amount in amounts.items()}


COMBINATIONS = [
    pytest.param({NVIDIA: 2}, gpu(2, core=100, ratio=100), "nvidia", id="nvidia"),
    pytest.param({AMD: 1}, gpu(1, core=100, ratio=100), "amd", id="amd"),
    pytest.param({DCU: 3}, gpu(3, core=100, ratio=100), "hygon", id="dcu"),
    pytest.param({GPU: 50}, gpu(1, core=50, ratio=50), "", id="gpu, part"),
    pytest.param({GPU: 100}, gpu(1, core=100, ratio=100), "", id="gpu, one"),
    pytest.param({GPU: 300}, gpu(3, core=100, ratio=100), "", id="gpu, several"),
    pytest.param({MEMORY: 8 * GI}, gpu(1, memory=8 * GI), "", id="memory"),
    pytest.param({RATIO: 30}, gpu(1, ratio=30), "", id="ratio, part"),
    pytest.param({RATIO: 200}, gpu(2, ratio=100), "", id="ratio, several"),
    pytest.param({CORE: 50, MEMORY: GI}, gpu(1, core=50, memory=GI), "", id="core+memory"),
    pytest.param({CORE: 100, MEMORY: GI}, gpu(1, core=100, memory=GI), "", id="core+memory, whole core"),
    pytest.param({CORE: 50, RATIO: 60}, gpu(1, core=50, ratio=60), "", id="core+ratio, part"),
    pytest.param({CORE: 200, RATIO: 200}, gpu(2, core=100, ratio=100), "", id="core+ratio, several"),
    pytest.param({CORE: 50, RATIO: 200}, gpu(2, core=25, ratio=100), "", id="core+ratio, little core on several"),
    pytest.param({CORE: 33, RATIO: 200}, gpu(2, core=16, ratio=100), "", id="core+ratio, rounded down"),
    pytest.param({NPU_CORE: 10, RATIO: 50}, gpu(1, npu=10, ratio=50), "huawei", id="npu-core+ratio"),
    pytest.param({NPU_CORE: 40, RATIO: 200}, gpu(2, npu=20, ratio=100), "huawei", id="npu-core+ratio, several"),
    pytest.param({SHARED: 2, MEMORY: 8 * GI}, gpu(2, memory=4 * GI), "", id="shared+memory"),
    pytest.param({SHARED: 3, MEMORY: 100}, gpu(3, memory=33), "", id="shared+memory, rounded down"),
    pytest.param({SHARED: 2, RATIO: 60}, gpu(2, ratio=30), "", id="shared+ratio"),
    pytest.param({SHARED: 2, RATIO: 200}, gpu(2, ratio=100), "", id="shared+ratio, whole"),
    pytest.param({SHARED: 1, RATIO: 100}, gpu(1, ratio=100), "", id="shared+ratio, one"),
    pytest.param({SHARED: 2, CORE: 60, MEMORY: 6}, gpu(2, core=30, memory=3), "", id="shared+core+memory"),
    pytest.param({SHARED: 2, CORE: 60, RATIO: 80}, gpu(2, core=30, ratio=40), "", id="shared+core+ratio"),
    pytest.param(
        {SHARED: 1, NPU_CORE: 4, NPU_CPU: 2, MEMORY: GI},
        gpu(1, npu=4, npu_cpu=2, memory=GI),
        "huawei",
        id="npu slice",
    ),
    pytest.param(
        {SHARED: 1, NPU_CORE: 4, NPU_CPU: 2, MEMORY: GI, NPU_DVPP: 100},
        gpu(1, npu=4, npu_cpu=2, memory=GI, dvpp=100),
        "huawei",
        id="npu slice with dvpp",
    ),
    pytest.param({RDMA: 50}, Part(type="rdma", count=1, amounts=(("rdma", 50),)), "", id="rdma, part"),
    pytest.param({RDMA: 200}, Part(type="rdma", count=2, amounts=(("rdma", 100),)), "", id="rdma, several"),
    pytest.param({FPGA: 100}, Part(type="fpga", count=1, amounts=(("fpga", 100),)), "", id="fpga"),
]


@pytest.mark.parametrize(
    "prefix", [pytest.param("kubernetes.io/", id="kubernetes"), pytest.param("koordinator.sh/", id="koordinator")]
)
@pytest.mark.parametrize(("asked", "part", "vendor"), COMBINATIONS)
def test_a_valid_combination_has_one_normal_form(asked: dict[str, int], part: Part, vendor: str, prefix: str) -> None:
    found = of_resources(renamed(asked, prefix))
    assert (found.parts, found.vendor) == ((part,), vendor)


def test_every_valid_combination_stands_in_the_table() -> None:
    asked: list[Any] = [case.values[0] for case in COMBINATIONS]
    shown = {frozenset(each) for each in asked}
    assert shown == {frozenset(each) for each in VALID} | {frozenset({RDMA}), frozenset({FPGA})}


SUBSETS = [frozenset(each) for size in range(1, 12) for each in itertools.combinations(GPU_NAMES, size)]


def accepted(subset: frozenset[str]) -> bool:
    """Ask for amounts that suit every rule, so that only the combination counts."""
    try:
        of_resources({name: 1 if name in (SHARED, NVIDIA, AMD, DCU) else 100 for name in subset})
    except RequestError as error:
        assert " is not a request for GPUs; allowed are " in str(error)  # noqa: PT017
        return False
    return True


def test_of_all_2047_combinations_exactly_the_valid_ones_pass() -> None:
    assert len(SUBSETS) == 2047
    assert {each for each in SUBSETS if accepted(each)} == {frozenset(each) for each in VALID}


def test_an_invalid_combination_is_shown_with_its_amounts_and_what_is_allowed() -> None:
    with pytest.raises(RequestError) as caught:
        of_resources({CORE: 50})
    assert str(caught.value).startswith(
        "kubernetes.io/gpu-core: 50 is not a request for GPUs; allowed are nvidia.com/gpu,"
    )
    assert "; gpu-memory or gpu-memory-ratio, with or without gpu-core and gpu.shared; " in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param({GPU: 150}, "gpu: 150; allowed are 1 to 100", id="gpu one and a half"),
        pytest.param({GPU: 101}, "gpu: 101;", id="gpu just over one"),
        pytest.param({GPU: quantity.MAX}, f"gpu: {quantity.MAX};", id="gpu absurd"),
        pytest.param({RATIO: 250}, "gpu-memory-ratio: 250;", id="ratio"),
        pytest.param({CORE: 150, RATIO: 100}, "gpu-core: 150;", id="core beside ratio"),
        pytest.param({CORE: 150, MEMORY: GI}, "gpu-core: 150;", id="core beside memory"),
        pytest.param({CORE: 50, RATIO: 150}, "gpu-memory-ratio: 150;", id="ratio beside core"),
        pytest.param({NPU_CORE: 5, RATIO: 150}, "gpu-memory-ratio: 150;", id="ratio beside npu-core"),
        pytest.param({RDMA: 150}, "rdma: 150;", id="rdma"),
        pytest.param({FPGA: 101}, "fpga: 101;", id="fpga"),
        pytest.param(
            {SHARED: 2, RATIO: 51},
            "kubernetes.io/gpu-memory-ratio: 51, kubernetes.io/gpu.shared: 2; allowed are multiples",
            id="ratio not divisible",
        ),
        pytest.param(
            {SHARED: 2, CORE: 51, MEMORY: GI},
            "kubernetes.io/gpu-core: 51, kubernetes.io/gpu.shared: 2; allowed are multiples",
            id="core not divisible",
        ),
        pytest.param(
            {SHARED: 2, RATIO: 202},
            "kubernetes.io/gpu-memory-ratio: 202, kubernetes.io/gpu.shared: 2; allowed are multiples",
            id="ratio over a card",
        ),
        pytest.param(
            {SHARED: 2, CORE: 202, RATIO: 2},
            "kubernetes.io/gpu-core: 202, kubernetes.io/gpu.shared: 2; allowed are multiples",
            id="core over a card",
        ),
        pytest.param({SHARED: 3, MEMORY: 2}, "gpu-memory: 2 is less than a byte on each of 3", id="less than a byte"),
        pytest.param(
            {SHARED: 2, NPU_CORE: 1, NPU_CPU: 1, MEMORY: GI}, "allowed is gpu.shared: 1", id="npu on two cards"
        ),
        pytest.param(
            {SHARED: 1, NPU_CORE: 1, NPU_CPU: 1, MEMORY: GI, NPU_DVPP: 101}, "npu-dvpp: 101;", id="dvpp over a card"
        ),
        # Koordinator accepts the next two and then can never place, or overbooks, them.
        pytest.param({CORE: 200, MEMORY: GI}, "puts gpu-core 200 on each of 1 card", id="two cards' core by memory"),
        pytest.param({CORE: 400, RATIO: 200}, "puts gpu-core 200 on each of 2 card", id="twice the core of two cards"),
        pytest.param({"nvidia.com/gpu.shared": 1}, "nvidia.com/gpu.shared is not supported", id="time slices"),
        pytest.param({"nvidia.com/mig-1g.10gb": 1}, "nvidia.com/mig-1g.10gb is not supported", id="MIG"),
        pytest.param({GPU: 50, "koordinator.sh/gpu": 50}, "are the same resource; request one", id="both prefixes"),
        pytest.param({NVIDIA: 1, RDMA: 150}, "rdma: 150;", id="one type right, the other wrong"),
    ],
)
def test_a_request_without_meaning_is_refused_with_the_reason(asked: dict[str, int], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        of_resources(asked)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({SHARED: 2, RATIO: 51}, id="shares name their multiples"),
        pytest.param({GPU: 150}, id="hundredths name theirs"),
        pytest.param({CORE: 200, MEMORY: GI}, id="too much core names gpu.shared"),
    ],
)
def test_a_refusal_tells_what_is_allowed(asked: dict[str, int]) -> None:
    with pytest.raises(RequestError, match="allowed are"):
        of_resources(asked)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"cpu": 1000, "memory": GI}, id="no device"),
        pytest.param({"example.com/gpu": 1}, id="another vendor's device"),
    ],
)
def test_a_pod_without_devices_asks_for_nothing(asked: dict[str, int]) -> None:
    assert of_resources(asked) == request.NOTHING
    assert not request.NOTHING


def test_all_types_of_a_request_stand_side_by_side() -> None:
    found = of_resources({NVIDIA: 1, RDMA: 100, FPGA: 50, "cpu": 4000})
    assert [part.type for part in found.parts] == ["gpu", "rdma", "fpga"]


@pytest.mark.parametrize(
    ("asked", "prefix"),
    [
        pytest.param({GPU: 50}, "kubernetes.io/", id="kubernetes"),
        pytest.param({"koordinator.sh/gpu": 50}, "koordinator.sh/", id="koordinator"),
        pytest.param({CORE: 50, "koordinator.sh/gpu-memory-ratio": 50}, "koordinator.sh/", id="mixed"),
        pytest.param({NVIDIA: 1}, "kubernetes.io/", id="none"),
    ],
)
def test_the_prefix_of_the_pod_is_remembered(asked: dict[str, int], prefix: str) -> None:
    assert of_resources(asked).prefix == prefix


@pytest.mark.parametrize(
    ("count", "hint"),
    [
        pytest.param(99, "", id="not yet suspicious"),
        pytest.param(100, "did you mean kubernetes.io/gpu: 100?", id="a hundred cards"),
        pytest.param(200, "did you mean kubernetes.io/gpu: 200?", id="two hundred"),
    ],
)
def test_cards_by_the_hundred_are_taken_for_a_mistake(count: int, hint: str) -> None:
    found = of_resources({NVIDIA: count})
    assert (found.parts[0].count, found.hint) == (count, hint)


@pytest.mark.parametrize(
    ("asked", "whole"),
    [
        pytest.param({NVIDIA: 1}, True, id="a card"),
        pytest.param({GPU: 200}, True, id="two cards"),
        pytest.param({GPU: 99}, False, id="almost a card"),
        pytest.param({CORE: 50, RATIO: 100}, True, id="all memory, half the core"),
        pytest.param({CORE: 100, RATIO: 50}, False, id="all core, half the memory"),
        pytest.param({MEMORY: 80 * GI}, False, id="by memory, however much"),
        pytest.param({CORE: 100, MEMORY: 80 * GI}, False, id="by memory, with all the core"),
        pytest.param({SHARED: 2, RATIO: 200}, True, id="shared in name only"),
        pytest.param({RDMA: 100}, True, id="a NIC"),
        pytest.param({RDMA: 50}, False, id="half a NIC"),
    ],
)
def test_a_card_is_whole_by_its_memory(asked: dict[str, int], *, whole: bool) -> None:
    assert of_resources(asked).parts[0].whole is whole


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        *[pytest.param(name, True, id=name) for name in (*GPU_NAMES, RDMA, FPGA)],
        pytest.param("koordinator.sh/gpu-core", True, id="koordinator"),
        pytest.param("nvidia.com/mig-1g.10gb", True, id="MIG"),
        pytest.param("nvidia.com/gpu.shared", True, id="time slices"),
        pytest.param("cpu", False, id="cpu"),
        pytest.param("nvidia.com/gpumem", False, id="another name of the vendor"),
        pytest.param("example.com/fpga", False, id="another vendor"),
        pytest.param("kubernetes.io/batch-cpu", False, id="another name with our prefix"),
    ],
)
def test_devices_are_known_by_name(name: str, *, counted: bool) -> None:
    assert request.is_device(name) is counted


AMOUNTS = st.dictionaries(
    st.sampled_from([*GPU_NAMES, RDMA, FPGA, "koordinator.sh/gpu-core", "cpu", "nvidia.com/mig-1g.10gb"]),
    st.one_of(st.integers(1, 500), st.sampled_from([100, 200, 300]), st.integers(1, quantity.MAX)),
    max_size=4,
)


@given(AMOUNTS)
def test_any_request_is_normalised_or_refused_and_never_asks_more_than_a_card(asked: dict[str, int]) -> None:
    try:
        found: DeviceRequest = of_resources(asked)
    except RequestError:
        return
    for part in found.parts:
        each = dict(part.amounts)
        assert part.count >= 1
        assert all(0 <= each.get(name, 0) <= 100 for name in ("gpu-core", "gpu-memory-ratio", "rdma", "fpga"))
        assert "gpu.shared" not in each
