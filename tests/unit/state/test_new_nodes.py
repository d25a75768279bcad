"""How long a node counts as starting: an agent that never comes must not keep autoscalers from adding nodes."""

from datetime import UTC, datetime
from typing import Any

import pytest

from berth_client import times
from berth_operator.core.decision.cycle import Failure, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import pods
from tests.objects.builders import NVIDIA, bare_node, condition, device, entry, pod, waiting, whole
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, allocated, gpu, resource_slice

GPU_LABEL = {"nvidia.com/gpu.present": "true"}
POD = waiting("a", {NVIDIA: 1})
BOOT = 1_800_000_000.0
"""When the monotonic clock was 0."""


class World:
    """A cluster whose nodes start for ten minutes, with controlled clocks."""

    def __init__(self, timeout: float = 600.0) -> None:
        self.now = 100.0
        self.cluster = Cluster(grace=20.0, startup_timeout=timeout, clock=lambda: self.now, wall=lambda: self.wall)

    @property
    def wall(self) -> float:
        """Return the time of day in seconds since 1970."""
        return BOOT + self.now

    def created(self, seconds_ago: float, **fields: Any) -> None:
        """Add a Node without a Device that was created some seconds ago."""
        raw = bare_node(**{"labels": GPU_LABEL, "offered": {}, **fields})
        raw["metadata"]["creationTimestamp"] = times.time(datetime.fromtimestamp(self.wall - seconds_ago, UTC))
        self.cluster.node_cache.put_node(raw)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, with the heartbeats of the node."""
        self.now += seconds
        self.cluster.node_cache.end_startups()

    def condition(self, pod: PendingPod = POD) -> str:
        outcome = decide(self.cluster.fleet, pod, Policy())
        return outcome.condition if isinstance(outcome, Failure) else "placed"


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        pytest.param(0, "NodeStarting", id="new"),
        pytest.param(-30, "NodeStarting", id="by a clock that is ahead"),
        pytest.param(599, "NodeStarting", id="almost too old"),
        pytest.param(600, "Unschedulable", id="too old, also for an operator that has just started"),
    ],
)
def test_a_node_is_starting_by_its_age(age: float, expected: str) -> None:
    world = World()
    world.created(age)
    assert world.condition() == expected


def test_a_node_stops_starting_when_its_time_is_over_and_reasons_are_reviewed() -> None:
    world = World()
    world.created(500)
    world.pass_time(90)
    version = world.cluster.waker.version
    assert world.condition() == "NodeStarting"
    world.pass_time(20)
    assert world.condition() == "Unschedulable"
    assert world.cluster.waker.version > version


def test_no_node_is_starting_without_the_timeout() -> None:
    world = World(timeout=0)
    world.created(0)
    assert world.condition() == "Unschedulable"


def test_a_node_may_show_its_gpus_later_than_it_appears() -> None:
    world = World()
    world.created(0, labels={})
    assert world.condition() == "Unschedulable"
    world.created(0)
    assert world.condition() == "NodeStarting"


def test_once_the_device_and_its_plugin_are_there_the_pod_is_placed() -> None:
    world = World()
    world.created(0, taints=[{"key": "berth.dev/agent-not-ready", "effect": "NoSchedule"}])
    world.cluster.node_cache.put_device(device("node", entry(0)))
    assert world.condition() == "NodeStarting"
    world.created(0)
    assert world.condition() == "NodeStarting"
    world.created(0, offered={NVIDIA: 1})
    assert world.condition() == "placed"
    assert world.condition(waiting("b", {NVIDIA: 2})) == "Unschedulable"


def test_a_new_node_of_an_old_name_is_new() -> None:
    world = World()
    world.created(700, uid="old")
    world.created(0, uid="new")
    assert world.condition() == "NodeStarting"
    world.cluster.node_cache.remove_node("node")
    world.pass_time(700)
    assert world.condition() == "Unschedulable"


def test_a_time_that_cannot_be_read_is_not_new() -> None:
    world = World()
    world.cluster.node_cache.put_node(bare_node(labels=GPU_LABEL, offered={}))
    assert world.condition() == "Unschedulable"


@pytest.mark.parametrize(
    ("gone", "expected"),
    [pytest.param(False, "Unschedulable", id="holds one"), pytest.param(True, "Unschedulable", id="has held one")],
)
def test_a_pod_that_holds_a_device_there_shows_that_the_node_has_started(*, gone: bool, expected: str) -> None:
    world = World()
    world.created(0, offered={NVIDIA: 2})
    world.cluster.node_cache.put_device(device("node", entry(0), entry(1)))
    world.cluster.put_bound(pod("b", {NVIDIA: "1"}, on="node", allocated=whole(0)))
    world.pass_time(1)
    if gone:
        world.cluster.remove_bound("uid-b")
        world.pass_time(1)
    version = world.cluster.waker.version
    world.created(10, offered={NVIDIA: 2}, conditions=[condition("Ready", "False")])
    world.pass_time(1)
    assert world.condition() == expected
    assert world.cluster.waker.version > version


def test_a_pod_that_holds_a_device_by_claim_there_shows_it_as_well() -> None:
    world = World()
    world.created(0, offered={NVIDIA: 2})
    world.cluster.node_cache.put_device(device("node", entry(0), entry(1)))
    world.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
    to = ClaimsInTurns(world.cluster)
    to.put_slice(resource_slice(gpu(0), gpu(1)))
    to.put_claim(allocated("c", "gpu-0", pods=["uid-b"]))
    world.cluster.put_bound(pod("b", on="node"))
    world.pass_time(1)
    world.created(10, offered={NVIDIA: 2}, conditions=[condition("Ready", "False")])
    world.pass_time(1)
    assert world.condition() == "Unschedulable"


def test_a_node_whose_name_was_another_ones_is_starting_again() -> None:
    world = World()
    world.created(0, offered={NVIDIA: 1}, uid="old")
    world.cluster.node_cache.put_device(device("node", entry(0)))
    world.cluster.put_bound(pod("b", {NVIDIA: "1"}, on="node", allocated=whole(0)))
    world.pass_time(1)
    world.cluster.remove_bound("uid-b")
    world.created(0, uid="new", conditions=[condition("Ready", "False")])
    world.pass_time(1)
    assert world.condition() == "NodeStarting"


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        pytest.param({}, "NodeStarting", id="its device plugin has not registered"),
        pytest.param({"amd.com/gpu": 1}, "Unschedulable", id="it offers too little"),
        pytest.param({"amd.com/gpu": 2}, "placed", id="it offers enough"),
    ],
)
def test_a_new_node_without_an_agent_has_started_once_it_offers_cards_of_another_vendor(
    offered: dict[str, int], expected: str
) -> None:
    world = World()
    world.created(0, offered=offered)
    assert world.condition(pods.pending(pod("a", {"amd.com/gpu": 2}))) == expected
