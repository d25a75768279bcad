"""Which of its pod's cards each container sees."""

from collections.abc import Sequence

import pytest

from berth_api import request, resources
from berth_api.request import share
from berth_api.resources import Container
from tests.objects.builders import CORE, GI, GPU, MEMORY, NVIDIA, RATIO, RDMA, SHARED


def part(name: str, *, init: bool = False, sidecar: bool = False, **amounts: int) -> Container:
    long = {"nvidia": NVIDIA, "gpu": GPU, "ratio": RATIO, "core": CORE, "memory": MEMORY, "shared": SHARED}
    long |= {"slices": "nvidia.com/gpu.shared", "mig1": "nvidia.com/mig-1g.10gb", "mig2": "nvidia.com/mig-2g.20gb"}
    long |= {"cpu": "cpu", "rdma": RDMA, "other": "koordinator.sh/gpu"}
    requests = {long[key]: amount for key, amount in amounts.items()}
    return Container(name=name, requests=requests, init=init or sidecar, sidecar=sidecar)


def seen(containers: Sequence[Container]) -> dict[str, tuple[int, int]]:
    devices = request.of_resources(resources.combined(containers))
    return {part.container: (part.first, part.end) for part in share.of_pod(containers, devices)}


CONTAINER_SEES = {
    "no device": ([part("a", cpu=1)], {}),
    "no GPU": ([part("a", rdma=100)], {}),
    "one card": ([part("a", nvidia=1)], {"a": (0, 1)}),
    "two cards": ([part("a", nvidia=2)], {"a": (0, 2)}),
    "cards of their own": ([part("a", nvidia=1), part("b", nvidia=2)], {"a": (0, 1), "b": (1, 3)}),
    "one without a device": ([part("a", nvidia=1), part("b", cpu=1)], {"a": (0, 1)}),
    "slices": ([part("a", slices=1), part("b", slices=2)], {"a": (0, 1), "b": (1, 3)}),
    "instances": ([part("a", mig1=1), part("b", mig1=1)], {"a": (0, 1), "b": (1, 2)}),
    "two halves of a card": ([part("a", gpu=50), part("b", gpu=50)], {"a": (0, 1), "b": (0, 1)}),
    "a whole card each": ([part("a", gpu=100), part("b", gpu=100)], {"a": (0, 1), "b": (1, 2)}),
    "over the border": ([part("a", gpu=50), part("b", gpu=150)], {"a": (0, 1), "b": (0, 2)}),
    "the other prefix": ([part("a", other=100), part("b", other=100)], {"a": (0, 1), "b": (1, 2)}),
    "by memory": ([part("a", memory=4 * GI)], {"a": (0, 1)}),
    "memory of one": ([part("a", memory=GI), part("b", memory=3 * GI)], {"a": (0, 1), "b": (0, 1)}),
    "spread by memory": ([part("a", shared=2, memory=8 * GI)], {"a": (0, 2)}),
    "spread by ratio": ([part("a", shared=2, ratio=100)], {"a": (0, 2)}),
    "a share each": ([part("a", shared=1, memory=GI), part("b", shared=1, memory=GI)], {"a": (0, 1), "b": (1, 2)}),
    "by core and ratio": ([part("a", core=50, ratio=200)], {"a": (0, 2)}),
    "init is gone": ([part("i", nvidia=3, init=True), part("a", nvidia=2)], {"i": (0, 3), "a": (0, 2)}),
    "init containers take turns": (
        [part("i", nvidia=1, init=True), part("j", nvidia=2, init=True), part("a", nvidia=1)],
        {"i": (0, 1), "j": (0, 2), "a": (0, 1)},
    ),
    "a sidecar stays": ([part("s", nvidia=1, sidecar=True), part("a", nvidia=2)], {"s": (0, 1), "a": (1, 3)}),
    "init with a sidecar": (
        [part("s", nvidia=1, sidecar=True), part("i", nvidia=2, init=True), part("a", nvidia=1)],
        {"s": (0, 1), "i": (1, 3), "a": (1, 2)},
    ),
    "init before a sidecar": (
        [part("i", nvidia=3, init=True), part("s", nvidia=1, sidecar=True), part("a", nvidia=1)],
        {"i": (0, 3), "s": (0, 1), "a": (1, 2)},
    ),
    "cores of the other's cards": ([part("a", core=50), part("b", ratio=200)], {"a": (0, 2), "b": (0, 2)}),
}


@pytest.mark.parametrize(("containers", "places"), CONTAINER_SEES.values(), ids=CONTAINER_SEES)
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
