"""Memory and bind latency while pods arrive and leave for a long time: `python -m tests.bench.resources.soak`.

MINUTES, NODES, PODS, TURNOVER, WARM_UP and CHART are environment variables. PODS pods hold whole cards at the start. In
the course of MINUTES, each is replaced TURNOVER times, the oldest first, by a pod with another request. Each pod has
its own labels, so that the test notices anything that is kept for a pod that has gone. A machine that cannot bind so
many pods replaces fewer: `replaced`. The run fails if the memory or the latency of binds grows by more than
`soak_verdict` allows, once WARM_UP pods were replaced. WARM_UP is PODS by default: a pod that the operator has decided
takes more memory than a pod that it has only read. Bounded caches fill meanwhile, too.
"""

import asyncio
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bench import figures
from tests.bench.cluster import contestants, crowd, track, usage
from tests.bench.cluster.bulk import Bulk
from tests.bench.cluster.track import Track
from tests.bench.cluster.watcher import Watcher
from tests.bench.resources import soak_chart, soak_verdict
from tests.bench.resources.soak_verdict import Sample, TooShortError
from tests.programs.processes import Process

MIB: Final = 2**20
SAMPLE_SECONDS: Final = 10.0
FILLED: Final = 0.95
"""The part of the cards that pods hold at most."""
AT_ONCE: Final = 16
"""Pods that wait at most."""
LAST_SECONDS: Final = 120.0
"""In which the last pods must be bound."""
REQUESTS: Final[tuple[dict[str, str], ...]] = (
    {crowd.GPU: "1"},
    {crowd.CORE: "50", crowd.RATIO: "50"},
    {},
    {crowd.GPU: "1"},
)
"""What arriving pods request in turn: never more than those that leave."""

Raw = dict[str, Any]


def main() -> int:
    """Run, and return 1 if a slope is too steep, a pod was not bound, or the run was too short for a verdict."""
    minutes, nodes, pods = figures.number("MINUTES", 30), figures.number("NODES", 2000), figures.number("PODS", 15000)
    warm_up, chart = figures.number("WARM_UP", pods), Path(os.environ.get("CHART", ".build/soak.png"))
    turnover = figures.number("TURNOVER", 2)
    with track.opened(nodes) as opened:
        soak = Soak(opened, seconds=60.0 * minutes, pods=pods, turnover=turnover)
        soak.run()
    chart.parent.mkdir(parents=True, exist_ok=True)
    soak_chart.draw(soak.samples, chart, warm_up)
    judged = _judged(soak, warm_up)
    sizes = {"bench": "soak", "minutes": minutes, "nodes": nodes, "pods": pods, "replaced": soak.deleted}
    figures.result({**sizes, **judged, "chart": str(chart)})
    return 0 if judged["ok"] else 1


def _judged(soak: "Soak", warm_up: int) -> dict[str, Any]:
    """Return the figures and the verdict; the slopes are null if the run was too short."""
    problems = [f"{soak.unbound} pods were not bound"] if soak.unbound else []
    memory = latency = None
    try:
        verdict = soak_verdict.judge(soak.samples, warm_up)
        memory, latency = round(verdict.memory.slope, 1), round(verdict.latency.slope, 1)
        problems += verdict.problems
    except TooShortError as error:
        problems.append(str(error))
    return {
        "memory_mib_per_h": memory,
        "latency_ms_per_h": latency,
        "rss_mib": [round(soak.samples[0].rss), round(soak.samples[-1].rss)],
        "bind_p50_ms": round(1000 * figures.quantile(soak.took, 0.5)),
        "bind_p99_ms": round(1000 * figures.quantile(soak.took, 0.99)),
        "unbound": soak.unbound,
        "ok": not problems,
        "problems": problems,
    }


class Soak:
    """One run.

    Attributes:
        samples: one for each ten seconds.
        took: seconds from the creation of each pod to its bind.
        deleted: pods that left.
        unbound: pods that were not bound in the end.
    """

    def __init__(self, track: Track, *, seconds: float, pods: int, turnover: int = 1) -> None:
        self.samples: list[Sample] = []
        self.took: list[float] = []
        self.deleted, self.unbound = 0, 0
        self._track, self._seconds, self._pods, self._turnover = track, seconds, pods, turnover
        self._names: deque[str] = deque()
        """Of all pods, the oldest first."""
        self._created: dict[str, float] = {}
        """Pods whose bind has not been seen yet -> when they were created."""

    def run(self) -> None:
        """Fill the cluster, replace all pods, and take samples."""
        arena, cards = self._track.arena, crowd.cards(self._track)
        if self._pods > FILLED * len(cards):
            raise ValueError(
                f"PODS: {self._pods}; allowed are {FILLED:.0%} of {len(cards)} cards, or pods wait for others"
            )
        held = crowd.holders(arena, cards[: self._pods], self._pods)
        for pod in held:
            pod["metadata"]["labels"] = _labels(pod["metadata"]["name"])
        crowd.fill(self._track, held)
        self._names.extend(pod["metadata"]["name"] for pod in held)
        # Its term is long, as elections are not measured: another process would begin with fresh memory.
        ours = contestants.ours(arena, self._track.folder)
        with self._track.settled(ours) as operator, Watcher(arena.cluster, arena.namespace) as watcher:
            asyncio.run(self._replace_all(watcher, lambda: _resident_mib(operator)))
            watcher.check()

    async def _replace_all(self, watcher: Watcher, rss: Callable[[], float]) -> None:
        began = time.monotonic()
        async with Bulk(self._track.arena.cluster) as bulk, asyncio.TaskGroup() as tasks:
            sampling = tasks.create_task(self._sample(began, watcher, rss))
            total = self._turnover * self._pods
            for number in range(total):
                await asyncio.sleep(began + self._seconds * number / total - time.monotonic())
                await self._wait_for_binds(watcher)
                if time.monotonic() > began + self._seconds:
                    break
                await self._replace(bulk, number)
            await self._wait_for_last(watcher)
            sampling.cancel()
        self._take(began, watcher, rss)
        self.unbound = len(self._created)

    async def _replace(self, bulk: Bulk, number: int) -> None:
        """Delete the oldest pod, and create another."""
        oldest, name = self._names.popleft(), f"soak-{number}"
        await bulk.request("DELETE", f"{self._track.pods}/{oldest}", {"gracePeriodSeconds": 0})
        self.deleted += 1
        self._created[name] = time.monotonic()
        await bulk.request("POST", self._track.pods, self._pod(name, number))
        self._names.append(name)

    def _pod(self, name: str, number: int) -> Raw:
        devices = REQUESTS[number % len(REQUESTS)]
        requests = {"cpu": f"{100 + number % 100}m", **devices}
        return self._track.arena.pod(name, requests=requests, limits=devices, labels=_labels(name))

    # --- samples ------------------------------------------------------------------------------------------------

    async def _sample(self, began: float, watcher: Watcher, rss: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            watcher.check()
            self._take(began, watcher, rss)
            last = self.samples[-1]
            if len(self.samples) % 6 == 0:
                figures.say(f"{last.at:.0f} s: {last.rss:.0f} MiB, {last.latency or 0:.0f} ms, {self.deleted} replaced")

    def _take(self, began: float, watcher: Watcher, rss: Callable[[], float]) -> None:
        bound = [name for name in self._created if name in watcher.bound]
        took = [watcher.bound[name] - self._created.pop(name) for name in bound]
        self.took += took
        latency = 1000 * statistics.median(took) if took else None
        self.samples.append(Sample(at=time.monotonic() - began, replaced=self.deleted, rss=rss(), latency=latency))

    async def _wait_for_binds(self, watcher: Watcher) -> None:
        """Wait while many pods wait: on a slow machine a queue would grow, and hide what the operator does."""
        while sum(name not in watcher.bound for name in self._created) >= AT_ONCE:
            await asyncio.sleep(0.05)
            watcher.check()

    async def _wait_for_last(self, watcher: Watcher) -> None:
        deadline = time.monotonic() + LAST_SECONDS
        while not self._created.keys() <= watcher.bound.keys() and time.monotonic() < deadline:  # noqa: ASYNC110 - of another thread
            await asyncio.sleep(1.0)


def _labels(name: str) -> dict[str, str]:
    """Return labels that no other pod has; those at the start have them, too, as each set takes memory."""
    return {"app": name, "job-name": name}


def _resident_mib(operator: Process) -> float:
    """Return the resident memory of the operator in MiB.

    Raises:
        RuntimeError: it has ended, so that no growth shows.
    """
    if operator.exit_code is not None:
        raise RuntimeError(f"the operator ended with {operator.exit_code}:\n{operator.tail()}")
    return usage.resident_bytes(operator.pid) / MIB


if __name__ == "__main__":
    sys.exit(main())
