"""A container gets the device files of the RDMA NICs that its pod holds, and no others, on a real kubelet."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.nics import NIC, files, files_of, plug_in
from tests.node.stage import GPU, Stage
from tests.nvml.fixture import a100
from tests.objects.sysfs_tree import SysfsTree

SAME_SWITCH = {names.JOINT_ALLOCATE: json.dumps({"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"})}
NCCL = "NCCL_IB_HCA"
WHOLE_SECOND = json.dumps({"rdma": {"selector": {"matchLabels": {"berth.dev/rdma-device": "mlx5_1"}}}})


class NicStage(Stage):
    injection: ClassVar[Mapping[str, str]] = {"nics": "true"}


@pytest.fixture
def stage(arena: Arena, node: RealNode, tmp_path: Path) -> Iterator[Stage]:
    """Four cards, and a NIC under each of their two switches; the second NIC has two virtual functions."""
    cards = [a100(index) for index in range(4)]
    with NicStage(node, arena, tmp_path, gpus=cards, nics=True, nccl_ib_hca=True) as running:
        plug_in(SysfsTree(running.machine.sysfs), cards)
        running.wait(lambda: node.allocatable(names.RDMA_RESOURCE), what="the resource on offer")
        running.wait(lambda: len(devices(running)) == len(cards) + 2, what="the NICs on the Device")
        yield running


def devices(stage: Stage) -> list[Any]:
    listed: list[Any] = stage.device()["spec"]["devices"]
    return listed


def test_containers_have_just_the_nics_of_their_pods(stage: Stage) -> None:
    stage.submit({GPU: "2", NIC: "1"}, "left", annotations=SAME_SWITCH)
    stage.wait(lambda: stage.is_running("left"), what="left to run")
    assert stage.cards("left") == [0, 1]
    stage.submit({GPU: "2", NIC: "1"}, "right", annotations=SAME_SWITCH)
    stage.submit({NIC: "1"}, "function", annotations={names.ALLOCATE_HINT: json.dumps({"rdma": {"vfSelector": {}}})})
    stage.submit({"cpu": "10m"}, "without")
    for name in ("left", "right", "function", "without"):
        stage.wait(lambda name=name: stage.is_running(name), what=f"{name} to run")

    assert files(stage, "left") == files_of("mlx5_0")
    assert files(stage, "right") == files_of("mlx5_1")
    [nic] = world.allocation(stage.read("function"))["rdma"]
    assert [function["busID"] for function in nic["extension"]["vfs"]] == ["0000:28:00.1"]
    assert files(stage, "function") == files_of("mlx5_2")
    assert files(stage, "without") == set()
    chosen = {name: environment(stage, name).get(NCCL) for name in ("left", "right", "function", "without")}
    assert chosen == {"left": "=mlx5_0", "right": "=mlx5_1", "function": "=mlx5_2", "without": None}

    # Each start asks the agent, which may be another one by then.
    before = stage.node.container(stage.read("right"))
    stage.agent.stop()
    stage.start_agent()
    stage.wait(lambda: names.RDMA_RESOURCE in stage.healthy(), what="the resource on offer again")
    stage.submit({NIC: "1"}, "own", environment={NCCL: "mlx5"}, annotations={names.ALLOCATE_HINT: WHOLE_SECOND})
    stage.wait(lambda: stage.is_running("own"), what="the pod with a variable of its own to run")
    assert environment(stage, "own")[NCCL] == "mlx5"
    assert stage.node.container(stage.read("right")) == before


def test_a_container_starts_with_no_nic_but_its_own(stage: Stage) -> None:
    stage.submit({NIC: "100"}, "whole")
    stage.wait(lambda: stage.is_running("whole"), what="the pod to run")
    held = stage.read("whole")["metadata"]["annotations"][names.ALLOCATED]
    by_hand = {"nodeName": stage.node.name}
    # Kubelet admits them; what they say about NICs is wrong.
    stage.submit({names.RDMA_RESOURCE: "1"}, "second", annotations={names.ALLOCATED: held}, **by_hand)
    stage.submit({names.RDMA_RESOURCE: "1"}, "none", **by_hand)
    stage.wait(lambda: "was also given to" in waiting(stage, "second"), what="the second holder to be refused")
    stage.wait(lambda: "holds no NIC" in waiting(stage, "none"), what="the pod without NICs to be refused")
    stage.remove("whole")
    stage.wait(lambda: stage.is_running("second"), what="the second holder to run alone")


def waiting(stage: Stage, pod: str) -> str:
    """Return why a pod's container waits for its start; empty if it does not."""
    [status] = stage.read(pod)["status"].get("containerStatuses", [{}])
    return str(status.get("state", {}).get("waiting", {}).get("message", ""))


def environment(stage: Stage, pod: str) -> dict[str, str]:
    return dict(stage.node.container(stage.read(pod)).environment)
