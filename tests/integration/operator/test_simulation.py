"""The commands predict for a real cluster what the operator then does there."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.control_plane.api import Manifest
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.programs.processes import Process

CARD, TWO = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "2"}
HALF, WHOLE = {"kubernetes.io/gpu": "50"}, {"kubernetes.io/gpu": "100"}


class Desk:
    """The commands, run as users run them."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
        self.config = folder / "profiles.yaml"
        self.config.write_text(yaml.safe_dump({**head, "profiles": [{"schedulerName": world.arena.scheduler_name}]}))
        self.live = (f"--kubeconfig={world.arena.cluster.kubeconfig}", f"--node-selector={world.arena.selector}")

    def run(self, *arguments: str | Path) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "berth_operator", *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return ended.returncode, ended.stdout, ended.stderr

    def ask(self, command: str, *more: str | Path) -> tuple[int, dict[str, Any]]:
        options = ("-o", "json", "--config", self.config, "-n", self.world.arena.namespace)
        status, out, err = self.run(command, *options, *more)
        assert status in (0, 1), err
        return status, json.loads(out)

    def snapshot(self) -> Path:
        status, out, err = self.run("snapshot", *self.live)
        assert status == 0, err
        path = self.folder / "cluster.jsonl"
        path.write_text(out)
        return path

    def file(self, *documents: Manifest) -> Path:
        path = self.folder / "workload.yaml"
        path.write_text(yaml.safe_dump_all(documents))
        return path


@pytest.fixture
def operator(world: World) -> Process:
    world.agent()
    return world.operator()


@pytest.fixture
def desk(world: World, tmp_path: Path) -> Desk:
    return Desk(world, tmp_path)


def test_pods_go_where_the_simulation_says(desk: Desk, operator: Process) -> None:
    world, arena = desk.world, desk.world.arena
    world.nodes(2, gpus=2)
    world.nodes(1, profile="t4", gpus=2)
    # Of equal nodes the operator takes that of the lowest row, and a new node gets the row of any Device that is gone,
    # also of another test's. An operator that starts gives rows in the order of names, as the simulation does.
    operator.stop()
    world.operator()
    secret = {"env": [{"name": "PASSWORD", "value": "hunter2"}]}
    for number in range(2):
        pod = arena.pod(f"there-{number}", requests=HALF, limits=HALF)
        pod["spec"]["containers"][0] |= secret
        arena.create([pod])
        world.bound(f"there-{number}")
    requests_by_pod = {"a": CARD, "b": HALF, "c": TWO, "d": {**HALF, "cpu": "4"}, "e": CARD, "f": TWO}
    pods = [arena.pod(name, requests=requests, limits=requests) for name, requests in requests_by_pod.items()]
    workload = desk.file(*pods)

    snapshot = desk.snapshot()
    assert "hunter2" not in snapshot.read_text()
    status, report = desk.ask("simulate", "-f", workload, "--snapshot", snapshot)
    assert desk.ask("simulate", "-f", workload, *desk.live) == (status, report)

    predicted = {each["pod"].partition("/")[2]: each for each in report["pods"]}
    for name, pod in zip(requests_by_pod, pods, strict=True):
        arena.create([pod])
        if predicted[name]["fits"]:
            bound = world.bound(name)
            actual = (bound["spec"]["nodeName"], words.minors(bound))
            assert actual == (predicted[name]["node"], predicted[name]["devices"]["gpu"]), name
        else:
            world.waits(name, "preemption: ")
            assert world.message(name) == predicted[name]["reason"]
    assert status == 1
    assert sum(each["fits"] for each in predicted.values()) == 5

    # The pods that were to stay are still there.
    after = {each["node"]: each["free"]["after"] for each in report["devices"]}
    _, now = desk.ask("simulate", "-f", desk.file(), *desk.live)
    assert {each["node"]: each["free"]["before"] for each in now["devices"]} == after
    # The pods that could not be placed wait in the cluster now.
    assert [each["fits"] for each in now["waiting"]] == [False]


@pytest.mark.usefixtures("operator")
def test_what_is_advised_frees_capacity(desk: Desk) -> None:
    world, arena = desk.world, desk.world.arena
    world.nodes(2, gpus=2)
    world.pod("first", CARD)
    world.bound("first")
    _replicas(world, 2)
    world.remove("first")
    world.pod("big", TWO)
    world.waits("big", "too few free GPUs")
    wants = f"{arena.namespace}/big"

    status, report = desk.ask("advise", "--pod", wants, *desk.live)
    assert status == 0
    [move] = report["moves"]
    assert move["from"]["node"] == report["node"] != move["to"]["node"]

    # As docs/simulation.md describes: no pod returns to a node that is drained.
    world.cordon(report["node"], on=True)
    world.remove(move["pod"].partition("/")[2])
    world.wait(lambda: len(_on(world, move["to"]["node"])) == 2, what="the pod to be created again on another node")
    world.cordon(report["node"], on=False)
    bound = world.bound("big")
    assert (bound["spec"]["nodeName"], words.minors(bound)) == (report["node"], report["devices"]["gpu"])


def _replicas(world: World, count: int, requests: Mapping[str, str] = CARD, *, name: str = "replica") -> None:
    """Create a ReplicaSet, and wait until its pods are bound."""
    labels, before = {"app": name}, len(world.bound_names())
    template = {
        "metadata": {"labels": labels},
        "spec": world.arena.pod("x", requests=requests, limits=requests)["spec"],
    }
    world.arena.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": name},
            "spec": {"replicas": count, "selector": {"matchLabels": labels}, "template": template},
        }
    )
    world.wait(lambda: len(world.bound_names()) == before + count, what="replicas to be bound")


def _on(world: World, node: str) -> list[Manifest]:
    return [each for each in world.arena.list("pods") if each["spec"].get("nodeName") == node]
