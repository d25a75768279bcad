"""Gather what the agent knows of its cards, and render it in Prometheus' format."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from berth_agent.metrics import series
from berth_agent.metrics.sampler import MIN_INTERVAL, Sampler
from berth_agent.metrics.series import Snapshot
from berth_agent.publishing.publish import TAKE_BACKS
from berth_agent.readings import Reading
from berth_agent.usage import processes
from berth_agent.usage.holders import Holder, PodNames
from berth_agent.vendor import Inventory
from berth_base import request_metrics
from berth_client.refusals import RefusedWrites


class Usage(Protocol):
    """The pods that hold cards."""

    def holders(self) -> tuple[Holder, ...]:
        """Return the holders of all cards."""
        ...

    def pod_names(self) -> dict[str, PodNames]:
        """Return the names of the node's pods by UID."""
        ...


class _Snapshot(Collector):
    """Exposes one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Return its series."""
        return series.families(self._snapshot)


class Exporter:
    """The metrics of one agent."""

    def __init__(self, *, inventory: Inventory, proc_root: Path) -> None:
        self._inventory = inventory
        self._proc_root = proc_root
        self._sampler = Sampler(inventory.sample)
        self._rendering: asyncio.Task[None] | None = None
        self._text = b""
        self._rendered = float("-inf")
        self.readings: Mapping[str, Reading] = {}
        """The last published readings by node."""
        self.usage: Usage | None = None
        """The pods that hold the cards; None for a simulated fleet, or if this is switched off."""
        self.claims: Collector | None = None
        """The driver of ResourceClaims; None if the agent is none."""
        self.refused = RefusedWrites()
        """The writes that the API server refuses."""

    async def render(self) -> bytes:
        """Return the metrics in Prometheus' text format; they are rendered at most once in MIN_INTERVAL.

        Every pod may ask for them as often as it likes, and must not take the agent's CPU time with that.
        """
        if asyncio.get_running_loop().time() - self._rendered >= MIN_INTERVAL:
            if self._rendering is None or self._rendering.done():
                self._rendering = asyncio.create_task(self._render())
            # A client that loses its place must not begin a second rendering, or end that of others.
            await asyncio.shield(self._rendering)
        return self._text

    async def _render(self) -> None:
        sample = await self._sampler.current()
        snapshot = Snapshot(
            nodes=self.readings,
            sample=sample,
            xids=self._inventory.xids(),
            holders=self.usage.holders() if self.usage else (),
            pods=self.usage.pod_names() if self.usage else {},
            refused=self.refused.current(),
        )
        # In a thread: of a large simulated fleet this takes a while, and procfs is read.
        proc_root = self._proc_root if self.usage else None
        self._text = await asyncio.to_thread(_text_of, snapshot, proc_root, self.claims)
        self._rendered = asyncio.get_running_loop().time()


def _text_of(snapshot: Snapshot, proc_root: Path | None, claims: Collector | None) -> bytes:
    """Render a snapshot, with the memory of the processes of its cards where procfs is given."""
    if proc_root is not None:
        cards = snapshot.sample.cards
        memory = {uuid: processes.memory_by_owner(card.processes, proc_root) for uuid, card in cards.items()}
        snapshot = replace(snapshot, processes=memory)
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(request_metrics.REQUESTS)
    registry.register(TAKE_BACKS)
    registry.register(_Snapshot(snapshot))
    if claims:
        registry.register(claims)
    return generate_latest(registry)
