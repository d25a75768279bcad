"""Which of its pod's cards each container sees."""

from collections.abc import Sequence

import pytest

from berth_api import request, resources
from berth_api.request import share
from berth_api.resources import Container
from tests.builders import CORE, GI, GPU, MEMORY, NVIDIA, RATIO, RDMA, SHARED


def part(name: str, *, init: bool = False, sidecar: bool = False, **amounts: int) -> Container:
    long = {"nvidia": NVIDIA, "gpu": GPU, "ratio": RATIO, "core": CORE, "memory": MEMORY, "shared": SHARED}
    long |= {"slices": "nvidia.com/gpu.shared", "mig1": "nvidia.com/mig-1g.10gb", "mig2": "nvidia.com/mig-2g.20gb"}
    long |= {"cpu": "cpu", "rdma": RDMA, "other": "koordinator.sh/gpu"}
    requests = {long[key]: amount for key, amount in amounts.items()}
    return Container(name=name, requests=requests, init=init or sidecar, sidecar=sidecar)


def seen(containers: Sequence[Container]) -> dict[str, tuple[int, int]]:
    devices = request.of_resources(resources.combined(containers))
    return {part.container: (part.first, part.end) for part in share.of_pod(containers, devices)}


@pytest.mark.parametrize(
    ("containers", "places"),
    [
        pytest.param([part("a", cpu=1)], {}, id="no device"),
        pytest.param([part("a", rdma=100)], {}, id="no GPU"),
        pytest.param([part("a", nvidia=1)], {"a": (0, 1)}, id="one card"),
        pytest.param([part("a", nvidia=2)], {"a": (0, 2)}, id="two cards"),
        pytest.param([part("a", nvidia=1), part("b", nvidia=2)], {"a": (0, 1), "b": (1, 3)}, id="cards of their own"),
        pytest.param([part("a", nvidia=1), part("b", cpu=1)], {"a": (0, 1)}, id="one without a device"),
        pytest.param([part("a", slices=1), part("b", slices=2)], {"a": (0, 1), "b": (1, 3)}, id="slices"),
        pytest.param([part("a", mig1=1), part("b", mig1=1)], {"a": (0, 1), "b": (1, 2)}, id="instances"),
        pytest.param([part("a", gpu=50), part("b", gpu=50)], {"a": (0, 1), "b": (0, 1)}, id="two halves of a card"),
        pytest.param([part("a", gpu=100), part("b", gpu=100)], {"a": (0, 1), "b": (1, 2)}, id="a whole card each"),
        pytest.param([part("a", gpu=50), part("b", gpu=150)], {"a": (0, 1), "b": (0, 2)}, id="over the border"),
        pytest.param([part("a", other=100), part("b", other=100)], {"a": (0, 1), "b": (1, 2)}, id="the other prefix"),
        pytest.param([part("a", memory=4 * GI)], {"a": (0, 1)}, id="by memory"),
        pytest.param([part("a", memory=GI), part("b", memory=3 * GI)], {"a": (0, 1), "b": (0, 1)}, id="memory of one"),
        pytest.param([part("a", shared=2, memory=8 * GI)], {"a": (0, 2)}, id="spread by memory"),
        pytest.param([part("a", shared=2, ratio=100)], {"a": (0, 2)}, id="spread by ratio"),
        pytest.param(
            [part("a", shared=1, memory=GI), part("b", shared=1, memory=GI)],
            {"a": (0, 1), "b": (1, 2)},
            id="a share each",
        ),
        pytest.param([part("a", core=50, ratio=200)], {"a": (0, 2)}, id="by core and ratio"),
        pytest.param(
            [part("i", nvidia=3, init=True), part("a", nvidia=2)], {"i": (0, 3), "a": (0, 2)}, id="init is gone"
        ),
        pytest.param(
            [part("i", nvidia=1, init=True), part("j", nvidia=2, init=True), part("a", nvidia=1)],
            {"i": (0, 1), "j": (0, 2), "a": (0, 1)},
            id="init containers take turns",
        ),
        pytest.param(
            [part("s", nvidia=1, sidecar=True), part("a", nvidia=2)], {"s": (0, 1), "a": (1, 3)}, id="a sidecar stays"
        ),
        pytest.param(
            [part("s", nvidia=1, sidecar=True), part("i", nvidia=2, init=True), part("a", nvidia=1)],
            {"s": (0, 1), "i": (1, 3), "a": (1, 2)},
            id="init with a sidecar",
        ),
        pytest.param(
            [part("i", nvidia=3, init=True), part("s", nvidia=1, sidecar=True), part("a", nvidia=1)],
            {"i": (0, 3), "s": (0, 1), "a": (1, 2)},
            id="init before a sidecar",
        ),
        pytest.param(
            [part("a", core=50), part("b", ratio=200)], {"a": (0, 2), "b": (0, 2)}, id="cores of the other's cards"
        ),
    ],
)
def test_a_container_sees(containers: list[Container], places: dict[str, tuple[int, int]]) -> None:
    assert seen(containers) == places


def test_a_pod_whose_overhead_alone_asks_has_no_container_that_sees_a_card() -> None:
    assert share.of_pod([part("a", cpu=1)], request.of_resources({NVIDIA: 1})) == ()


def test_whole_cards_of_two_containers_never_overlap() -> None:
    for first in range(1, 9):
        for second in range(1, 9):
            places = seen([part("a", nvidia=first), part("b", nvidia=second)])
            assert places == {"a": (0, first), "b": (first, first + second)}


def test_instances_of_several_profiles_lie_one_after_the_other() -> None:
    containers = [part("a", mig1=1, mig2=1), part("b", mig1=2)]
    devices = request.of_resources(resources.combined(containers))
    shares = [(part.container, part.first, part.end) for part in share.of_pod(containers, devices)]
    assert shares == [("a", 0, 1), ("b", 1, 3), ("a", 3, 4)]
