"""While a tenant keeps the scheduler busy, a pod of another tenant that needs no device is bound at once."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from devcluster import Arena, Cluster
from devcluster.control_plane.api import Manifest
from tests.attacks.test_kept_places import LWS, WORKER
from tests.integration.operator.test_controller_gangs import define
from tests.integration.operator.world import World, free_ports, metrics
from tests.programs.processes import Process

pytestmark = pytest.mark.safety

GPU: Final = "nvidia.com/gpu"
NODES: Final = 12
CANARIES: Final = 10
"""Pods of another namespace, one each second."""
PATIENCE: Final = 5.0
"""Seconds that a canary may wait on a machine that is ten times slower than one on which it waits half a second."""
MOST_DECIDED: Final = 3000
"""Decisions of pods that wait in one second."""
BUSY: Final = 0.1
"""Seconds between two events that wake all pods that wait."""


@pytest.fixture
def world(cluster: Cluster, tmp_path: Path) -> Iterator[World]:
    arena = Arena(cluster=cluster, folder=tmp_path)
    arena.open()
    define(cluster, tmp_path, "LeaderWorkerSet group")
    own = World(arena=arena, folder=tmp_path)
    yield own
    own.close()
    arena.close()


def leaders(world: World, count: int, size: int, **more: str) -> None:
    """Create leaders whose groups fit nowhere; they request a card, and `more` than their workers."""
    arena, requests = world.arena, {GPU: "1", **more}
    arena.create(
        arena.pod(
            f"y{number}-0",
            requests=requests,
            limits=requests,
            labels={f"{LWS}name": f"y{number}", f"{LWS}group-index": "0"},
            annotations={f"{LWS}size": str(size), f"{LWS}exclusive-topology": "rack"},
        )
        for number in range(count)
    )


def two_classes(world: World, count: int) -> None:
    """Create groups of one pod more than there are cards, whose workers request another amount of CPU."""
    size = NODES * 8 + 1
    template = {"size": size, "workerTemplate": {"spec": WORKER}}
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": template}
    owner = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "spec": spec}
    world.arena.apply({**owner, "metadata": {"name": f"y{number}"}} for number in range(count))
    leaders(world, count, size, cpu="1m")


STORMS: Final[dict[str, Callable[[World], None]]] = {
    "20 leaders of 1,000": lambda world: leaders(world, 20, 1000),
    "100 leaders of 999,999": lambda world: leaders(world, 100, 999_999),
    "20 groups of two classes": lambda world: two_classes(world, 20),
}


def wakes(world: World) -> Iterator[None]:
    """End pods of the tenant one after the other, each of which wakes all that wait."""
    for number in range(10_000):
        name = f"short{number}"
        world.pod(name, {GPU: "1"})
        world.bound(name)
        world.arena.delete("pods", name, grace_seconds=0)
        yield


def canary(world: World, namespace: str, number: int) -> float:
    """Return the seconds until a pod without devices is bound."""
    requests = {"cpu": "1m"}
    pod: Manifest = world.arena.pod(f"canary{number}", requests=requests, limits=requests)
    path = f"/api/v1/namespaces/{namespace}/pods"
    began = time.monotonic()
    world.api.post(path, {**pod, "metadata": {"name": f"canary{number}"}})
    world.wait(lambda: world.api.get(f"{path}/canary{number}")["spec"].get("nodeName"), what="the canary to be bound")
    return time.monotonic() - began


def decided(port: int) -> float:
    """Return how many decisions the operator has made."""
    lines = metrics(port, "scheduler_schedule_attempts_total")
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize("storm", STORMS)
def test_a_canary_is_bound_during_a_storm(
    world: World, storm: str, record_property: Callable[[str, Any], None]
) -> None:
    [port] = free_ports(1)
    operator: Process = world.operator(lws_gangs=True, metrics_port=port)
    world.agent()
    world.nodes(NODES, gpus=8)
    namespace = f"{world.arena.namespace}-canary"
    world.api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    try:
        STORMS[storm](world)
        world.wait(lambda: "required members fit" in world.message("y0-0"), what="the leaders to wait")
        waited, most = 0.0, 0.0
        wake = wakes(world)
        for number in range(CANARIES):
            before, began = decided(port), time.monotonic()
            while time.monotonic() - began < 1.0:
                next(wake)
                time.sleep(BUSY)
            waited = max(waited, canary(world, namespace, number))
            most = max(most, (decided(port) - before) / (time.monotonic() - began))
        record_property("canary_max_s", round(waited, 3))
        record_property("decided_max", round(most))
        assert operator.exit_code is None
        assert waited <= PATIENCE
        assert most <= MOST_DECIDED
        assert {each["metadata"]["name"] for each in world.arena.list("pods")} >= {"y0-0", "y19-0"}, "no pod is evicted"
    finally:
        world.api.delete(f"/api/v1/namespaces/{namespace}")
