"""Nodes and the agents that report their cards: simulated nodes of one agent, and nodes with the NVML fixture.

Each node has cards for the workload, and a card of another model for probes, so that a probe always finds capacity.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from devcluster.control_plane import nodes
from tests.integration.operator.world import World
from tests.nvml.fixture import NvmlFixture, a100, t4
from tests.programs.processes import Process

CARDS: Final = 4
"""Cards of each node for the workload."""
SIMULATED: Final = 3
WITH_NVML: Final = 2
WORKLOAD_MODEL: Final = "*A100*"
PROBE_MODEL: Final = "*T4*"
MONTH: Final = "month.example.com"
"""Prefix of the labels that a month gives nodes: they outlive the Node."""
HEARTBEAT: Final[Mapping[str, object]] = {"lease_duration": 6, "renew_interval": 2.0, "poll_interval": 0.3}
"""Of the agents: a silent one is noticed soon."""
GRACE: Final = 2.0
"""Seconds beyond the Lease after which an agent is silent."""
PROFILES: Final = [*["a100"] * CARDS, "t4"]
"""Of the cards of a simulated node."""
OFFERED: Final = {"nvidia.com/gpu": str(CARDS + 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """How many nodes there are of each kind, and what they have in addition to their cards."""

    simulated: int = SIMULATED
    with_nvml: int = WITH_NVML
    capacity: Mapping[str, str] = field(default_factory=dict)


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

    def start(self, *, node: str = "") -> None:
        """Start the agent again, on the same node or on one of another name."""
        self.node = node or self.node
        self.agent = self._started()

    def permute(self, chance: random.Random) -> None:
        """Number the cards in another order, as a driver may that is loaded again."""
        chance.shuffle(self.fixture.gpus)
        for minor, card in enumerate(self.fixture.gpus):
            card.minor = minor
        self.fixture.write()

    def _started(self) -> Process:
        programs = self._world.processes
        kubeconfig = programs.agents.kubeconfig_on(self.node)
        return programs.node_agent(self.node, self.fixture, kubeconfig=kubeconfig, resync_interval=1.0, **HEARTBEAT)


class Machines:
    """All nodes."""

    def __init__(self, world: World, kubeconfig: Path, park: Park) -> None:
        self._world, self._kubeconfig = world, kubeconfig
        self._capacity = {**OFFERED, **park.capacity}
        names = world.arena.nodes(park.simulated + park.with_nvml, capacity=self._capacity)
        self.simulated, with_nvml = names[: park.simulated], names[park.simulated :]
        world.fleet = {name: {"profile": PROFILES} for name in self.simulated}
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
        return nodes.manifest(node, nodes.NodeOptions(labels=self._world.arena.labels, capacity=self._capacity))

    def rename(self, node: str, new: str) -> None:
        """Let the cards of a node appear on one of another name, which exists."""
        if node in self.simulated:
            self.simulated = [new if name == node else name for name in self.simulated]
            self._world.change(new, profile=PROFILES)
            self._world.forget(node)
        else:
            machine = next(each for each in self.with_nvml if each.node == node)
            machine.kill()
            machine.start(node=new)

    def restart_agent(self) -> None:
        """Start the agent of the simulated nodes again."""
        self.agent = self._started()

    def _started(self) -> Process:
        return self._world.agent(kubeconfig=self._kubeconfig, resync_interval=1.0, **HEARTBEAT)
