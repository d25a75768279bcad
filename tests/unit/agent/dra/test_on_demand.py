"""MIG instances on demand: the driver with the process that makes them, on the simulated NVML, killed between steps."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.dra import slices
from berth_agent.dra.driver import ClaimDriver
from berth_agent.dra.endpoint import DriverEndpoint
from berth_agent.dra.on_demand import PartitionsOnDemand
from berth_agent.readings import Reading
from berth_agent.vendor import Placement, RefusedError, released
from berth_agent.vendors.nvidia.hand_over.access import NvidiaAccess
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes
from berth_agent.vendors.nvidia.partitions.client import PartitionClient
from berth_agent.vendors.nvidia.partitions.server import NAME
from berth_api.device import DeviceSpec
from tests.nvml import mig_profiles
from tests.nvml.fixture import NvmlFixture, a100, h100, with_profiles
from tests.nvml.probe import NODE, Machine, Probe, Start
from tests.unit.agent.dra.test_preparation import BY_CDI, Node

OPENED: Final = {"berth.dev/cards": "claims", "berth.dev/partitions": "all"}
CAPABILITIES: Final = {
    (minor, instance, compute): 1000 * minor + 10 * instance + compute + 2
    for minor in range(2)
    for instance in range(16)
    for compute in range(-1, 8)
}


class KilledError(Exception):
    """The agent is killed."""


class Cards:
    """How containers get cards."""

    def access(self, spec: DeviceSpec) -> NvidiaAccess:
        nodes = DeviceNodes(control=("/dev/nvidiactl",), capabilities=CAPABILITIES)
        return NvidiaAccess(spec=spec, options=BY_CDI, nodes=nodes)


class Process(PartitionClient):
    """The process, and an agent that is killed before or after a call of it."""

    crash = ""

    async def make(self, key: str, *, card: str, placement: Placement) -> str:
        self._die("before make")
        made = await super().make(key, card=card, placement=placement)
        self._die("after make")
        return made

    async def destroy(self, key: str) -> None:
        self._die("before destroy")
        await super().destroy(key)
        self._die("after destroy")

    def _die(self, moment: str) -> None:
        if self.crash == moment:
            raise KilledError


class Agent:
    """An agent's driver on a machine. Another one on the same folder is the agent after a restart."""

    def __init__(self, node: Node, probe: Probe, sockets: Path, labels: dict[str, str] = OPENED) -> None:
        self.labels = labels
        folder = node.folder
        settings = Settings(
            node_name=NODE, checkpoint=folder / "state/pods.json", cdi_folder=folder / "cdi", device_plugin=True
        )
        api: Any = node
        hand_over: Any = Cards()
        self.process = Process(sockets)
        self.on_demand = PartitionsOnDemand(
            self.process, client=api, node=NODE, released=lambda: released(probe.inventory)
        )
        self.driver = ClaimDriver(
            settings,
            client=api,
            hand_over=hand_over,
            endpoint=DriverEndpoint(folder),
            owner=dict,
            held=frozenset,
            is_current=lambda: True,
            on_demand=self.on_demand,
        )
        self.claims = self.driver.claims
        self.read = probe.read
        self.reading = Reading(spec=DeviceSpec(devices=[]), findings=())
        self._wake = asyncio.Event()
        self.driver.on_partition(self._wake.set)

    async def look(self) -> None:
        """Ask the process, and read the cards, as the agent does periodically."""
        await self.on_demand.look(self.claims.destroy_left)
        self.reading = await self.read()
        await self.driver.update(self.reading, self.labels)

    @contextlib.asynccontextmanager
    async def running(self, *, reads: bool = True) -> AsyncIterator["Agent"]:
        """Read the cards whenever the driver asks for it."""

        async def follow() -> None:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if reads:
                    await self.look()
                else:
                    self.claims.leave()

        await self.look()
        task = asyncio.create_task(follow())
        try:
            yield self
        finally:
            task.cancel()

    def condition(self) -> tuple[str, str]:
        [served] = self.driver.view(self.reading).findings[-1:]
        return served.reason, served.message


@contextlib.contextmanager
def serving(fixture: NvmlFixture, state: Path) -> Iterator[Path]:
    """Run the process, and return the folder of its socket, whose path is short."""
    with tempfile.TemporaryDirectory() as name:
        module = "berth_agent.vendors.nvidia.partitions"
        arguments = ["--state", str(state), "--socket", name, "--nvml-library", str(fixture.library)]
        with subprocess.Popen([sys.executable, "-m", module, *arguments], env=os.environ.copy()) as process:
            while not (Path(name) / NAME).exists() and process.poll() is None:
                os.sched_yield()
            try:
                yield Path(name)
            finally:
                process.kill()


def places(fixture: NvmlFixture) -> list[tuple[int, int]]:
    return sorted((made.profile, made.start) for made in fixture.gpu_instances(0) if made.computes)


def device(agent: Agent, profile: str, start: int) -> str:
    return next(name for name in agent.driver._devices if f"-{profile}-" in name and name.endswith(f"-{start}"))


async def test_an_agent_that_is_killed_between_any_two_steps_completes_or_undoes_what_it_began(
    machine: Machine, agent: Start, tmp_path: Path
) -> None:
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    folder, aside = node.folder / "cdi", tmp_path / "aside"

    async def killed(call: Callable[[Agent], Any], moment: str) -> None:
        one = Agent(node, probe, sockets)
        one.process.crash = moment
        if moment == "before CDI":
            folder.rename(aside)
            folder.write_text("")
        async with one.running(reads=moment != "after the UUID is recorded"):
            with contextlib.suppress(KilledError, RefusedError):
                await call(one)
        if moment == "before CDI":
            folder.unlink()
            aside.rename(folder)

    def is_clean() -> bool:
        return places(fixture) == [] and node.recorded() == {} and node.files() == {}

    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            name = device(one, "3g-40gb", 4)
        key = node.allocate("one", name, pool=NODE)
        making = ["before make", "after make", "after the UUID is recorded", "before CDI", "before the answer"]
        for moment in making:
            for is_completed in (True, False):
                await killed(lambda agent: agent.claims.prepare(key), moment)
                assert node.recorded(), moment
                async with Agent(node, probe, sockets).running() as after:
                    if is_completed:
                        assert await after.claims.prepare(key) == await after.claims.prepare(key)
                        assert (places(fixture), list(node.files())) == (
                            [(9, 4)],
                            [f"k8s.gpu.berth.dev-claim_{key.uid}.json"],
                        )
                        [held] = after.claims.held[key.uid].devices
                        assert held.id.startswith("MIG-"), moment
                    await after.claims.unprepare(key)
                    assert is_clean(), moment
        for moment in ("before destroy", "after destroy"):
            async with Agent(node, probe, sockets).running() as one:
                await one.claims.prepare(key)
            await killed(lambda agent: agent.claims.unprepare(key), moment)
            assert node.recorded()
            assert node.files()
            async with Agent(node, probe, sockets).running() as after:
                await after.claims.unprepare(key)
            assert is_clean(), moment


def published(agent: Agent) -> set[str]:
    publisher = agent.driver._publisher
    shown = slices.by_card(publisher._devices or (), with_taints=True, partitioned=publisher._partitioned)
    return {device["name"].removeprefix("gpu-b1000000-0000-4000-8000-") for one in shown.values() for device in one}


async def test_an_opened_card_gives_instances_or_all_of_itself_and_nothing_by_name(
    machine: Machine, agent: Start, tmp_path: Path
) -> None:
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80), with_profiles(a100(1), mig_profiles.A100_80))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    uuid, whole = fixture.gpus[0].uuid, "gpu-b1000000-0000-4000-8000-000000000000"
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            assert (f"MIG mode of {fixture.gpus[1].uuid} is off: turn it on") in one.condition()[1]
            assert {"000000000000", "000000000000-1g-10gb-19-6"} < published(one)
            half, small = device(one, "3g-40gb", 4), device(one, "1g-10gb", 0)
            first, second = (node.allocate(name, name, pool=NODE) for name in (half, small))
            both = node.allocate("both", device(one, "1g-10gb", 6), pool=NODE)
            await asyncio.gather(one.claims.prepare(first), one.claims.prepare(second))
            assert places(fixture) == [(9, 4), (19, 0)]
            one.claims.leave()
            for refused, reason in (
                (node.allocate("whole", whole, pool=NODE), "still prepared"),
                (both, "still prepared"),
            ):
                with pytest.raises(RefusedError, match=reason):
                    await one.claims.prepare(refused)
            await one.look()
            # No pod gets the instances by name: the Device and the device plugin have the card as a whole, withheld.
            assert [card.mig for card in one.driver.undivided(one.reading).spec.devices if card.id == uuid] == [None]
            assert uuid in one.driver.withheld()
            assert {"000000000000", "000000000000-1g-10gb-19-6"} < published(one)
        async with Agent(node, probe, sockets, labels={}).running() as closed:
            assert (published(closed), uuid in closed.driver.withheld()) == (set(), True)
            assert half not in closed.driver._devices
        async with Agent(node, probe, sockets).running() as one:
            await one.claims.unprepare(first)
            await one.claims.unprepare(second)
            # An instance of a claim that is not known any more is destroyed by the next look.
            await one.process.make("lost/gpu", card=uuid, placement=Placement(profile=19, start=1, size=1))
            assert places(fixture) == [(19, 1)]
            await one.look()
            assert places(fixture) == []
            await one.claims.prepare(node.allocate("whole", whole, pool=NODE))
            await one.look()
            assert [card.mig and card.mig.enabled for card in one.reading.spec.devices if card.id == uuid] == [False]


async def test_what_is_not_known_or_not_possible_is_said_and_not_listed(
    machine: Machine, agent: Start, tmp_path: Path
) -> None:
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    for labels, message in (
        (OPENED | {"berth.dev/partitions": "some"}, "its only value is all"),
        (OPENED | {"berth.dev/cards": "both"}, "it needs berth.dev/cards=claims"),
    ):
        one = Agent(node, probe, tmp_path, labels)
        await one.look()
        assert message in one.condition()[1]
    # Without an answer of the process, nothing is published, and no claim gets a card.
    one = Agent(node, probe, tmp_path)
    await one.look()
    assert (one.driver._publisher._devices, one.condition()[0]) == (None, "NotRegistered")
    assert "the process that makes partitions does not answer" in one.condition()[1]
    one.claims.leave()
    with pytest.raises(RefusedError, match="not known yet"):
        await one.claims.prepare(node.allocate("one", "gpu-b1000000-0000-4000-8000-000000000000", pool=NODE))
    node.keeps_counters = False
    with serving(fixture, tmp_path / "record") as sockets:
        one = Agent(node, probe, sockets)
        await one.look()
    assert published(one) == {"000000000000"}
    assert "the API server drops counters" in one.condition()[1]
