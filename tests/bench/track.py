"""The cluster of a race: nodes that kwok plays, an agent for all of them, and nobody else who schedules."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devcluster import Arena, Cluster, fleet, nodes, state, waiting
from tests.bench import figures
from tests.bench.audit import AuditLog
from tests.bench.contestants import Contestant

GPUS: Final = 8
PROFILE: Final = "a100"
READY_SECONDS: Final = 600.0
QUICK: Final = 500
"""Status writes a second while nothing is measured."""
QUIET_SECONDS: Final = 3.0


@contextlib.contextmanager
def opened(folder: Path, log: AuditLog, *, count: int) -> Iterator[Arena]:
    """Give a cluster with nodes and Devices, and a namespace in it."""
    arguments = [*log.arguments, "--delete-collection-workers=8"]
    with Cluster(extra_args={"kube-apiserver": arguments}) as cluster:
        _end_default_scheduler(cluster)
        cluster.install_crds(fleet.CRDS)
        pattern = f"node-[0-{count - 1}]"
        figures.say(f"making {count} nodes")
        cluster.create_nodes(nodes.expand(pattern), capacity={"nvidia.com/gpu": str(GPUS)}, deadline=READY_SECONDS)
        file = folder / "fleet.yaml"
        file.write_text(fleet.document(pattern=pattern, gpus=GPUS, profile=PROFILE))
        cluster.run("berth-agent", [sys.executable, "-m", "berth_agent", "--inventory", "simulated", f"--fleet={file}"])
        devices = cluster.api.resource("devices").path()
        waiting.until(
            lambda: len(cluster.api.get(devices)["items"]) >= count,
            deadline=READY_SECONDS,
            what=f"the devices of {count} nodes",
            poll=2.0,
        )
        arena = Arena(cluster=cluster, folder=folder)
        arena.open()
        yield arena


def settle(ours: Contestant, log: AuditLog) -> None:
    """Let an operator bring Nodes and Devices up to date, so that a run begins with nothing left over to write."""
    began, position = time.monotonic(), log.position()
    process = ours.start(f"--status-rate={QUICK}")
    process.logged('"event": "leading"', deadline=READY_SECONDS)
    count, since = -1, time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        time.sleep(0.5)
        found = log.requests(ours.user, since=position)
        writes = sum(number for what, number in found.items() if what.startswith("patch "))
        if writes != count:
            count, since = writes, time.monotonic()
    process.stop()
    figures.say(f"settled with {count} writes in {time.monotonic() - began:.0f} s")


def _end_default_scheduler(cluster: Cluster) -> None:
    """Without pods of its own it would still read everything that the contestants do."""
    found = state.read(cluster.folder)
    if found is not None:
        os.kill(found.processes["kube-scheduler"], signal.SIGTERM)
