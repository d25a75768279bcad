"""Requests for GPUs are divided over cards, and the cards are then shared or whole."""

from collections.abc import Mapping

import pytest

from berth_api.request import RequestError, of_resources
from tests.builders import CORE, GI, GPU, MEMORY, NVIDIA, RATIO, RDMA, SHARED

NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"


@pytest.mark.parametrize(
    ("requested", "count", "each"),
    [
        pytest.param({NVIDIA: 1}, 1, {"gpu-core": 100, "gpu-memory-ratio": 100}, id="a card"),
        pytest.param({NVIDIA: 8}, 8, {"gpu-core": 100, "gpu-memory-ratio": 100}, id="eight cards"),
        pytest.param({GPU: 1}, 1, {"gpu-core": 1, "gpu-memory-ratio": 1}, id="a hundredth"),
        pytest.param({GPU: 99}, 1, {"gpu-core": 99, "gpu-memory-ratio": 99}, id="almost a card"),
        pytest.param({GPU: 100}, 1, {"gpu-core": 100, "gpu-memory-ratio": 100}, id="exactly a card is one"),
        pytest.param({GPU: 200}, 2, {"gpu-core": 100, "gpu-memory-ratio": 100}, id="two hundred is two"),
        pytest.param({CORE: 30, RATIO: 60}, 1, {"gpu-core": 30, "gpu-memory-ratio": 60}, id="core and ratio of one"),
        pytest.param({CORE: 300, RATIO: 300}, 3, {"gpu-core": 100, "gpu-memory-ratio": 100}, id="ratio counts cards"),
        pytest.param({CORE: 100, RATIO: 300}, 3, {"gpu-core": 33, "gpu-memory-ratio": 100}, id="core is divided down"),
        pytest.param({CORE: 1, RATIO: 200}, 2, {"gpu-core": 0, "gpu-memory-ratio": 100}, id="down to nothing"),
        pytest.param({MEMORY: 7}, 1, {"gpu-memory": 7}, id="bytes are of one card"),
        pytest.param({MEMORY: 640 * GI}, 1, {"gpu-memory": 640 * GI}, id="bytes are of one card, however many"),
        pytest.param({CORE: 40, MEMORY: GI}, 1, {"gpu-core": 40, "gpu-memory": GI}, id="core and bytes of one"),
        pytest.param({SHARED: 1, MEMORY: 9}, 1, {"gpu-memory": 9}, id="shared by one"),
        pytest.param({SHARED: 4, MEMORY: 9}, 4, {"gpu-memory": 2}, id="bytes are divided down"),
        pytest.param({SHARED: 4, RATIO: 400}, 4, {"gpu-memory-ratio": 100}, id="shared counts before ratio"),
        pytest.param({SHARED: 8, RATIO: 200}, 8, {"gpu-memory-ratio": 25}, id="a quarter of eight"),
        pytest.param({SHARED: 2, CORE: 20, RATIO: 60}, 2, {"gpu-core": 10, "gpu-memory-ratio": 30}, id="all three"),
        pytest.param({SHARED: 2, CORE: 20, MEMORY: 9}, 2, {"gpu-core": 10, "gpu-memory": 4}, id="core and bytes"),
        pytest.param({NPU_CORE: 9, RATIO: 200}, 2, {NPU_CORE: 4, "gpu-memory-ratio": 100}, id="NPUs, divided down"),
        pytest.param(
            {SHARED: 1, NPU_CORE: 4, NPU_CPU: 3, NPU_DVPP: 7, MEMORY: GI},
            1,
            {NPU_CORE: 4, NPU_CPU: 3, NPU_DVPP: 7, "gpu-memory": GI},
            id="a slice of an NPU",
        ),
    ],
)
def test_a_request_is_divided_evenly(requested: Mapping[str, int], count: int, each: Mapping[str, int]) -> None:
    (part,) = of_resources(requested).parts
    assert (part.count, dict(part.amounts)) == (count, each)


@pytest.mark.parametrize(
    ("requested", "whole"),
    [
        pytest.param({NVIDIA: 1}, True, id="a card"),
        pytest.param({GPU: 200}, True, id="two cards"),
        pytest.param({GPU: 99}, False, id="almost a card"),
        pytest.param({RATIO: 100}, True, id="all of the memory"),
        pytest.param({CORE: 50, RATIO: 100}, True, id="all of the memory, half the core"),
        pytest.param({CORE: 100, RATIO: 50}, False, id="all of the core, half the memory"),
        pytest.param({MEMORY: 80 * GI}, False, id="by bytes, however many"),
        pytest.param({CORE: 100, MEMORY: 80 * GI}, False, id="by bytes, with all of the core"),
        pytest.param({SHARED: 2, RATIO: 200}, True, id="shared in name only"),
        pytest.param({SHARED: 2, RATIO: 100}, False, id="half of two"),
        pytest.param({SHARED: 2, MEMORY: 160 * GI}, False, id="bytes of two"),
        pytest.param({RDMA: 100}, True, id="a NIC"),
        pytest.param({RDMA: 50}, False, id="half a NIC"),
        pytest.param({"nvidia.com/gpu.shared": 2}, False, id="slices"),
        pytest.param({"nvidia.com/mig-7g.80gb": 1}, False, id="an instance, however large"),
    ],
)
def test_a_card_is_whole_by_its_hundredths_of_memory(requested: Mapping[str, int], *, whole: bool) -> None:
    assert of_resources(requested).parts[0].whole is whole


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        pytest.param({CORE: 200, MEMORY: GI}, "puts gpu-core 200 on each of 1 card", id="two cards' core with bytes"),
        pytest.param({CORE: 400, RATIO: 200}, "puts gpu-core 200 on each of 2 card", id="twice the core of two cards"),
        pytest.param({CORE: 200, RATIO: 100}, "puts gpu-core 200 on each of 1 card", id="twice the core of one"),
    ],
)
def test_more_than_a_card_on_a_card_is_refused_and_not_left_to_wait(requested: Mapping[str, int], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        of_resources(requested)
    assert words in str(caught.value)
    assert "spread it with gpu.shared" in str(caught.value)
