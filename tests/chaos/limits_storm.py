"""A storm of shares with and without limits, whole cards and MIG, audited: `python -m tests.chaos.limits_storm`.

Berth runs as shipped, with the component `isolation`. Devices are simulated, and so are the agents' resources for
limits. Meanwhile, nodes get and lose the label for MPS. PODS and SEED are environment variables. The last line is
`{"pods", "relabelled", "mps", "hami-core", "not limited", "findings", …}`. The exit status is 1 if the audit found
something, or if a pod was not bound in the end.
"""

import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from devcluster import Cluster
from devcluster.additions import fleet, installation
from tests.bench import figures
from tests.bench.cluster.bulk import Bulk
from tests.chaos import history
from tests.chaos.control_plane import ETCD, ControlPlane
from tests.chaos.history import PODS, STORES_JSON, Recorder, within
from tests.chaos.limits_auditor import CONTAINER, ISOLATION, MPS, LimitsAuditor
from tests.chaos.live import Live

NAMESPACE: Final = "storm"
NODES: Final = 12
CARDS: Final = 4
MEMORY: Final = 80 * 2**30
UNITS: Final = 100 * CARDS
MIG: Final = {3: ["1g.10gb"] * 7}
"""The last card of each node is divided."""
RATE: Final = 25.0
"""Arrivals a second."""
LIFE: Final = (1.0, 8.0)
"""Range of the seconds from when a pod is seen on its node to its end."""
RELABEL_SECONDS: Final = 0.5
POLL: Final = 0.2
DRAIN_SECONDS: Final = 240.0
SHARES: Final[Sequence[dict[str, str]]] = (
    {"kubernetes.io/gpu": "30"},
    {"kubernetes.io/gpu": "50"},
    {"kubernetes.io/gpu-memory": "9Gi"},
    {"kubernetes.io/gpu-core": "20", "kubernetes.io/gpu-memory-ratio": "7"},
)
WHOLE: Final[Sequence[dict[str, str]]] = ({"nvidia.com/gpu": "1"}, {"nvidia.com/mig-1g.10gb": "1"})
COMPONENT: Final = Path(__file__).parents[2] / "manifests" / "components" / "isolation"

Raw = dict[str, Any]


class Running(NamedTuple):
    """The parts of a storm."""

    cluster: Cluster
    nodes: Sequence[str]
    live: Live
    chance: random.Random


def main() -> None:
    """Run a storm."""
    pods, seed = figures.number("PODS", 2000), figures.number("SEED", 1)
    figures.say_load()
    with tempfile.TemporaryDirectory(prefix="berth-storm-") as name:
        file = Path(name) / "history.jsonl"
        with _opened(Path(name) / "cluster", file, seed) as running:
            relabelled, left = asyncio.run(_storm(running, pods))
        auditor = LimitsAuditor(MEMORY)
        findings = [each for revision in history.read(file) for each in auditor.take(revision)]
    for finding in findings:
        figures.say(str(finding))
    figures.result(
        {
            "bench": "limits-storm",
            "pods": pods,
            "relabelled": relabelled,
            **auditor.counts,
            "left": left,
            "findings": len(findings),
            "seed": seed,
        }
    )
    sys.exit(bool(findings or left))


@contextlib.contextmanager
def _opened(folder: Path, file: Path, seed: int) -> Iterator[Running]:
    with Cluster(folder=folder, extra_args={"kube-apiserver": [STORES_JSON]}) as cluster:
        installation.apply(cluster)
        for path in ("policy", "validation"):
            for document in installation.documents(COMPONENT / f"{path}.yaml"):
                cluster.api.apply(document)
        group = {"names": f"node-[0-{NODES - 1}]", "profile": "a100", "gpus": CARDS, "mig": MIG}
        described = folder / "fleet.yaml"
        described.write_text(yaml.safe_dump({"nodes": [group]}))
        nodes = fleet.start(cluster, described)
        offered = {f"berth.dev/{mode}": str(UNITS) for mode in ("mps", "hami-core")}
        for node in nodes:
            status = {"capacity": offered, "allocatable": offered}
            cluster.api.merge(f"/api/v1/nodes/{node}/status", {"status": status})
        cluster.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        installation.wait(cluster, installation.start(cluster), nodes=nodes)
        live = Live()
        port = ControlPlane(cluster).port(ETCD)
        with Recorder(port=port, sources=within(NAMESPACE, [PODS]), file=file, take=live.take) as recorder:
            yield Running(cluster, nodes, live, random.Random(f"limits {seed}"))
            recorder.catch_up()


async def _storm(running: Running, pods: int) -> tuple[int, int]:
    """Create pods, end them, relabel nodes; return how often, and how many pods are left."""
    waiting = deque(_pod(running.chance, number) for number in range(pods))
    due: dict[str, float] = {}
    relabelled, next_label, next_pod = 0, 0.0, time.monotonic()
    drained_by = time.monotonic() + pods / RATE + DRAIN_SECONDS
    async with Bulk(running.cluster) as bulk:
        while (waiting or running.live.pods) and time.monotonic() < drained_by:
            arrivals: list[Raw] = []
            while waiting and next_pod <= time.monotonic():
                next_pod += running.chance.expovariate(RATE)
                arrivals.append(waiting.popleft())
            await bulk.create(f"/api/v1/namespaces/{NAMESPACE}/pods", arrivals)
            if next_label <= time.monotonic():
                next_label = time.monotonic() + RELABEL_SECONDS
                relabelled += 1
                await asyncio.to_thread(_relabel, running)
            await _end(running, bulk, due)
            await asyncio.sleep(POLL)
    return relabelled, len(running.live.pods)


def _relabel(running: Running) -> None:
    """Add the label for MPS to a node, or remove it."""
    label = running.chance.choice((MPS, None))
    body = {"metadata": {"labels": {ISOLATION: label}}}
    running.cluster.api.merge(f"/api/v1/nodes/{running.chance.choice(running.nodes)}", body)


async def _end(running: Running, bulk: Bulk, due: dict[str, float]) -> None:
    """Delete the pods that were on a node for so long."""
    now = time.monotonic()
    for pod in running.live.pods.values():
        if pod.node and not pod.is_leaving:
            due.setdefault(pod.name, now + running.chance.uniform(*LIFE))
    for name in [name for name, at in due.items() if at <= now]:
        del due[name]
        with contextlib.suppress(RuntimeError):  # it was seen before its end was
            await bulk.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"gracePeriodSeconds": 0})


def _pod(chance: random.Random, number: int) -> Raw:
    limited = chance.choice((MPS, MPS, "hami-core", "", ""))
    requests = chance.choice(SHARES if limited or chance.random() < 0.5 else WHOLE)
    container = {"name": CONTAINER, "image": "none", "resources": {"limits": requests}}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "annotations": {ISOLATION: limited} if limited else {},
        },
        "spec": {"schedulerName": "berth-scheduler", "containers": [container]},
    }


if __name__ == "__main__":
    main()
