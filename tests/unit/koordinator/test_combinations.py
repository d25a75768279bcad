"""The valid combinations of resources, their validation, and their normal form.

Some rows differ from Koordinator. There, Koordinator accepts a request that it can then never place, or overbooks.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_api.request import Part, RequestError, of_resources
from berth_api.resources import quantity
from berth_api.values.selectors import LabelSelector, Requirement
from tests.objects.builders import CORE, FPGA, GI, GPU, MEMORY, NVIDIA, RATIO, RDMA, SHARED, gpus

AMD, DCU = "amd.com/gpu", "dcu.com/gpu"
NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
UNDIVIDED = LabelSelector(requirements=(Requirement(key="berth.dev/partition", operator="DoesNotExist"),))
SLICES, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
GPU_NAMES = (NVIDIA, AMD, DCU, GPU, SHARED, CORE, MEMORY, RATIO, NPU_CORE, NPU_CPU, NPU_DVPP, SLICES, MIG)

VALID = (
    {NVIDIA},
    {SLICES},
    {MIG},
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
"""Koordinator's seventeen combinations are these without slices and MIG, and those of rdma and fpga."""


def renamed(amounts: Mapping[str, int], prefix: str) -> dict[str, int]:
    return {name.replace(names.PREFIX, prefix): amount for name, amount in amounts.items()}


COMBINATIONS = [
    pytest.param({NVIDIA: 2}, gpus(2, unit="plugin unit", core=100, ratio=100), "nvidia", id="nvidia"),
    pytest.param({SLICES: 3}, gpus(3, unit="replica"), "nvidia", id="slices"),
    pytest.param({MIG: 2}, gpus(2, unit="instance", **{MIG: 1}), "nvidia", id="MIG"),
    pytest.param({AMD: 1}, replace(gpus(1, core=100, ratio=100), selector=UNDIVIDED), "amd", id="amd"),
    pytest.param({DCU: 3}, gpus(3, core=100, ratio=100), "hygon", id="dcu"),
    pytest.param({GPU: 50}, gpus(1, core=50, ratio=50), "", id="gpu, part"),
    pytest.param({GPU: 100}, gpus(1, core=100, ratio=100), "", id="gpu, one"),
    pytest.param({GPU: 300}, gpus(3, core=100, ratio=100), "", id="gpu, several"),
    pytest.param({MEMORY: 8 * GI}, gpus(1, memory=8 * GI), "", id="memory"),
    pytest.param({RATIO: 30}, gpus(1, ratio=30), "", id="ratio, part"),
    pytest.param({RATIO: 200}, gpus(2, ratio=100), "", id="ratio, several"),
    pytest.param({CORE: 50, MEMORY: GI}, gpus(1, core=50, memory=GI), "", id="core+memory"),
    pytest.param({CORE: 100, MEMORY: GI}, gpus(1, core=100, memory=GI), "", id="core+memory, whole core"),
    pytest.param({CORE: 50, RATIO: 60}, gpus(1, core=50, ratio=60), "", id="core+ratio, part"),
    pytest.param({CORE: 200, RATIO: 200}, gpus(2, core=100, ratio=100), "", id="core+ratio, several"),
    pytest.param({CORE: 50, RATIO: 200}, gpus(2, core=25, ratio=100), "", id="core+ratio, little core on several"),
    pytest.param({CORE: 33, RATIO: 200}, gpus(2, core=16, ratio=100), "", id="core+ratio, rounded down"),
    pytest.param({CORE: 1, RATIO: 200}, gpus(2, core=0, ratio=100), "", id="core+ratio, down to nothing"),
    pytest.param({NPU_CORE: 10, RATIO: 50}, gpus(1, npu=10, ratio=50), "huawei", id="npu-core+ratio"),
    pytest.param({NPU_CORE: 40, RATIO: 200}, gpus(2, npu=20, ratio=100), "huawei", id="npu-core+ratio, several"),
    pytest.param({SHARED: 2, MEMORY: 8 * GI}, gpus(2, memory=4 * GI), "", id="shared+memory"),
    pytest.param({SHARED: 3, MEMORY: 100}, gpus(3, memory=33), "", id="shared+memory, rounded down"),
    pytest.param({SHARED: 2, RATIO: 60}, gpus(2, ratio=30), "", id="shared+ratio"),
    pytest.param({SHARED: 2, RATIO: 200}, gpus(2, ratio=100), "", id="shared+ratio, whole"),
    pytest.param({SHARED: 1, RATIO: 100}, gpus(1, ratio=100), "", id="shared+ratio, one"),
    pytest.param({SHARED: 2, CORE: 60, MEMORY: 6}, gpus(2, core=30, memory=3), "", id="shared+core+memory"),
    pytest.param({SHARED: 2, CORE: 60, RATIO: 80}, gpus(2, core=30, ratio=40), "", id="shared+core+ratio"),
    pytest.param(
        {SHARED: 1, NPU_CORE: 4, NPU_CPU: 2, MEMORY: GI},
        gpus(1, npu=4, npu_cpu=2, memory=GI),
        "huawei",
        id="npu slice",
    ),
    pytest.param(
        {SHARED: 1, NPU_CORE: 4, NPU_CPU: 2, MEMORY: GI, NPU_DVPP: 100},
        gpus(1, npu=4, npu_cpu=2, memory=GI, dvpp=100),
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
@pytest.mark.parametrize(("requested", "part", "vendor"), COMBINATIONS)
def test_a_valid_combination_has_one_normal_form(
    requested: dict[str, int], part: Part, vendor: str, prefix: str
) -> None:
    part_ = of_resources(renamed(requested, prefix))
    assert (part_.parts, part_.vendor) == ((part,), vendor)


def test_every_valid_combination_stands_in_the_table() -> None:
    asked: list[Any] = [case.values[0] for case in COMBINATIONS]
    shown = {frozenset(each) for each in asked}
    assert shown == {frozenset(each) for each in VALID} | {frozenset({RDMA}), frozenset({FPGA})}


SUBSETS = [frozenset(each) for size in range(1, 14) for each in itertools.combinations(GPU_NAMES, size)]


def accepted(subset: frozenset[str]) -> bool:
    """Request amounts that every rule allows, so that only the combination matters."""
    try:
        of_resources({name: 1 if name in (SHARED, NVIDIA, AMD, DCU) else 100 for name in subset})
    except RequestError as error:
        if " is not a request for GPUs; " not in str(error):
            raise
        return False
    return True


def test_of_all_8191_combinations_exactly_the_valid_ones_pass() -> None:
    assert len(SUBSETS) == 8191
    assert {each for each in SUBSETS if accepted(each)} == {frozenset(each) for each in VALID}


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        pytest.param(
            {CORE: 50},
            "kubernetes.io/gpu-core: 50 is not a request for GPUs; add gpu-memory or gpu-memory-ratio",
            id="core without memory",
        ),
        pytest.param(
            {CORE: 50, SHARED: 2},
            "kubernetes.io/gpu-core: 50, kubernetes.io/gpu.shared: 2 is not a request for GPUs; "
            "add gpu-memory or gpu-memory-ratio",
            id="shared core without memory",
        ),
        pytest.param(
            {MEMORY: 20 * GI, RATIO: 25},
            "kubernetes.io/gpu-memory: 20Gi, kubernetes.io/gpu-memory-ratio: 25 is not a request for GPUs; "
            "allowed is gpu-memory or gpu-memory-ratio, not both: remove one of them",
            id="memory twice",
        ),
        pytest.param(
            {NVIDIA: 1, CORE: 50},
            "kubernetes.io/gpu-core: 50, nvidia.com/gpu: 1 is not a request for GPUs; "
            "nvidia.com/gpu is allowed only by itself: remove it or the others",
            id="a card and a part of one",
        ),
        pytest.param(
            {"koordinator.sh/gpu": 50, "nvidia.com/mig-1g.10gb": 1},
            "koordinator.sh/gpu: 50, nvidia.com/mig-1g.10gb: 1 is not a request for GPUs; "
            "koordinator.sh/gpu is allowed only by itself: remove it or the others",
            id="an instance and a part of a card",
        ),
        pytest.param(
            {NPU_CORE: 4},
            "huawei.com/npu-core: 4 is not a request for GPUs; allowed are huawei.com/npu-core with gpu-memory-ratio, "
            "or with huawei.com/npu-cpu, gpu-memory, gpu.shared and perhaps huawei.com/npu-dvpp",
            id="an NPU without the rest",
        ),
    ],
)
def test_an_invalid_combination_is_shown_with_what_to_change(requested: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        of_resources(requested)
    assert str(caught.value) == message


REQUEST_WITHOUT_MEANING_IS_REFUSED_WITH_THE_REASON = {
    "gpu one and a half": ({GPU: 150}, "gpu: 150; allowed are 1 to 100"),
    "gpu just over one": ({GPU: 101}, "gpu: 101;"),
    "gpu absurd": ({GPU: quantity.MAX}, f"gpu: {quantity.MAX};"),
    "ratio": ({RATIO: 250}, "gpu-memory-ratio: 250;"),
    "core with ratio": ({CORE: 150, RATIO: 100}, "gpu-core: 150;"),
    "core with memory": ({CORE: 150, MEMORY: GI}, "gpu-core: 150;"),
    "ratio with core": ({CORE: 50, RATIO: 150}, "gpu-memory-ratio: 150;"),
    "ratio with npu-core": ({NPU_CORE: 5, RATIO: 150}, "gpu-memory-ratio: 150;"),
    "rdma": ({RDMA: 150}, "rdma: 150;"),
    "fpga": ({FPGA: 101}, "fpga: 101;"),
    "ratio not divisible": (
        {SHARED: 2, RATIO: 51},
        "kubernetes.io/gpu-memory-ratio: 51, kubernetes.io/gpu.shared: 2; allowed are multiples",
    ),
    "core not divisible": (
        {SHARED: 2, CORE: 51, MEMORY: GI},
        "kubernetes.io/gpu-core: 51, kubernetes.io/gpu.shared: 2; allowed are multiples",
    ),
    "ratio over a card": (
        {SHARED: 2, RATIO: 202},
        "kubernetes.io/gpu-memory-ratio: 202, kubernetes.io/gpu.shared: 2; allowed are multiples",
    ),
    "core over a card": (
        {SHARED: 2, CORE: 202, RATIO: 2},
        "kubernetes.io/gpu-core: 202, kubernetes.io/gpu.shared: 2; allowed are multiples",
    ),
    "less than a byte": ({SHARED: 3, MEMORY: 2}, "gpu-memory: 2 is less than a byte on each of 3"),
    "npu on two cards": ({SHARED: 2, NPU_CORE: 1, NPU_CPU: 1, MEMORY: GI}, "allowed is gpu.shared: 1"),
    "dvpp over a card": ({SHARED: 1, NPU_CORE: 1, NPU_CPU: 1, MEMORY: GI, NPU_DVPP: 101}, "npu-dvpp: 101;"),
    # Koordinator accepts the next two and then can never place, or overbooks, them.
    "two cards' core by memory": (
        {CORE: 200, MEMORY: GI},
        "puts gpu-core 200 on each of 1 card(s); allowed are up to 100: spread it with gpu.shared",
    ),
    "twice the core of two cards": ({CORE: 400, RATIO: 200}, "puts gpu-core 200 on each of 2 card"),
    "both prefixes": ({GPU: 50, "koordinator.sh/gpu": 50}, "are the same resource; request one"),
    "one type right, the other wrong": ({NVIDIA: 1, RDMA: 150}, "rdma: 150;"),
}


@pytest.mark.parametrize(
    ("requested", "words"),
    REQUEST_WITHOUT_MEANING_IS_REFUSED_WITH_THE_REASON.values(),
    ids=REQUEST_WITHOUT_MEANING_IS_REFUSED_WITH_THE_REASON,
)
def test_a_request_without_meaning_is_refused_with_the_reason(requested: dict[str, int], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        of_resources(requested)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("requested", "whole"),
    [
        pytest.param({NVIDIA: 1}, True, id="a card"),
        pytest.param({GPU: 99}, False, id="almost a card"),
        pytest.param({CORE: 50, RATIO: 100}, True, id="all of the memory, half the core"),
        pytest.param({CORE: 100, RATIO: 50}, False, id="all of the core, half the memory"),
        pytest.param({CORE: 100, MEMORY: 80 * GI}, False, id="by bytes, however many"),
        pytest.param({SHARED: 2, RATIO: 200}, True, id="shared in name only"),
        pytest.param({RDMA: 100}, True, id="a NIC"),
        pytest.param({RDMA: 50}, False, id="half a NIC"),
        pytest.param({SLICES: 2}, False, id="slices"),
        pytest.param({MIG: 1}, False, id="an instance"),
    ],
)
def test_a_card_is_whole_by_its_hundredths_of_memory(requested: Mapping[str, int], *, whole: bool) -> None:
    assert of_resources(requested).parts[0].whole is whole
