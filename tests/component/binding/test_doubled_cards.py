"""Cards that two pods hold though only one may: reported after ten seconds, and as long as it lasts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from berth_api import names
from berth_operator.binding.notifier import Notifier
from berth_operator.binding.reports.attempts import Attempts
from berth_operator.binding.reports.reporter import Reporter
from berth_operator.binding.upkeep import doubled_cards
from berth_operator.controllers.reconcile import status
from berth_operator.metrics import counters
from berth_operator.state.cache.cluster import Cluster
from tests.component.world import Api, now
from tests.objects.builders import CORE, GPU, RATIO, device, entry, every_pod, node, pod, whole

pytestmark = pytest.mark.looptime


class World:
    """A node of two cards, and the loop that reports."""

    def __init__(self) -> None:
        self.api = Api()
        self.reporter = Reporter(api=self.api, instance="me", clock=now)
        notifier = Notifier(reporter=self.reporter, attempts=Attempts(clock=now), mark=lambda _kind, _name: None)
        self.cluster = Cluster(grace=1e9, listener=notifier, clock=now)
        self.pods = every_pod(self.cluster)
        self.cluster.node_cache.put_node(node())
        self.cluster.node_cache.put_device(device("node", *map(entry, range(2))))

    def bind(self, name: str, minor: int, hundredths: int = 100) -> None:
        self.pods.apply("ADDED", _pod(name, minor, hundredths))

    def end(self, name: str, minor: int) -> None:
        self.pods.apply("DELETED", _pod(name, minor, 100))

    def condition(self) -> str:
        """Return the message of the Device's condition; empty without one."""
        shown = status.wanted(self.cluster.node_cache.view("node"), lambda: "2026-01-01T00:00:00Z")
        return next((each.message for each in shown.conditions if each.type == names.HELD_ONCE), "")

    def reports(self) -> list[tuple[str, str]]:
        return sorted((event["regarding"]["name"], event["note"]) for _, event in self.api.events)

    @staticmethod
    def gauge() -> float:
        return next(sample.value for metric in counters.DOUBLED_CARDS.collect() for sample in metric.samples)


def _pod(name: str, minor: int, hundredths: int) -> dict[str, Any]:
    amounts = {CORE: str(hundredths), RATIO: str(hundredths)}
    part = {"gpu": [{"minor": minor, "resources": amounts, "id": f"GPU-{minor}"}]}
    allocated = whole(minor) if hundredths == 100 else part
    return pod(name, {GPU: str(hundredths)}, on="node", allocated=allocated)


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[World]:
    world = World()
    tasks = [
        asyncio.create_task(doubled_cards.run(world.cluster, world.reporter)),
        asyncio.create_task(world.reporter.run()),
    ]
    try:
        yield world
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_two_holders_of_a_whole_card_are_reported_until_one_is_gone() -> None:
    async with running() as world:
        for name in ("a", "b"):
            world.bind(name, 1)
        await asyncio.sleep(9)
        assert (world.reports(), world.condition(), world.gauge()) == ([], "", 0)
        await asyncio.sleep(6)
        of = "delete one of the pods (docs/backup.md#berthcardsdoubled)"
        assert world.reports() == [(x, f"gpu 1 on node is held by ns/{y} too: {of}") for x, y in ("ab", "ba")]
        assert (world.condition(), world.gauge()) == ("gpu 1: ns/a, ns/b", 1)
        await asyncio.sleep(60)
        assert len(world.reports()) == 2
        world.end("a", 1)
        await asyncio.sleep(3)
        assert (world.condition(), world.gauge()) == ("", 0)


async def test_a_share_of_a_card_that_another_pod_has_whole_is_reported() -> None:
    async with running() as world:
        world.bind("a", 0)
        world.bind("b", 0, 20)
        await asyncio.sleep(15)
        assert world.condition() == "gpu 0: ns/a, ns/b"


async def test_shares_that_fit_are_none() -> None:
    async with running() as world:
        for name in ("a", "b"):
            world.bind(name, 0, 50)
        world.bind("c", 1)
        await asyncio.sleep(30)
        assert (world.reports(), world.condition(), world.gauge()) == ([], "", 0)


async def test_a_swap_of_a_few_seconds_is_none() -> None:
    async with running() as world:
        for name in ("a", "b"):
            world.bind(name, 1)
        await asyncio.sleep(7)
        world.end("a", 1)
        world.bind("c", 1)
        await asyncio.sleep(7)
        assert world.reports() == []
