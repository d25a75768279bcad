"""Compute the gauges over the state every few seconds, in slices that leave the loop free for decisions."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from berth_operator.core.advice.fleet_figures import fleet_figures
from berth_operator.metrics import gauges
from berth_operator.metrics.gauges import GAUGES, Family, Values
from berth_operator.metrics.monitoring.bounds import OTHER, frequent
from berth_operator.metrics.monitoring.claim_devices import ClaimDeviceCount
from berth_operator.metrics.monitoring.pending import PendingCount
from berth_operator.state.cache.cluster import Cluster

PAUSES: Final = (1.0, 10.0)
"""Seconds between two refreshes."""
SHARE: Final = 50.0
"""The pause, as a multiple of the time that the last refresh took."""
SLICE: Final = 0.002
"""Seconds that counting pods may hold the loop."""
STRIDE: Final = 64
"""Pods that are counted between two looks at the clock."""


class Monitor:
    """Keeps the gauges of a leader up to date; `ages` returns for each watch the seconds since it was last heard."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        ages: Callable[[], Mapping[str, float]],
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._cluster, self._ages, self._wall, self._clock = cluster, ages, wall, clock

    async def run(self) -> None:
        """Refresh the gauges until cancelled, which removes them: only a leader has a state."""
        try:
            while True:
                began = self._clock()
                await self.refresh()
                shortest, longest = PAUSES
                await asyncio.sleep(min(longest, max(shortest, SHARE * (self._clock() - began))))
        finally:
            GAUGES.shown = {}

    async def refresh(self) -> None:
        """Compute all gauges, and expose them together."""
        pending_count = PendingCount()
        await self._in_slices(pending_count.count(self._cluster.queue, self._cluster.pending), STRIDE)
        pending = pending_count.values(gated=len(self._cluster.pending_pods.gated))
        await asyncio.sleep(0)
        figures = fleet_figures(self._cluster.fleet)
        kept = frequent({model: counts.total for model, counts in figures.gpus.items()})
        gpus: defaultdict[tuple[str, ...], float] = defaultdict(float)
        for model, counts in figures.gpus.items():
            shown = model if model in kept else OTHER
            gpus[shown, "allocated"] += counts.allocated
            gpus[shown, "free"] += counts.free
            gpus[shown, "unavailable"] += counts.unavailable
        fleet: dict[Family, Values] = {
            gauges.GPUS: gpus,
            gauges.FRAGMENTATION: {(str(size),): share for size, share in figures.fragmentation.items()},
            gauges.STRANDED: {(): figures.stranded},
        }
        await asyncio.sleep(0)
        claim_devices = ClaimDeviceCount()
        await self._in_slices(claim_devices.count(self._cluster.fleet.claims), 1)
        GAUGES.shown = {**pending, **fleet, **claim_devices.values(), **self._of_process()}

    async def _in_slices(self, steps: Iterator[None], stride: int) -> None:
        """Take all steps, and let the loop do other work. The clock is read after every `stride` steps."""
        until = self._clock() + SLICE
        while list(islice(steps, stride)):
            if self._clock() > until:
                await asyncio.sleep(0)
                until = self._clock() + SLICE

    def _of_process(self) -> Mapping[Family, Values]:
        cluster, now = self._cluster, self._wall()
        fleet = cluster.fleet
        return {
            gauges.INCOMING: dict(cluster.queue.incoming),
            gauges.CACHED: {
                ("nodes",): int(fleet.present.sum()),
                ("pods",): len(fleet.charges),
                ("assumed_pods",): cluster.placements.assumed,
            },
            gauges.SILENT: {(): int((fleet.present & fleet.has_device & ~fleet.fresh & ~fleet.foreign).sum())},
            gauges.HEARD: {(watch,): now - age for watch, age in self._ages().items()},
            gauges.REFRESHED: {(): now},
        }
