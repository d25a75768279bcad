"""A Device that an earlier version left stale, because the API server refused it, heals after the upgrade."""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from berth_agent import cluster
from berth_api.names import CARDS_KEY, PARTITIONS_KEY
from devcluster import Arena
from tests.integration.agent.conftest import StartAgent
from tests.nvml import mig_profiles
from tests.nvml.fixture import NvmlFixture, h100, with_profiles
from tests.programs import previous
from tests.programs.processes import Process
from tests.stand_ins.kubelet import Kubelet
from tests.stand_ins.pod_resources import PodResourcesServer

FAULTY: Final = "e18cfb806d063139f2f1edc1198435c5f6fb10eb"
"""A commit whose agent sends `mig: null` for partitioned cards, so that the API server refuses the Device."""
OPENED: Final = {CARDS_KEY: "claims", PARTITIONS_KEY: "all"}
SOON: Final = 30.0
"""Seconds within which a new agent publishes the truth; a test's agent reads its cards five times a second."""
STALE_SECONDS: Final = 5.0
"""Seconds in which the faulty agent would have published a lost card."""


class Node:
    """A node with two cards that can have MIG."""

    def __init__(
        self, arena: Arena, name: str, folder: Path, *, kubelet: Kubelet, resources: PodResourcesServer
    ) -> None:
        self.arena, self.name, self.folder = arena, name, folder
        cards = [with_profiles(h100(index), mig_profiles.H100_80) for index in range(2)]
        self.machine = NvmlFixture(folder, gpus=cards)
        self.machine.write()
        boot = folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("boot-1")
        options = {
            "node-name": name,
            "kubelet-folder": folder / "kubelet",
            "kubelet-socket": kubelet.socket,
            "pod-resources-socket": resources.socket,
            "proc-root": folder / "proc",
            "checkpoint": folder / "state/checkpoint.json",
            "cdi-folder": folder / "cdi",
            "dra-partitions": folder / "partitions",
        }
        words = ["--device-plugin", "--dra", *self.machine.agent_options()]
        self.options = [*words, *(f"--{key}={value}" for key, value in options.items())]
        self.environment = {"BERTH_NVML_STATE": str(self.machine.state)}

    @contextmanager
    def partitions(self, version: str, environment: Mapping[str, str]) -> Iterator[None]:
        """Run the process that makes partitions."""
        command = [
            *(sys.executable, "-m", "berth_agent.vendors.nvidia.partitions"),
            *(f"--state={self.folder / 'record'}", f"--socket={self.folder / 'partitions'}"),
            *(f"--nvml-library={self.machine.library}", f"--proc={self.folder / 'proc'}"),
        ]
        own = {**self.environment, **environment}
        process = Process(name=f"partitions-{version}", command=command, folder=self.folder, environment=own)
        try:
            yield
        finally:
            process.kill()

    def device(self) -> dict[str, Any]:
        return self.arena.get("devices", self.name)

    def health(self) -> list[bool]:
        """Return the health of the cards as published."""
        if not self.arena.cluster.api.exists(f"{cluster.DEVICES}/{self.name}"):
            return []
        return [card["health"] for card in self.device()["spec"]["devices"] if card["type"] == "gpu"]


async def test_a_device_that_is_stale_since_the_node_was_opened_for_partitions_heals_as_the_same_object(
    arena: Arena, start: StartAgent, kubelet: Kubelet, resources: PodResourcesServer, folder: Path
) -> None:
    [name] = arena.nodes(1)
    node = Node(arena, name, folder, kubelet=kubelet, resources=resources)
    await asyncio.to_thread(upgrade, node, start)


def upgrade(node: Node, start: StartAgent) -> None:
    """Run the faulty agent until it has left a stale Device, and then this version's."""
    arena, before = node.arena, previous.environment(FAULTY)
    with node.partitions("before", before):
        old = start(*node.options, **node.environment, **before)
        arena.wait(lambda: node.health() == [True, True], deadline=SOON, what="the Device")
        arena.merge("nodes", node.name, {"metadata": {"labels": OPENED}})
        arena.wait(lambda: 'Invalid value: \\"null\\"' in old.log, deadline=SOON, what="the refusal")
        node.machine.lose(1)
        time.sleep(STALE_SECONDS)
        stale = node.device()
        assert node.health() == [True, True], "the version before left no stale Device"
        assert old.stop() == 0
    with node.partitions("after", {}):
        start(*node.options, **node.environment)
        arena.wait(lambda: node.health() == [True, False], deadline=SOON, what="the lost card")
        assert node.device()["metadata"]["uid"] == stale["metadata"]["uid"]
        node.machine.xid(0, 79)
        arena.wait(lambda: node.health() == [False, False], deadline=SOON, what="the next fault")
        assert [card["mig"] for card in node.device()["spec"]["devices"]] == [{"enabled": False, "instances": []}] * 2
        arena.merge("nodes", node.name, {"metadata": {"labels": dict.fromkeys(OPENED)}})
