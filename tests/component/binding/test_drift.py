"""Pods that hold other devices than they were allocated: swapped, or charged and reported."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import orjson
import pytest

from berth_api import names
from berth_client.errors import Unreachable
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.upkeep.drift import PATIENCE, SWAP_PATIENCE, DriftKeeper
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches import sinks
from tests.component.world import LATENCY, Api, LostError, now, refusal
from tests.objects.builders import NVIDIA, device, entry, every_pod, gpu_pod, node, pod, whole

pytestmark = pytest.mark.looptime

Raw = dict[str, Any]


class World:
    """A node of four cards, with its cluster state and reporter."""

    def __init__(self, *, confined: bool = False) -> None:
        self.api = Api()
        self.reporter = Reporter(api=self.api, instance="me", clock=now)
        attempts = Attempts(clock=now)
        self.notifier = Notifier(reporter=self.reporter, attempts=attempts, mark=lambda _kind, _name: None)
        self.cluster = Cluster(grace=1e9, confined=confined, listener=self.notifier, clock=now)
        self.leads = True
        self.keeper = DriftKeeper(
            cluster=self.cluster,
            pods=self.api,
            reporter=self.reporter,
            leads=lambda: self.leads,
            changed=self.notifier.drift,
        )
        self.pods, self.gpu_pods = every_pod(self.cluster), sinks.gpu_pods(self.cluster)
        if not confined:
            self.cluster.node_cache.put_node(node())
        self.cluster.node_cache.put_device(device("node", *map(entry, range(4))))
        self.api.on_bound.append(self.seen)

    def seen(self, changed: Raw) -> None:
        """Pass a change to the state a moment later."""
        asyncio.get_running_loop().call_later(LATENCY, self.pods.apply, "MODIFIED", copy.deepcopy(changed))

    def bind(self, name: str, *minors: int) -> None:
        """Bind a pod with these cards; its one container sees all of them."""
        visible = {f"main{names.VISIBLE_SUFFIX}": ",".join(f"GPU-{minor}" for minor in minors)}
        bound = pod(name, {NVIDIA: str(len(minors))}, on="node", allocated=whole(*minors), annotations=visible)
        self.api.pods[name] = bound
        self.pods.apply("ADDED", copy.deepcopy(bound))

    def give(self, name: str, *ids: str) -> None:
        self.gpu_pods.apply("MODIFIED", gpu_pod(name, *ids))

    def allocated(self, name: str) -> list[str]:
        """Return the ids of a pod's allocation, which must be what its container sees."""
        annotations = self.api.pods[name]["metadata"]["annotations"]
        ids = [each["id"] for each in orjson.loads(annotations[names.ALLOCATED])["gpu"]]
        assert annotations[f"main{names.VISIBLE_SUFFIX}"] == ",".join(ids)
        return ids

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Api]:
        tasks = [asyncio.create_task(self.keeper.run()), asyncio.create_task(self.reporter.run())]
        try:
            yield self.api
            failed = [task.exception() for task in tasks if task.done()]
            assert not any(failed), failed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def drifting() -> float:
    [metric] = counters.DRIFTED.collect()
    return metric.samples[0].value


def swapped(world: World) -> None:
    world.bind("p", 0)
    world.bind("q", 1)
    world.give("p", "GPU-1")
    world.give("q", "GPU-0")


async def test_two_pods_that_hold_each_others_cards_have_their_allocations_exchanged() -> None:
    world = World()
    async with world.running() as api:
        swapped(world)
        await asyncio.sleep(10 * LATENCY)
        assert (world.allocated("p"), world.allocated("q")) == (["GPU-1"], ["GPU-0"])
        assert drifting() == 0
        await asyncio.sleep(60)
    assert [name for _, name in api.annotated] == ["p", "q"]
    assert api.events == []


async def test_the_second_half_is_waited_for() -> None:
    world = World()
    async with world.running() as api:
        world.bind("p", 0)
        world.bind("q", 1)
        world.give("p", "GPU-1")
        await asyncio.sleep(PATIENCE / 2)
        assert drifting() == 1
        world.give("q", "GPU-0")
        await asyncio.sleep(10 * LATENCY)
        assert (world.allocated("p"), world.allocated("q")) == (["GPU-1"], ["GPU-0"])
        await asyncio.sleep(60)
    assert api.events == []


async def test_a_pod_that_drifts_alone_keeps_its_allocation_and_is_reported_once() -> None:
    world = World()
    async with world.running() as api:
        world.bind("p", 0)
        world.give("p", "GPU-2")
        await asyncio.sleep(PATIENCE + 1)
        assert drifting() == 1
        assert api.events_of("p", "DevicesDrifted") == [
            "kubelet gave it gpu 2 (GPU-2); allocated was gpu 0 (GPU-0): it is charged for that"
        ]
        await asyncio.sleep(60)
        world.give("p", "GPU-3")
        await asyncio.sleep(60)
        world.give("p", "GPU-0")
        await asyncio.sleep(1)
        assert drifting() == 0
    assert world.allocated("p") == ["GPU-0"]
    assert len(api.events) == 1
    assert (api.events[0][1]["type"], api.events[0][1]["metadata"]["name"]) == ("Warning", "p.uid-p.drifted")
    assert api.annotated == []


async def test_a_third_pod_is_left_alone() -> None:
    world = World()
    async with world.running() as api:
        world.bind("r", 2)
        world.give("r", "GPU-2")
        swapped(world)
        await asyncio.sleep(5)
    assert {name for _, name in api.annotated} == {"p", "q"}


async def test_three_in_a_circle_are_exchanged_too() -> None:
    world = World()
    async with world.running():
        for name, promised, given in (("p", 0, 1), ("q", 1, 2), ("r", 2, 0)):
            world.bind(name, promised)
            world.give(name, f"GPU-{given}")
        await asyncio.sleep(2)
    assert [world.allocated(name) for name in "pqr"] == [["GPU-1"], ["GPU-2"], ["GPU-0"]]


async def test_what_a_crash_left_half_done_is_completed() -> None:
    world = World()
    world.bind("p", 1)
    world.bind("q", 1)
    world.give("p", "GPU-1")
    world.give("q", "GPU-0")
    async with world.running():
        await asyncio.sleep(1)
    assert (world.allocated("p"), world.allocated("q")) == (["GPU-1"], ["GPU-0"])


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Unreachable("away"), id="no answer"),
        pytest.param(LostError("lost"), id="done, but the answer was lost"),
        pytest.param(refusal(409, "modified"), id="changed meanwhile"),
        pytest.param(refusal(500, "broken"), id="server error"),
    ],
)
@pytest.mark.parametrize("call", ["get p", "annotate p", "annotate q"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_write_that_fails_is_made_again_and_a_swap_that_takes_a_while_is_no_drift(
    call: str, fault: Exception, times: int
) -> None:
    world = World()
    world.api.faults[call] = [fault] * times
    async with world.running() as api:
        swapped(world)
        await asyncio.sleep(SWAP_PATIENCE)
    assert (world.allocated("p"), world.allocated("q")) == (["GPU-1"], ["GPU-0"])
    assert not world.cluster.allocations.drifted
    assert api.events == []


async def test_a_write_that_always_fails_is_retried_more_and_more_rarely_and_the_drift_is_reported() -> None:
    world = World()
    world.api.always["annotate p"] = refusal(403, "a policy says no")
    async with world.running() as api:
        swapped(world)
        await asyncio.sleep(SWAP_PATIENCE - 1)
        assert api.events == []
        await asyncio.sleep(300)
        tries = [at for at, name in api.annotated if name == "p"]
        pauses = [round(after - before) for before, after in pairwise(tries)]
        assert pauses[:4] == [1, 2, 4, 8]
        assert all(60 <= pause <= 62 for pause in pauses[6:])
        assert len(api.events_of("p", "DevicesDrifted")) == 1
    assert world.allocated("q") == ["GPU-0"]


async def test_a_pod_that_went_is_passed_over() -> None:
    world = World()
    async with world.running() as api:
        swapped(world)
        del world.api.pods["p"]
        await asyncio.sleep(0.5)
        world.pods.apply("DELETED", pod("p", {NVIDIA: "1"}, on="node"))
        await asyncio.sleep(5)
    assert {name for _, name in api.annotated} == {"q"}
    assert world.allocated("q") == ["GPU-0"]


async def test_another_pod_of_that_name_is_left_alone() -> None:
    world = World()
    async with world.running() as api:
        swapped(world)
        world.api.pods["p"] = pod("p", {NVIDIA: "1"}, on="node", allocated=whole(0), uid="another")
        await asyncio.sleep(0.5)
    assert {name for _, name in api.annotated} == {"q"}


async def test_a_replica_that_does_not_lead_writes_nothing() -> None:
    world = World()
    world.leads = False
    async with world.running() as api:
        swapped(world)
        await asyncio.sleep(5)
    assert api.annotated == []


async def test_pods_on_nodes_of_another_instance_are_left_to_it() -> None:
    world = World(confined=True)
    async with world.running() as api:
        swapped(world)
        await asyncio.sleep(5)
        assert drifting() == 0
    assert (api.annotated, api.events) == ([], [])
