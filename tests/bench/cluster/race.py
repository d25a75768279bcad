"""One measured run of one scheduler.

The scheduler has synced (it has bound a pod), and is paused while all pods are created. The clock runs from the moment
when it is resumed to the last bind that the watcher sees. CPU and requests are counted until every pod also has its
Scheduled Event, so that no work is left.

Pods take time to start, as on nodes that fetch an image. In a real cluster, kubelets run on their own machines. kwok
would make the kubelets' writes at once and compete for the two cores of the schedulers. START=0 shows this effect.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from devcluster import waiting
from tests.bench import figures
from tests.bench.cluster import usage
from tests.bench.cluster.contestants import Contestant
from tests.bench.cluster.track import Track
from tests.bench.cluster.watcher import Watcher
from tests.programs.processes import Process

SYNC_SECONDS: Final = 120.0
IDLE: Final = 0.1
"""Seconds of CPU per second that an idle scheduler uses for watches and heartbeats."""
SILENT_SECONDS: Final = 20.0
"""After this many seconds without progress the run ends and reports what is missing."""
GPU: Final = "nvidia.com/gpu"
START_SECONDS: Final = 60
"""Seconds from a pod's bind to its start."""
STARTS_AFTER: Final = "pod-ready.stage.kwok.x-k8s.io/delay"
NOTHING: Final[contextlib.AbstractContextManager[object]] = contextlib.nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of one run."""

    bound: int
    events: int
    bind_seconds: float
    """Seconds from the start to the last bind."""
    event_seconds: float
    """Seconds from the start to the last Event."""
    cpu_seconds: float
    resident: int
    """Resident bytes at the end."""
    requests: Counter[str]

    def figures(self) -> dict[str, float]:
        """Return the figures that are compared."""
        return {
            "pods_per_s": self.bound / self.bind_seconds,
            "cpu_ms_per_pod": 1000 * self.cpu_seconds / self.bound,
            "rss_mb": self.resident / 2**20,
            "requests_per_pod": self.requests.total() / self.bound,
        }


class Race:
    """One cluster, its nodes and the namespace of the pods."""

    def __init__(self, track: Track, *, pods: int, start: int = START_SECONDS) -> None:
        self._track, self._arena, self._log, self._pods = track, track.arena, track.log, pods
        self._annotations = {STARTS_AFTER: f"{start}s"}
        self.began = 0.0
        """When the clock of the last run began, by the monotonic clock in seconds."""

    def run(
        self,
        contestant: Contestant,
        inspect: Callable[[], None] = lambda: None,
        during: contextlib.AbstractContextManager[object] = NOTHING,
    ) -> Run:
        """Run a scheduler until it has bound all pods, `during` a context, and `inspect` it before it stops.

        Every object is new.
        """
        asyncio.run(self._track.clear())
        process = contestant.start()
        try:
            self._sync(contestant, process)
            with Watcher(self._arena.cluster, self._arena.namespace) as watcher, during:
                result = self._measure(contestant, process, watcher)
            inspect()
        finally:
            if process.exit_code is None:
                process.stop()
        asyncio.run(self._track.clear())
        return result

    def _sync(self, contestant: Contestant, process: Process) -> None:
        """Wait until the scheduler has bound a pod, which shows that it has read the cluster, and is idle."""
        asyncio.run(self._track.create([self._pod("probe", contestant)]))
        waiting.until(
            lambda: self._arena.get("pods", "probe")["spec"].get("nodeName"),
            deadline=SYNC_SECONDS,
            what=f"{contestant.name} to bind a pod",
        )
        waiting.until(
            lambda: self._arena.list("events"),
            deadline=SYNC_SECONDS,
            what=f"{contestant.name} to report it in an Event",
        )
        asyncio.run(self._track.clear())
        waiting.until(lambda: _is_idle(process), deadline=SYNC_SECONDS, what=f"{contestant.name} to become idle")

    def _measure(self, contestant: Contestant, process: Process, watcher: Watcher) -> Run:
        process.pause()
        asyncio.run(self._track.create([self._pod(f"pod-{number}", contestant) for number in range(self._pods)]))
        time.sleep(self._track.calm)  # lets the control plane finish the work of the preparations
        position, used = self._log.position(), usage.cpu_seconds(process.pid)
        self.began = began = time.monotonic()
        process.resume()
        self._wait(watcher, process, began)
        return Run(
            bound=len(watcher.bound),
            events=len(watcher.events),
            bind_seconds=max(watcher.bound.values()) - began,
            event_seconds=max(watcher.events.values(), default=began) - began,
            cpu_seconds=usage.cpu_seconds(process.pid) - used,
            resident=usage.resident_bytes(process.pid),
            requests=self._log.requests(contestant.user, since=position),
        )

    def _wait(self, watcher: Watcher, process: Process, began: float) -> None:
        while len(watcher.bound) < self._pods or len(watcher.events) < self._pods:
            watcher.check()
            if process.exit_code is not None:
                raise RuntimeError(f"{process.name} ended:\n{process.tail()}")
            if time.monotonic() - max(began, watcher.heard_at) > SILENT_SECONDS:
                figures.say(
                    f"{len(watcher.bound)} binds and {len(watcher.events)} Events of {self._pods}: no more came"
                )
                return
            time.sleep(0.05)

    def _pod(self, name: str, contestant: Contestant) -> dict[str, Any]:
        requests = {"cpu": "1", "memory": "1Gi", GPU: "1"}
        return self._arena.pod(
            name,
            requests=requests,
            limits={GPU: "1"},
            annotations=self._annotations,
            scheduler_name=contestant.scheduler_name,
        )


def _is_idle(process: Process) -> bool:
    """Return whether a process uses almost no CPU for a second."""
    before = usage.cpu_seconds(process.pid)
    time.sleep(1.0)
    return usage.cpu_seconds(process.pid) - before < IDLE
