"""Nodes and the agents that report their cards: simulated ones of one agent, and ones with the NVML fixture.

Each node has cards for the workload, and one of another model for probes, so that a probe always finds room.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from devcluster.control_plane import nodes
from tests.integration.operator.world import World
from tests.nvml.fixture import NvmlFixture, a100, t4
from tests.processes import Process

CARDS: Final = 4
"""Cards of each node for the workload."""
SIMULATED: Final = 3
WITH_NVML: Final = 2
WORKLOAD_MODEL: Final = "*A100*"
PROBE_MODEL: Final = "*T4*"
HEARTBEAT: Final[Mapping[str, object]] = {"lease_duration": 6, "renew_interval": 2.0, "poll_interval": 0.3}
"""Of the agents: a silent one is noticed soon."""
GRACE: Final = 2.0
"""Seconds beyond the Lease after which an agent is silent."""
OFFERED: Final = {"nvidia.com/gpu": str(CARDS + 1)}


class Machine:
    """A node with the NVML fixture, and its agent."""

    def __init__(self, world: World, node: str, number: int) -> None:
        self.node = node
        self._world = world
        gpus = [a100(number * CARDS + index) for index in range(CARDS)]
        for minor, card in enumerate([*gpus, probe := t4(number)]):
            card.minor = minor
        self.fixture = NvmlFixture(world.processes.folder / node, gpus=[*gpus, probe])
        self.fixture.write()
        self.agent = self._started()

    def kill(self) -> None:
        """Kill the agent."""
        self.agent.kill()

    def start(self) -> None:
        """Start the agent again."""
        self.agent = self._started()

    def permute(self, chance: random.Random) -> None:
        """Number the cards in another order, as a driver may that is loaded again."""
        chance.shuffle(self.fixture.gpus)
        for minor, card in enumerate(self.fixture.gpus):
            card.minor = minor
        self.fixture.write()

    def _started(self) -> Process:
        return self._world.processes.node_agent(self.node, self.fixture, resync_interval=1.0, **HEARTBEAT)


class Machines:
    """All nodes."""

    def __init__(self, world: World, kubeconfig: Path) -> None:
        self._world, self._kubeconfig = world, kubeconfig
        names = world.arena.nodes(SIMULATED + WITH_NVML, capacity=OFFERED)
        self.simulated, with_nvml = names[:SIMULATED], names[SIMULATED:]
        profile = ["a100"] * CARDS + ["t4"]
        world.fleet = {name: {"profile": profile} for name in self.simulated}
        world.change(self.simulated[0])
        self.agent = self._started()
        self.with_nvml = [Machine(world, name, number) for number, name in enumerate(with_nvml)]
        world.wait(lambda: all(world.shown(name) for name in names), what="the Devices")

    @property
    def names(self) -> Sequence[str]:
        """Return the names of all nodes."""
        return [*self.simulated, *(machine.node for machine in self.with_nvml)]

    def manifest(self, node: str) -> Mapping[str, Any]:
        """Return the manifest with which a node was created."""
        return nodes.manifest(node, nodes.NodeOptions(labels=self._world.arena.labels, capacity=OFFERED))

    def restart_agent(self) -> None:
        """Start the agent of the simulated nodes again."""
        self.agent = self._started()

    def _started(self) -> Process:
        return self._world.agent(kubeconfig=self._kubeconfig, resync_interval=1.0, **HEARTBEAT)
