"""The cluster of a benchmark: nodes simulated by kwok, one agent for all of them, and no other scheduler."""

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from devcluster import Arena, Cluster, waiting
from devcluster.additions import agents, fleet
from devcluster.control_plane import nodes
from devcluster.processes import state
from tests.bench import figures
from tests.bench.cluster.audit import AuditLog
from tests.bench.cluster.bulk import Bulk
from tests.bench.cluster.contestants import Contestant
from tests.programs.processes import Process

GPUS: Final = 8
PROFILE: Final = "a100"
READY_SECONDS: Final = 1800.0
RENEWALS: Final = 100
"""At most a second: real agents do not use the CPU of the machine that is measured."""
QUICK: Final = 500
"""Status writes per second while nothing is measured."""

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """An open cluster with the pods' namespace."""

    arena: Arena
    log: AuditLog
    folder: Path
    calm: float = 3.0
    """Seconds without activity before a measurement; 0 where figures do not matter."""

    @property
    def pods(self) -> str:
        """Return the path of the pods."""
        return f"/api/v1/namespaces/{self.arena.namespace}/pods"

    async def clear(self) -> None:
        """Delete all pods and Events."""
        async with Bulk(self.arena.cluster) as bulk:
            await bulk.clear(self.pods)
            await bulk.clear(f"/api/v1/namespaces/{self.arena.namespace}/events")

    async def read_all(self, path: str) -> list[Raw]:
        """Return everything under a path."""
        async with Bulk(self.arena.cluster) as bulk:
            return await bulk.read_all(path)

    async def create(self, pods: Sequence[Raw]) -> None:
        """Create pods."""
        async with Bulk(self.arena.cluster) as bulk:
            await bulk.create(self.pods, pods)

    def settle(self, ours: Contestant) -> None:
        """Run an operator until Nodes and Devices are up to date, so that no writes are left over when a run begins."""
        if self.calm:
            with self.settled(ours):
                pass

    @contextlib.contextmanager
    def settled(self, ours: Contestant) -> Iterator[Process]:
        """Return an operator that has brought Nodes and Devices up to date; it stops with the context."""
        began, position = time.monotonic(), self.log.position()
        process = ours.start(f"--status-rate={QUICK}", f"--node-rate={QUICK}")
        with contextlib.ExitStack() as stack:
            stack.callback(process.kill)
            process.logged('"event": "leading"', deadline=READY_SECONDS)
            count, since = -1, time.monotonic()
            while time.monotonic() - since < self.calm:
                time.sleep(0.2)
                requests = self.log.requests(ours.user, since=position)
                writes = sum(number for what, number in requests.items() if what.startswith("patch "))
                if writes != count:
                    count, since = writes, time.monotonic()
            figures.say(f"settled with {count} writes in {time.monotonic() - began:.0f} s")
            yield process
            process.stop()


@contextlib.contextmanager
def opened(count: int) -> Iterator[Track]:
    """Return a cluster with nodes and Devices, and a namespace in it."""
    figures.say_load()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name:
        folder = Path(name)
        log = AuditLog(folder)
        arguments = {
            "kube-apiserver": [*log.arguments, "--delete-collection-workers=8"],
            # By default a claim waits up to 15 s for a volume that was created after it.
            "kube-controller-manager": ["--pvclaimbinder-sync-period=1s"],
        }
        with Cluster(extra_args=arguments) as cluster:
            _stop_default_scheduler(cluster)
            _make_nodes(cluster, folder, count)
            arena = Arena(cluster=cluster, folder=folder)
            arena.open()
            yield Track(arena=arena, log=log, folder=folder)


Opener = Callable[[int], contextlib.AbstractContextManager[Track]]
"""Opens a track with this many nodes; a test passes the same track to all benchmarks."""


def _make_nodes(cluster: Cluster, folder: Path, count: int) -> None:
    """Create nodes, and let one agent publish the cards of all of them."""
    cluster.install_crds(fleet.CRDS)
    pattern = f"node-[0-{count - 1}]"
    figures.say(f"making {count} nodes")
    names = nodes.expand(pattern)
    cluster.create_nodes(names, capacity={"nvidia.com/gpu": str(GPUS)}, deadline=READY_SECONDS)
    file = folder / "fleet.yaml"
    file.write_text(fleet.document(pattern=pattern, gpus=GPUS, profile=PROFILE))
    options = [*_agent(file, count), *agents.options(cluster, names)]
    cluster.run("berth-agent", [sys.executable, "-m", "berth_agent", *options])
    devices = cluster.api.resource("devices").path()
    waiting.until(
        lambda: _count(cluster, devices) >= count,
        deadline=READY_SECONDS,
        what=f"the devices of {count} nodes",
        poll=0.5,
    )


def _count(cluster: Cluster, path: str) -> int:
    """Return the number of objects under a path without reading them."""
    first = cluster.api.get(path, limit="1")
    return len(first["items"]) + int(first["metadata"].get("remainingItemCount", 0))


def _agent(file: Path, count: int) -> list[str]:
    interval = max(10, count // RENEWALS)
    lease = [f"--renew-interval={interval}", f"--lease-duration={4 * interval}"]
    return [f"--fleet={file}", *lease]


def _stop_default_scheduler(cluster: Cluster) -> None:
    """Stop the default scheduler: even without pods of its own it would read everything that the contestants do."""
    processes = state.read(cluster.folder)
    if processes is not None:
        os.kill(processes.processes["kube-scheduler"], signal.SIGTERM)
