"""A plug-in that fails delays only the pods that request its devices, and only while it fails."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from berth_operator.binding.reports.waiting_pods import QUIET
from berth_operator.binding.turn import BATCH
from berth_operator.core.allocators import simple
from tests.component.gangs.test_gangs import member
from tests.component.world import Raw, World
from tests.objects.builders import NVIDIA, device, entry, node, pod, pod_group
from tests.stand_ins.third_party import NPU, OWNER, fails, plugins

pytestmark = pytest.mark.looptime

MESSAGE = f"{OWNER} failed in {{}}: ZeroDivisionError: division by zero"


class Faulty(World):
    """A world with a node of NPUs and a GPU, and a plug-in that fails in the calls listed in `broken`."""

    def __init__(self, *broken: str, npus: int = 4) -> None:
        self.broken = set(broken)
        own = {call: self._sometimes(call) for call in ("passes", "could_pass", "reasons", "choose")}
        super().__init__(plugins=plugins(**own))
        self.cluster.node_cache.put_node(node(allocatable={NPU: "2"}))
        self.cluster.node_cache.put_device(device("node", entry(0), *map(npu, range(npus))))

    def _sometimes(self, call: str) -> Callable[..., Any]:
        good = getattr(simple, call)

        def answer(*arguments: Any) -> Any:
            return fails() if call in self.broken else good(*arguments)

        return answer


def npu(minor: int) -> Raw:
    return {"type": "npu", "minor": minor, "id": f"NPU-{minor}", "health": True}


def held(name: str, minor: int = 0, **fields: Any) -> Raw:
    """Return a bound pod with an NPU."""
    allocated = f'{{"npu": [{{"minor": {minor}, "resources": {{"kubernetes.io/npu": "100"}}}}]}}'
    return pod(name, {NPU: "1"}, on="node", allocated=allocated, **fields)


def failures() -> float:
    return REGISTRY.get_sample_value("berth_plugin_failures_total", {"type": "npu"}) or 0.0


@pytest.mark.parametrize("call", ["passes", "choose"])
async def test_the_failure_is_reported_and_the_pod_is_tried_again_until_it_is_bound(call: str) -> None:
    world, before = Faulty(call), failures()
    world.submit(pod("npu", {NPU: "1"}))
    with capture_logs() as logs:
        async with world.running() as api:
            await asyncio.sleep(30)
            # At once, and after 1, 2, 4, 8 and 10 s.
            assert failures() - before == 6
            assert api.messages("npu") == [MESSAGE.format(call)]
            assert api.events_of("npu", "FailedScheduling") == [MESSAGE.format(call)]
            world.broken.clear()
            await asyncio.sleep(10)
    assert api.bound() == {"npu": "node"}
    assert [each["why"] for each in logs if each["event"] == "plug-in failed"] == [MESSAGE.format(call)]


async def test_all_others_are_bound_at_once_however_many_it_fails_at() -> None:
    world = Faulty("passes")
    world.submit(*(pod(f"npu{number}", {NPU: "1"}, priority=9) for number in range(3 * BATCH)))
    world.submit(pod("gpu", {NVIDIA: "1"}), pod("plain", {"cpu": "1"}))
    async with world.running() as api:
        await asyncio.sleep(0.5)
    assert api.bound() == {"gpu": "node", "plain": "node"}


async def test_a_failure_is_reported_on_the_whole_gang_which_is_tried_again() -> None:
    world = Faulty("choose")
    world.groups.apply("ADDED", pod_group(minimum=2))
    world.submit(*(member(name, requests={NPU: "1"}) for name in ("a", "b")))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert not world.cluster.fleet.charges
        assert api.messages("a") == api.messages("b") == [MESSAGE.format("choose")]
        world.broken.clear()
        await asyncio.sleep(15)
    assert api.bound() == {"a": "node", "b": "node"}


async def test_no_pod_is_evicted_for_a_pod_at_which_a_plug_in_fails_and_nothing_is_nominated() -> None:
    world = Faulty(npus=1)
    world.grace = 60.0
    world.api.pods["low"] = held("low")
    world.pods.apply("ADDED", held("low"))
    world.submit(pod("high", {NPU: "1"}, priority=9))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert world.cluster.fleet.nominees
        world.broken.add("passes")
        world.cluster.node_cache.put_device(device("node", entry(0), npu(0), npu(1), generation=2))
        await asyncio.sleep(1)
        assert not world.cluster.fleet.nominees
        assert api.nominations == [("high", "node"), ("high", None)]
        assert api.messages("high")[-1] == MESSAGE.format("passes")
        world.broken.clear()
        await asyncio.sleep(10)
    assert api.bound()["high"] == "node"


async def test_a_pod_that_leaves_wakes_those_at_which_it_may_fail() -> None:
    world = Faulty(npus=1)
    world.api.pods["first"] = held("first")
    world.pods.apply("ADDED", held("first"))
    world.submit(pod("second", {NPU: "1"}))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert "node(s) have too few free NPUs" in api.messages("second")[-1]
        world.broken.add("passes")
        world.delete("first")
        await asyncio.sleep(QUIET + 1)
        assert api.messages("second")[-1] == MESSAGE.format("passes")
        world.broken.clear()
        await asyncio.sleep(10)
    assert api.bound() == {"second": "node"}
