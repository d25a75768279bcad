"""What clients that watch the visibility API cost the scheduler: `python -m tests.bench.speed.watched`.

NODES, PODS, REPEAT and WATCHERS are environment variables. The operator binds PODS as in `race`, alternately without a
watch and with WATCHERS watches. The watches go through the real aggregator, in equal numbers for `fleet`, `queue` and
`holders`, and their readers discard the data. `held_ms` is the longest time in which the operator's loop entered no
timer. All figures are medians. `cpu_spread` is the difference between the largest and the smallest figure without
watches, as a fraction of the median.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.bench import figures
from tests.bench.cluster import aside, contestants, probe, track
from tests.bench.cluster.aside import Aside
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.race import Race, Run
from tests.bench.cluster.serving import registered
from tests.bench.cluster.track import Track

BASE: Final = "/apis/visibility.berth.dev/v1alpha1"
RESOURCES: Final = ("fleet", "queue", "holders")
CHUNK: Final = 1 << 16
OPEN_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.2
WATCH_SECONDS: Final = "3600"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run."""

    run: Run
    held: float
    """Seconds."""
    received: int
    """Bytes that all watches got."""


def main() -> None:
    """Run the benchmark."""
    nodes, pods = figures.number("NODES", 1000), figures.number("PODS", 4000)
    repeat, watches = figures.number("REPEAT", 5), figures.number("WATCHERS", 20)
    with track.opened(nodes) as opened:
        measured = measure(opened, pods=pods, repeat=repeat, watches=watches)
    sizes = {"nodes": nodes, "pods": pods, "repeat": repeat, "watchers": watches}
    figures.result({"bench": "watched", **measured, **sizes})


def measure(track: Track, *, pods: int, repeat: int, watches: int) -> dict[str, Any]:
    """Return the medians without and with watches, and by how much they differ."""
    file = track.folder / "held"
    with registered(track) as flags:
        ours = _probed(contestants.ours(track.arena, track.folder, flags), file)
        runs: dict[int, list[Measured]] = {0: [], watches: []}
        for number in range(repeat):
            for count in (0, watches) if number % 2 == 0 else (watches, 0):
                track.settle(ours)
                runs[count].append(_run(Race(track, pods=pods), ours, file, Readers(track, count)))
                _say(count, runs[count][-1])
    return _compared(runs[0], runs[watches])


def _probed(ours: Contestant, file: Path) -> Contestant:
    python, _, _, *arguments = ours.command
    return replace(ours, command=(python, "-m", "tests.bench.cluster.probe", str(file), *arguments))


def _run(race: Race, ours: Contestant, file: Path, readers: "Readers") -> Measured:
    held: list[float] = []

    def inspect() -> None:
        held.extend(each.seconds for each in probe.read(file) if race.began < each.at)

    run = race.run(ours, inspect, during=readers)
    readers.check()
    return Measured(run=run, held=max(held, default=0.0), received=readers.received)


def _say(count: int, measured: Measured) -> None:
    line = " ".join(f"{what}={value:.2f}" for what, value in measured.run.figures().items())
    figures.say(f"{count} watches: {line} held={1000 * measured.held:.1f} ms, {measured.received / 2**20:.1f} MiB")


def _compared(without: Sequence[Measured], watched: Sequence[Measured]) -> dict[str, Any]:
    cpu = [[each.run.figures()["cpu_ms_per_pod"] for each in runs] for runs in (without, watched)]
    rate = [[each.run.figures()["pods_per_s"] for each in runs] for runs in (without, watched)]
    held = [[1000 * each.held for each in runs] for runs in (without, watched)]
    without_any, with_all = map(statistics.median, cpu)
    return {
        "cpu_ms_per_pod": [round(without_any, 3), round(with_all, 3)],
        "cpu_growth": round(with_all / without_any - 1, 3),
        "cpu_spread": round((max(cpu[0]) - min(cpu[0])) / without_any, 3),
        "pods_per_s": [round(statistics.median(each)) for each in rate],
        "held_ms": [round(statistics.median(each), 1) for each in held],
        "received_mib": round(statistics.median(each.received for each in watched) / 2**20, 3),
    }


class Readers(Aside):
    """Clients that watch, and discard what they get."""

    def __init__(self, track: Track, count: int) -> None:
        super().__init__("readers", deadline=OPEN_SECONDS)
        self.received = 0
        """Bytes so far."""
        self._cluster, self._count = track.arena.cluster, count
        self._open = 0

    @property
    def is_ready(self) -> bool:
        """Whether every watch is open."""
        return self._open == self._count

    async def work(self) -> None:
        """Watch."""
        async with aside.session(self._cluster) as session:
            await self._served(session)
            async with asyncio.TaskGroup() as watches:
                for number in range(self._count):
                    watches.create_task(self._watch(session, RESOURCES[number % len(RESOURCES)]))

    async def _served(self, session: aiohttp.ClientSession) -> None:
        """Wait until the aggregator, which checks a server in turns of its own, has found this run's operator.

        The wait ends with the thread, which `deadline` bounds.
        """
        while True:
            async with session.get(f"{self._cluster.server}{BASE}/fleet") as answer:
                if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                    return answer.raise_for_status()
            await asyncio.sleep(POLL_SECONDS)

    async def _watch(self, session: aiohttp.ClientSession, resource: str) -> None:
        url = f"{self._cluster.server}{BASE}/{resource}"
        async with aside.watch(session, url, {"watch": "true", "timeoutSeconds": WATCH_SECONDS}) as answer:
            self._open += 1
            while chunk := await answer.content.read(CHUNK):
                self.received += len(chunk)
        raise RuntimeError(f"the watch of {resource} ended")


if __name__ == "__main__":
    main()
