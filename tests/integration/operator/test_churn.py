"""Nodes change continuously while pods wait: the writes are bounded, and all pods show the current reason."""

import time

from devcluster import Cluster
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.proxy import FaultProxy

PODS = 40
CHANGES = 41
TAINT = {"key": "example.com/keep-off", "value": "yes", "effect": "NoSchedule"}
CURRENT = 60.0
"""Seconds in which all pods must show the current reason; it takes 15 on a quiet machine."""


def taint(world: World, node: str, *, on: bool) -> None:
    world.arena.merge("nodes", node, {"spec": {"taints": [TAINT] if on else None}})


def twice(world: World, name: str) -> bool:
    """Return whether the pod has one Event, whose series counts two."""
    return [event.get("series", {}).get("count", 1) for event in world.events(name)] == [2]


def test_storm_of_taints_costs_two_writes_a_pod(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    control, node, _ = world.arena.nodes(3)
    taint(world, control, on=True)
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    names = [f"p{number}" for number in range(PODS)]
    world.pods(names, {"nvidia.com/gpu": "1"})
    for name in names:
        world.waits(name, "1 node.s. had untolerated taint.s., 2 node.s. have no Device")

    # An odd number: the node is tainted in the end, and it was not when the pods got their first reason.
    for number in range(CHANGES):
        taint(world, node, on=number % 2 == 0)
        time.sleep(0.25)

    for name in names:
        world.waits(name, "1 node.s. have no Device, 2 node.s. had untolerated taint", deadline=CURRENT)
    world.wait(lambda: all(twice(world, name) for name in names), what="the second of each series")
    # An operator also reports Devices that fail, and those of other tests are among them.
    events = f"/{world.arena.namespace}/events"
    assert len(proxy.sent("PATCH", f"{events}/")) == PODS
    assert len(proxy.sent("POST", f"{events}$")) == PODS
    assert PODS < len(proxy.sent("PATCH", r"/pods/p\d+/status")) <= 2 * PODS
    for name in names:
        pod = world.arena.get("pods", name)
        scheduled = words.condition(pod, "PodScheduled")
        assert scheduled["observedGeneration"] == pod["metadata"]["generation"]
