"""NICs and FPGAs keep their minors across restarts of the agent and hot-plug, on a real API server."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from berth_api import names
from devcluster import Arena
from tests.objects.sysfs_tree import SysfsTree
from tests.stand_ins.proxy import FaultProxy

Start = Callable[..., Any]
START = 60.0
"""Longest time in seconds for an agent to start on a busy machine."""
NIC_A, NIC_B, NIC_C = "0000:2b:00.0", "0000:3b:00.0", "0000:1b:00.0"
FPGA_A, FPGA_B = "0000:5b:00.0", "0000:4b:00.0"


class Machine:
    """A node whose agent publishes only NICs and FPGAs."""

    def __init__(self, arena: Arena, start: Start, tree: SysfsTree) -> None:
        (self.node,) = arena.nodes(1)
        self.tree = tree
        self._arena, self._start = arena, start

    def agent(self, *options: str) -> Any:
        own = ["--node-name", self.node, "--sysfs-root", str(self.tree.root), "--discover", "rdma,fpga"]
        return self._start(*own, *options)

    def device(self) -> dict[str, Any]:
        path = f"/apis/{names.API_VERSION}/devices/{self.node}"
        return self._arena.get("devices", self.node) if self._arena.cluster.api.exists(path) else {}

    def minors(self) -> dict[str, str]:
        """Return the published devices by id, such as `rdma/0`."""
        devices = self.device().get("spec", {}).get("devices", [])
        return {each["id"]: f"{each['type']}/{each['minor']}" for each in devices}

    def reserved(self) -> str | None:
        annotations: dict[str, str] = self.device().get("metadata", {}).get("annotations", {})
        return annotations.get(names.RESERVED_MINORS)

    def wait(self, minors: dict[str, str], *, reserved: str | None = None) -> None:
        self._arena.wait(
            lambda: (self.minors(), self.reserved()) == (minors, reserved),
            deadline=START,
            what="the minors",
            details=lambda: str((self.minors(), self.reserved())),
        )


@pytest.fixture
def machine(arena: Arena, start: Start, tmp_path: Path) -> Machine:
    tree = SysfsTree(tmp_path / "sys")
    tree.nic(NIC_A)
    tree.nic(NIC_B)
    tree.fpga(FPGA_A)
    return Machine(arena, start, tree)


def test_devices_keep_their_minors_when_others_were_swapped_while_no_agent_ran(machine: Machine) -> None:
    first = machine.agent()
    machine.wait({NIC_A: "rdma/0", NIC_B: "rdma/1", FPGA_A: "fpga/0"})
    assert first.stop() == 0

    machine.tree.unplug(NIC_A)
    machine.tree.nic(NIC_C)
    machine.tree.fpga(FPGA_B)
    second = machine.agent()
    machine.wait({NIC_B: "rdma/1", NIC_C: "rdma/2", FPGA_A: "fpga/0", FPGA_B: "fpga/1"}, reserved=f"rdma/0={NIC_A}")
    assert second.stop() == 0

    machine.agent()
    machine.tree.nic(NIC_A)
    machine.wait({NIC_A: "rdma/0", NIC_B: "rdma/1", NIC_C: "rdma/2", FPGA_A: "fpga/0", FPGA_B: "fpga/1"})


def test_a_deleted_device_comes_back_with_its_minors(arena: Arena, machine: Machine) -> None:
    machine.agent()
    machine.wait({NIC_A: "rdma/0", NIC_B: "rdma/1", FPGA_A: "fpga/0"})
    machine.tree.unplug(NIC_A)
    shown = {NIC_B: "rdma/1", FPGA_A: "fpga/0"}
    machine.wait(shown, reserved=f"rdma/0={NIC_A}")
    arena.delete("devices", machine.node)
    machine.wait(shown, reserved=f"rdma/0={NIC_A}")
    arena.cluster.api.request(
        "PATCH",
        f"/apis/{names.API_VERSION}/devices/{machine.node}",
        body={"metadata": {"annotations": {names.RESERVED_MINORS: None}}},
        content_type="application/merge-patch+json",
    )
    machine.wait(shown, reserved=f"rdma/0={NIC_A}")


def test_nothing_is_numbered_before_the_device_was_read(arena: Arena, machine: Machine, proxy: FaultProxy) -> None:
    first = machine.agent()
    machine.wait({NIC_A: "rdma/0", NIC_B: "rdma/1", FPGA_A: "fpga/0"})
    assert first.stop() == 0
    machine.tree.unplug(NIC_A)
    before = machine.device()["metadata"]["resourceVersion"]

    # Nodes can be listed, but Devices cannot.
    away = proxy.answer("GET", r"/devices(\?|/)", status=503)
    machine.agent("--kubeconfig", str(proxy.kubeconfig(arena.cluster.token)))
    away.wait(count=5, timeout=START)
    time.sleep(0.5)
    assert machine.device()["metadata"]["resourceVersion"] == before
    away.remove()
    machine.wait({NIC_B: "rdma/1", FPGA_A: "fpga/0"}, reserved=f"rdma/0={NIC_A}")
