"""Pods are moved so that a pod that fits nowhere gets a node: the fewest, only movable ones, and no others.

`make defragment-e2e` sets the number of nodes (`BERTH_NODES`), and runs the tests that take longer.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
import yaml

from devcluster import Arena, Cluster
from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World

NODES: Final = int(os.environ.get("BERTH_NODES", "5"))
long = pytest.mark.skipif("BERTH_NODES" not in os.environ, reason="run by `make defragment-e2e`")
PATIENCE: Final = 30.0 + NODES
CARD, EIGHT = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "8"}
MOVABLE: Final = "berth.dev/movable"
HOLD: Final = "berth.dev/hold"
"""A finalizer, so that an evicted pod ends when the test says so."""


class City:
    """Nodes of eight cards on which only some pods are left, of four applications."""

    def __init__(self, world: World) -> None:
        self.world, self.arena = world, world.arena
        self.nodes = world.nodes(NODES, gpus=8)
        count = 8 * NODES
        world.pods([f"pod-{number}" for number in range(count)], CARD)
        world.wait(lambda: len(world.bound_names()) == count, deadline=4 * PATIENCE, what="all nodes to be full")
        self._of_node: dict[str, list[Manifest]] = {name: [] for name in self.nodes}
        for pod in self.arena.list("pods"):
            self._of_node[pod["spec"]["nodeName"]].append(pod)
        self._kept: set[str] = set()

    def keep(self, app: str, numbers: Mapping[int, int], *, movable: bool = True, hold: bool = False) -> list[str]:
        """Keep some pods, by index of the node and number, as pods of a ReplicaSet; return their names."""
        pods = [self._of_node[self.nodes[node]].pop() for node, count in numbers.items() for _ in range(count)]
        labels, annotations = {"app": app}, {MOVABLE: "true"} if movable else {}
        metadata = {"labels": labels, "annotations": annotations, **({"finalizers": [HOLD]} if hold else {})}
        names = [each["metadata"]["name"] for each in pods]
        for name in names:
            self.arena.merge("pods", name, {"metadata": metadata})
        template = {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": self.arena.pod(requests=CARD, limits=CARD)["spec"],
        }
        self.arena.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": app},
                "spec": {"replicas": len(names), "selector": {"matchLabels": labels}, "template": template},
            }
        )
        self._kept.update(names)
        return names

    def keep_bare(self, node: int) -> str:
        """Keep a pod without a controller."""
        name = str(self._of_node[self.nodes[node]].pop()["metadata"]["name"])
        self.arena.merge("pods", name, {"metadata": {"annotations": {MOVABLE: "true"}}})
        self._kept.add(name)
        return name

    def protect(self, app: str) -> None:
        """Allow no disruption of an application."""
        self.arena.apply(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": app},
                "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": app}}},
            }
        )

    def empty(self) -> None:
        """Delete all other pods, and wait until the rest has controllers."""
        for left in self._of_node.values():
            for pod in left:
                self.world.remove(pod["metadata"]["name"])
        self.world.wait(lambda: self.world.bound_names() == self._kept, deadline=PATIENCE, what="the others to go")
        self.world.wait(self._is_adopted, what="the ReplicaSets to adopt their pods")

    def _is_adopted(self) -> bool:
        metadata = [each["metadata"] for each in self.arena.list("pods")]
        return all("ownerReferences" in each for each in metadata if "app" in each["labels"])

    def release(self, name: str) -> None:
        """Delete an evicted pod, as kubelet does at its end."""
        self.arena.merge("pods", name, {"metadata": {"finalizers": None}})

    def terminating(self, names: Sequence[str]) -> list[str]:
        """Return which of these pods are being deleted."""
        pods = {each["metadata"]["name"]: each for each in self.arena.list("pods")}
        return [name for name in names if name in pods and "deletionTimestamp" in pods[name]["metadata"]]

    def uids(self) -> dict[str, str]:
        """Return the UIDs of all pods by name."""
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in self.arena.list("pods")}


FLAGS: Final = {"defragment": 1, "defragment_after": 1, "defragment_min_age": 0}


@pytest.fixture(scope="module")
def module_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Start an arena whose operator moves pods, for all tests of this module."""
    arena = Arena(cluster=cluster, folder=tmp_path_factory.mktemp("arena"))
    arena.open()
    own = World(arena=arena, folder=arena.folder)
    own.agent()
    own.operator(**FLAGS)
    yield own
    own.close()
    arena.close()


@pytest.fixture
def city(shared: World) -> Iterator[City]:
    own = City(shared)
    yield own
    for kind in ("replicasets", "poddisruptionbudgets"):
        for obj in own.arena.list(kind):
            own.arena.delete(kind, obj["metadata"]["name"])
    for pod in own.arena.list("pods"):
        if "finalizers" in pod["metadata"]:
            own.release(pod["metadata"]["name"])


def notes(world: World, uid: str, reason: str) -> list[str]:
    """Return the notes of the Events of a pod, which may be gone."""
    events = [each for each in world.arena.list("events") if each["involvedObject"].get("uid") == uid]
    return [each["message"] for each in events if each["reason"] == reason]


def test_the_fewest_pods_are_moved_and_their_place_is_kept(city: City) -> None:
    world, arena = city.world, city.arena
    two = city.keep("two", {0: 2}, hold=True)
    city.keep("three", dict.fromkeys(range(4, NODES), 3))
    guarded = city.keep("guarded", {1: 1})
    stays = city.keep("stays", {2: 1}, movable=False)
    bare = city.keep_bare(3)
    city.protect("guarded")
    city.empty()
    before = city.uids()

    began = time.monotonic()
    world.pod("big", EIGHT)
    world.waits("big", f"node {city.nodes[0]} is reserved")
    [first] = world.wait(lambda: city.terminating(two), what="a pod to be evicted")
    # What is free there is not given away, although the other still runs.
    world.pod("small", CARD, nodeSelector={"kubernetes.io/hostname": city.nodes[0]})
    city.release(first)
    world.wait(lambda: first not in city.uids(), what="the first to end")
    [second] = set(two) - {first}
    world.wait(lambda: city.terminating([second]), what="the second to be evicted")
    city.release(second)
    bound = world.bound("big")
    took = time.monotonic() - began

    assert bound["spec"]["nodeName"] == city.nodes[0]
    after = city.uids()
    assert {name for name in before if after.get(name) != before[name]} == {*two}
    assert {*guarded, *stays, bare} <= after.keys()
    assert "small" not in world.bound_names()
    world.wait(lambda: len(world.bound_names()) == len(before) + 1, what="the moved pods to run again")
    world.audit(*city.nodes)
    [moved] = world.wait(lambda: notes(world, before[first], "Moved"), what="the Event of a pod that moved")
    assert f"make room for pod {arena.namespace}/big" in moved
    [reserved] = world.wait(lambda: notes(world, bound["metadata"]["uid"], "MakingRoom"), what="the Event of the pod")
    assert reserved.startswith(f"Node {city.nodes[0]} is reserved, and 2 pod")
    sys.stdout.write(f"nodes {NODES}, pods {len(before)}, seconds from creation to binding {took:.1f}\n")


def test_moves_that_are_no_longer_possible_are_dropped(city: City) -> None:
    world = city.world
    two = city.keep("two", {0: 2}, hold=True)
    city.keep("stays", dict.fromkeys(range(1, NODES), 1), movable=False)
    city.empty()
    before = city.uids()
    big = world.pod("big", EIGHT)
    [first] = world.wait(lambda: city.terminating(two), what="a pod to be evicted")
    [second] = set(two) - {first}
    city.arena.merge("pods", second, {"metadata": {"annotations": {MOVABLE: "false"}}})
    city.release(first)

    [why] = world.wait(lambda: notes(world, big["metadata"]["uid"], "MovesDropped"), what="the rest to be dropped")
    assert why.startswith(
        f"Node {city.nodes[0]} is no longer reserved: no pods that may be moved make enough room on node"
    )
    world.wait(lambda: not world.arena.get("pods", "big")["status"].get("nominatedNodeName"), what="no nomination")
    assert city.uids()[second] == before[second]
    assert not city.terminating([second])


@long
def test_the_next_leader_continues(city: City) -> None:
    world = city.world
    two = city.keep("two", {0: 2}, hold=True)
    city.keep("three", dict.fromkeys(range(1, NODES), 3))
    city.empty()
    world.pod("big", EIGHT)
    [first] = world.wait(lambda: city.terminating(two), what="a pod to be evicted")
    world.processes.started[-1].kill()
    world.free_lease()
    world.pod("small", CARD, nodeSelector={"kubernetes.io/hostname": city.nodes[0]})
    city.release(first)
    world.wait(lambda: first not in city.uids(), what="the first to end")
    # On request only: it continues because the pod has a nominated node.
    world.operator(**FLAGS | {"defragment_after": 0})
    [second] = world.wait(lambda: city.terminating(two), what="the second to be evicted")
    city.release(second)
    assert world.bound("big")["spec"]["nodeName"] == city.nodes[0]
    assert "small" not in world.bound_names()


@long
def test_pods_are_moved_on_request(city: City, tmp_path: Path) -> None:
    # The operator of the last test moves pods only on request.
    world, arena = city.world, city.arena
    two = city.keep("two", {0: 2})
    city.keep("three", dict.fromkeys(range(1, NODES), 3))
    city.empty()
    world.pod("big", EIGHT)
    world.waits("big", "too few free GPUs")
    head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
    config = tmp_path / "profiles.yaml"
    config.write_text(yaml.safe_dump({**head, "profiles": [{"schedulerName": arena.scheduler_name}]}))
    command = [sys.executable, "-m", "berth_operator", "defragment", f"--pod={arena.namespace}/big", "--min-age=0"]
    command += [f"--kubeconfig={arena.cluster.kubeconfig}", f"--node-selector={arena.selector}", f"--config={config}"]

    planned = subprocess.run([*command, "--dry-run"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert f"{arena.namespace}/big would get {city.nodes[0]}" in planned.stdout
    assert {*two} <= city.uids().keys()
    assert not arena.get("pods", "big")["status"].get("nominatedNodeName")

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert done.stderr == f"{arena.namespace}/big was bound to {city.nodes[0]}\n"
    assert not {*two} & city.uids().keys()
