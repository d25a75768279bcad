"""The gauges over the state are updated in slices, and are gone when the leader stops."""

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import count

import pytest

from berth_operator.core.values.request import PendingPod
from berth_operator.metrics import gauges
from berth_operator.metrics.gauges import GAUGES
from berth_operator.metrics.monitoring.bounds import MOST
from berth_operator.metrics.monitoring.monitor import PAUSES, SLICE, STRIDE, Monitor
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.listener import NoListener
from tests.objects.builders import GPU, NVIDIA, asks, device, entry, node, pod, waiting
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, allocated, gpu, resource_slice

PODS = 4_000


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    yield
    GAUGES.shown = {}


def filled() -> Cluster:
    cluster = Cluster(grace=1e9, listener=NoListener())
    cluster.node_cache.put_node(node("a"))
    cluster.node_cache.put_device(device("a", *(entry(minor) for minor in range(4))))
    return cluster


@pytest.mark.looptime
async def test_gauges_follow_the_state_until_the_term_ends() -> None:
    cluster = filled()
    monitor = Monitor(cluster=cluster, ages=lambda: {"nodes": 3.0}, wall=lambda: 1000.0, clock=lambda: 0.0)
    task = asyncio.create_task(monitor.run())
    await asyncio.sleep(0.5)
    assert GAUGES.shown[gauges.QUEUED]["active",] == 0
    assert GAUGES.shown[gauges.HEARD] == {("nodes",): 997.0}
    assert GAUGES.shown[gauges.CACHED] == {("nodes",): 1, ("pods",): 0, ("assumed_pods",): 0}
    assert sum(GAUGES.shown[gauges.GPUS].values()) == 4

    cluster.put_pending(pod("p", {NVIDIA: "1"}))
    cluster.put_pending(pod("gated", {NVIDIA: "1"}, schedulingGates=[{"name": "later"}]))
    await asyncio.sleep(2 * PAUSES[0])
    assert GAUGES.shown[gauges.QUEUED] == {("active",): 1, ("backoff",): 0, ("unschedulable",): 0, ("gated",): 1}

    cluster.remove_pending("uid-gated")
    await asyncio.sleep(2 * PAUSES[0])
    assert GAUGES.shown[gauges.QUEUED]["gated",] == 0

    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert GAUGES.shown == {}


async def test_counting_many_pods_leaves_the_loop_to_others() -> None:
    cluster = filled()
    for number in range(PODS):
        cluster.queue.put(_pod(number))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    # Every look at this clock finds the slice used up.
    clock = count(0.0, 2 * SLICE)
    others = asyncio.create_task(take_turns())
    await Monitor(cluster=cluster, ages=dict, clock=lambda: next(clock)).refresh()
    others.cancel()

    assert sum(GAUGES.shown[gauges.PENDING].values()) == PODS
    assert turns >= PODS // STRIDE


def _pod(number: int) -> PendingPod:
    return waiting(f"p{number}", asks({GPU: 100}), namespace=f"ns-{number % 3000}", created="2026-01-01T00:00:00Z")


async def test_models_are_bounded() -> None:
    cluster = filled()
    for number in range(MOST + 10):
        cluster.node_cache.put_node(node(f"n{number}"))
        cluster.node_cache.put_device(
            device(f"n{number}", {**entry(0), "id": f"GPU-{number}", "model": f"model-{number:03}"})
        )

    await Monitor(cluster=cluster, ages=dict).refresh()

    shown = GAUGES.shown[gauges.GPUS]
    assert len({model for model, _ in shown}) == MOST + 1
    assert sum(shown.values()) == 4 + MOST + 10


async def test_devices_of_slices_are_counted_by_driver_and_drivers_are_bounded() -> None:
    cluster = filled()
    to = ClaimsInTurns(cluster)
    to.put_slice(resource_slice(gpu(0), gpu(1), gpu(2), node="a"))
    to.put_slice(resource_slice(gpu(0), node="b", generation=1, name="old"))
    to.put_slice(resource_slice(gpu(0), gpu(1), node="b", generation=2, name="new"))
    to.put_claim(allocated("c", "gpu-0", "gpu-1", node="a"))
    for number in range(MOST + 10):
        to.put_slice(resource_slice(gpu(0), node="a", driver=f"driver-{number:03}"))

    await Monitor(cluster=cluster, ages=dict).refresh()

    shown = GAUGES.shown[gauges.CLAIM_DEVICES]
    assert (shown[NVIDIA_DRIVER, "allocated"], shown[NVIDIA_DRIVER, "free"]) == (2, 3)
    assert len({driver for driver, _ in shown}) == MOST + 1
    assert sum(shown.values()) == 5 + MOST + 10
