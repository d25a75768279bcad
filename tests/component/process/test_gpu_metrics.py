"""Live GPU metrics are read in the background, under virtual time: a source that dies, and one that recovers."""

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from berth_operator.core.decision.cycle import Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.values.gpu_metrics import UNKNOWN, CardSample
from berth_operator.metrics.gpu.refreshing import Refresher
from berth_operator.metrics.gpu.sources import SourceError
from berth_operator.state.cache.cluster import Cluster
from tests.objects.builders import GI, NVIDIA, device, entry, node, waiting

pytestmark = pytest.mark.looptime

INTERVAL, STALE_AFTER = 15.0, 60.0
GENIUS = Policy(weights=(("genius", 10.0),))
SCHEDULED = "the decision"


class Exporter:
    """A source whose cards the test sets: node -> utilization; it may be down, or not answer at all."""

    def __init__(self) -> None:
        self.busy = {"a": 0.0, "b": 0.0}
        self.down = self.hangs = False
        self.reads: list[float] = []

    async def read(self) -> Sequence[CardSample]:
        self.reads.append(asyncio.get_running_loop().time())
        if self.hangs:
            await asyncio.Event().wait()
        if self.down:
            raise SourceError("http://prometheus: connection refused")
        return [
            CardSample(uuid=f"GPU-{name}", node=name, age=0.0, values=(80.0 * GI, busy, *(UNKNOWN,) * 5))
            for name, busy in self.busy.items()
        ]


class World:
    """Two nodes with a card each, and a refresher."""

    def __init__(self) -> None:
        self.cluster = Cluster(grace=1e9, clock=asyncio.get_running_loop().time)
        for name in "ab":
            self.cluster.node_cache.put_node(node(name))
            self.cluster.node_cache.put_device(device(name, entry(memory=str(80 * GI), id=f"GPU-{name}")))
        self.exporter, self.reported = Exporter(), list[str]()
        refresher = Refresher(
            source=self.exporter,
            cluster=self.cluster,
            interval=INTERVAL,
            stale_after=STALE_AFTER,
            report=self.reported.append,
        )
        self.task = asyncio.create_task(refresher.run())

    def node(self) -> str:
        """Return where a pod would go now."""
        outcome = decide(self.cluster.fleet, waiting("pod", {NVIDIA: 1}), GENIUS)
        assert isinstance(outcome, Placement)
        return outcome.node

    async def later(self, intervals: float) -> list[str]:
        """Wait, and return what was logged meanwhile."""
        with capture_logs() as logs:
            await asyncio.sleep(intervals * INTERVAL)
        return [f"{each['event']}: {each.get('state') or each.get('error')}" for each in logs]


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def test_a_hot_card_is_left_within_one_refresh() -> None:
    world = World()
    assert await world.later(0.5) == ["GPU metrics are known: fresh"]
    first, other = world.node(), {"a": "b", "b": "a"}[world.node()]
    world.exporter.busy[first] = 1.0
    assert world.node() == first
    assert await world.later(1) == []
    assert world.node() == other
    assert value("berth_gpu_metrics_cards", state="fresh") == 2
    world.task.cancel()


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_dead_source_is_reported_once_and_allocations_decide(*, hangs: bool) -> None:
    world = World()
    await world.later(0.5)
    first, other = world.node(), {"a": "b", "b": "a"}[world.node()]
    world.exporter.busy[first] = 1.0
    await world.later(1)
    world.exporter.down, world.exporter.hangs = True, hangs
    # What is known is still used while it is not too old.
    await world.later(3)
    assert (world.node(), world.reported) == (other, [])
    logged = await world.later(20)
    cause = "no answer within 60 s" if hangs else "http://prometheus: connection refused"
    assert sorted({*logged}) == [
        f"GPU metrics are stale: {cause}",
        *([f"GPU metrics not read: {cause}"] if hangs else []),
    ]
    assert len(logged) == len({*logged})
    assert world.node() == first
    [report] = world.reported
    assert report.startswith("GPU metrics are stale since ")
    assert report.endswith(f"Z, and decisions use allocations alone: {cause}")
    assert (value("berth_gpu_metrics_stale"), value("berth_gpu_metrics_cards", state="stale")) == (1, 2)
    world.exporter.down = world.exporter.hangs = False
    assert await world.later(5) == ["GPU metrics are known: fresh"]
    assert (world.node(), value("berth_gpu_metrics_stale"), len(world.reported)) == (other, 0, 1)
    world.task.cancel()


async def test_a_node_without_metrics_makes_them_stale_in_part() -> None:
    world = World()
    del world.exporter.busy["b"]
    assert await world.later(1.5) == ["GPU metrics are known: stale in part"]
    world.exporter.busy["b"] = 0.5
    assert await world.later(1) == ["GPU metrics are known: fresh"]
    world.task.cancel()


async def test_a_source_that_never_answered_is_reported_too() -> None:
    world = World()
    world.exporter.down = True
    with capture_logs() as logs:
        await asyncio.sleep(3 * INTERVAL)
    assert [each["event"] for each in logs] == ["GPU metrics not read", "GPU metrics are stale"]
    assert logs[1]["since"] == "the start of this leader"
    assert world.exporter.reads == [0.0, 15.0, 30.0]
    world.task.cancel()
