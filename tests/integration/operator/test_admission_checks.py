"""The AdmissionCheck on a real API server with Kueue's definitions. The tests make Kueue's transitions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from berth_api import names
from devcluster import Cluster
from tests.integration.operator.world import PROMPT, World
from tests.objects.kueue_objects import LATER, pod_set
from tests.programs.processes import LEADING, QUICK_TERMS
from tests.stand_ins import kueue_by_hand
from tests.stand_ins.kueue_by_hand import Kueue

Raw = dict[str, Any]

GPU = "kubernetes.io/gpu"
CARDS = 4
"""Of each node."""


@pytest.fixture
def kueue(world: World, cluster: Cluster, tmp_path: Path) -> Iterator[Kueue]:
    """Return Kueue in a world whose operator decides its AdmissionCheck."""
    kueue_by_hand.install(cluster, tmp_path / "definitions")
    own = Kueue(world.arena, check=f"fits-{world.arena.id}")
    own.open()
    world.agent()
    world.operator(kueue=True)
    yield own
    own.close()


def cards(number: int) -> Raw:
    """Return a request of whole cards."""
    return {GPU: str(100 * number)}


def of(world: World, count: int = 1, *, gpus: int, **spec: Any) -> Raw:
    """Return a pod set for the arena's scheduler."""
    return pod_set(count=count, requests=cards(gpus), **{"schedulerName": world.arena.scheduler_name, **spec})


def nodes_of(world: World, count: int) -> list[str]:
    """Create nodes, and wait for their sums: the operator, which watches Nodes and Devices apart, has heard of both."""
    nodes = world.nodes(count, gpus=CARDS)
    for node in nodes:
        world.wait_sum(node, GPU, str(100 * CARDS))
    return nodes


def until(world: World, kueue: Kueue, name: str, state: str) -> Raw:
    """Wait for a state of the check, and return its entry."""
    world.wait(lambda: kueue.state(name) == state, what=f"the check of {name} to be {state}")
    return kueue.entry(name)


def come(world: World, name: str, *, gpus: int, count: int = 1, workload: str = "") -> None:
    """Create the pods of a Workload as its Job does, with what Kueue adds to their template."""
    annotations = {names.WORKLOAD: workload or name, names.POD_SET: "main"}
    world.pods([f"{name}-{number}" for number in range(count)], cards(gpus), annotations=annotations)


def test_a_workload_that_fits_is_ready_and_names_its_places(world: World, kueue: Kueue) -> None:
    nodes = nodes_of(world, 2)
    world.wait(lambda: kueue.active() == "True", what="the AdmissionCheck to be active")
    kueue.create("waits", of(world, gpus=1))
    kueue.submit("big", of(world, 2, gpus=CARDS))
    entry = until(world, kueue, "big", "Ready")
    assert all(node in entry["message"] for node in nodes)
    assert entry["podSetUpdates"] == [{"name": "main", "annotations": {names.WORKLOAD: "big", names.POD_SET: "main"}}]
    # All cards are promised: neither another workload nor a pod without one gets any.
    kueue.submit("small", of(world, gpus=1))
    assert "nodes are available" in until(world, kueue, "small", "Retry")["message"]
    world.pod("alone", cards(1))
    kueue.admit("big")
    come(world, "big", gpus=CARDS, count=2)
    world.wait(lambda: {"big-0", "big-1"} <= world.bound_names(), what="the pods to have their places")
    assert "alone" not in world.bound_names()
    # Without quota nothing is decided.
    assert kueue.state("waits") == "Pending"
    assert kueue.entry("waits")["message"] == ""


def test_a_workload_waits_is_retried_rejected_or_left_to_others(world: World, kueue: Kueue) -> None:
    nodes_of(world, 1)
    world.pod("holder", cards(CARDS))
    world.wait(lambda: world.bound_names() == {"holder"}, what="the node to be full")
    kueue.submit("first", of(world, gpus=CARDS))
    world.wait(lambda: "Places are gathered: 0 of 1" in kueue.entry("first")["message"], what="the check to gather")
    kueue.submit("second", of(world, gpus=1))
    entry = until(world, kueue, "second", "Retry")
    assert entry["requeueAfterSeconds"] == 10
    assert "0/1 nodes are available" in entry["message"]
    kueue.evict("second")
    kueue.reserve("second", since=LATER)
    world.wait(lambda: kueue.entry("second").get("requeueAfterSeconds") == 20, what="a longer pause")
    world.remove("holder")
    until(world, kueue, "first", "Ready")

    kueue.submit("never", of(world, gpus=CARDS + 1))
    until(world, kueue, "never", "Rejected")
    kueue.submit("other", of(world, gpus=CARDS + 1, schedulerName="another"))
    assert "podSetUpdates" not in until(world, kueue, "other", "Ready")


def test_a_second_leader_keeps_what_the_first_promised_before_it_was_killed(world: World, kueue: Kueue) -> None:
    nodes = nodes_of(world, 2)
    [standing_in] = [each for each in world.processes.started if each.name.startswith("operator")]
    standing_in.stop()
    first = world.operator(kueue=True, **QUICK_TERMS)
    second = world.operator(kueue=True, wait=False, **QUICK_TERMS)
    kueue.submit("one", of(world, 2, gpus=2))
    kueue.submit("two", of(world, gpus=CARDS))
    messages = {name: until(world, kueue, name, "Ready")["message"] for name in ("one", "two")}
    # Between the answers and the pods: one is admitted, the other is about to be, and pods without a place wait.
    kueue.admit("one")
    world.pods(["alone-0", "alone-1"], cards(1))
    first.kill()
    second.logged(LEADING)
    kueue.admit("two")
    come(world, "one", gpus=2, count=2)
    come(world, "two", gpus=CARDS)
    world.wait(lambda: {"one-0", "one-1", "two-0"} <= world.bound_names(), what="the pods to have their places")
    assert not {"alone-0", "alone-1"} & world.bound_names()
    for name in ("one", "two"):
        assert kueue.entry(name)["message"] == messages[name]
        placed = {each["spec"]["nodeName"] for each in world.arena.list("pods") if each["metadata"]["name"][:3] == name}
        assert placed == {node for node in nodes if node in messages[name]}
    # Nothing is promised any more: what a pod frees is free for others.
    world.remove("two-0")
    world.wait(lambda: {"alone-0", "alone-1"} <= world.bound_names(), what="the places to be free", deadline=PROMPT)


def test_places_of_a_workload_that_is_deleted_are_free(world: World, kueue: Kueue) -> None:
    nodes_of(world, 1)
    kueue.submit("big", of(world, gpus=CARDS))
    until(world, kueue, "big", "Ready")
    world.pod("alone", cards(1))
    world.waits("alone")
    kueue.api.delete(kueue.path("big"))
    world.wait(lambda: world.bound_names() == {"alone"}, what="the places to be free", deadline=PROMPT)
