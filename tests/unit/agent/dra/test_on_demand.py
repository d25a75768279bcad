"""MIG instances on demand: the driver with the process that makes them, on the simulated NVML, killed between steps."""

import asyncio
import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from berth_agent.configuration.settings import Settings
from berth_agent.dra import slices
from berth_agent.dra.checkpoint import NAME as CHECKPOINT
from berth_agent.dra.driver import ClaimDriver
from berth_agent.dra.endpoint import DriverEndpoint
from berth_agent.dra.on_demand import UNDIVIDED, PartitionsOnDemand
from berth_agent.dra.preparation import POLL
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_agent.readings import Reading
from berth_agent.vendor import PartitionCards, Placement, RefusedError, UnansweredError, released
from berth_agent.vendors.nvidia.hand_over.access import NvidiaAccess
from berth_agent.vendors.nvidia.hand_over.device_nodes import DeviceNodes
from berth_agent.vendors.nvidia.partitions.client import PartitionClient
from berth_agent.vendors.nvidia.partitions.server import NAME
from berth_api.device import ClaimedDevice, DeviceSpec
from berth_client.errors import ApiError, Unreachable
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
    hangs = False
    refusal = ""
    """What it answers to each change; empty if it makes the change."""
    changes = 0
    """How often it was asked to change something."""

    async def _call(self, **request: Any) -> dict[str, Any]:
        if self.hangs:
            raise UnansweredError("the process that makes partitions does not answer: TimeoutError")
        return await super()._call(**request)

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
        self.changes += moment.startswith("before")
        if self.refusal:
            raise RefusedError(self.refusal)
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
        self.reported: list[ClaimedDevice] = []
        """What containers have of claims."""
        self.by_name = frozenset[str]()
        self.is_current = True
        self.on_demand = PartitionsOnDemand(
            self.process, client=api, node=NODE, released=lambda: released(probe.inventory)
        )
        self.driver = ClaimDriver(
            settings,
            client=api,
            hand_over=hand_over,
            endpoint=DriverEndpoint(folder),
            owner=dict,
            held=lambda: self.by_name,
            is_current=lambda: self.is_current,
            by_claim=lambda: self.reported,
            lingering=frozenset,
            on_demand=self.on_demand,
        )
        self.claims = self.driver.claims
        self.read = probe.read
        self.reading = Reading(spec=DeviceSpec(devices=[]), findings=())
        self._one_at_a_time = asyncio.Lock()
        self._wake = asyncio.Event()
        self.driver.on_partition(self._wake.set)

    async def look(self) -> None:
        """Ask the process, and read the cards, as the agent does periodically."""
        async with self._one_at_a_time:
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
            assert [card.mig for card in one.driver.undivided(one.reading).spec.devices if card.id == uuid] == [
                UNDIVIDED
            ]
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


async def test_a_partition_that_only_kubelet_names_keeps_its_card_until_its_claim_ends(
    machine: Machine, agent: Start, tmp_path: Path
) -> None:
    """Its records are lost, and it cannot be made now: its card is closed, and the process does not answer."""
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    uuid = fixture.gpus[0].uuid
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            name = device(one, "3g-40gb", 4)
            key = node.allocate("one", name, pool=NODE)
            await one.claims.prepare(key)
        for path in (*(node.folder / "cdi").iterdir(), node.folder / "state" / CHECKPOINT):
            path.unlink()
        lost = ClaimedDevice(namespace="ns", claim="one", driver="gpu.berth.dev", pool=NODE, device=name)
        closed = Agent(node, probe, tmp_path, labels=OPENED | {"berth.dev/partitions": "none"})
        closed.reported = [lost]
        await closed.look()
        [made] = closed.reading.spec.devices[0].mig.instances if closed.reading.spec.devices[0].mig else []
        assert closed.claims.cards() == frozenset({uuid})
        assert uuid in closed.driver.withheld()
        assert (published(closed), closed.driver._devices) == (set(), {})
        with pytest.raises(AllocationRefusedError):
            closed.driver.refuse_claimed([made.id])
        with pytest.raises(RefusedError, match="not released"):
            await closed.claims.unprepare(key)
        async with Agent(node, probe, sockets).running() as opened:
            opened.reported = [lost]
            await opened.look()
            # Its place is known again, and what is next to it is free.
            await opened.claims.prepare(node.allocate("two", device(opened, "1g-10gb", 0), pool=NODE))
            assert places(fixture) == [(9, 4), (19, 0)]
            opened.reported = []
            await opened.claims.unprepare(key)
            assert places(fixture) == [(19, 0)]


async def test_while_the_process_does_not_answer_claims_that_need_no_partition_are_served(
    machine: Machine, agent: Start, tmp_path: Path
) -> None:
    fixture = machine(*(with_profiles(h100(number), mig_profiles.H100_80) for number in range(2)))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    divided, whole = (f"gpu-b1000000-0000-4000-8000-{number:012}" for number in range(2))
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            key = node.allocate("one", device(one, "3g-40gb", 4), pool=NODE)
            prepared = await one.claims.prepare(key)
    one = Agent(node, probe, tmp_path)
    await one.look()
    assert (one.driver._publisher._devices, one.condition()[0]) == (None, "NotRegistered")
    message = "until it is known which exist: the process that makes partitions does not answer: .*Check the container"
    assert re.search(f"ResourceSlices stay as they are, and no claim gets a partition .*{message}", one.condition()[1])
    one.claims.leave()
    await one.claims.prepare(node.allocate("whole", whole, pool=NODE))
    assert await one.claims.prepare(key) == prepared
    [instance] = (made.id for card in one.reading.spec.devices if card.mig for made in card.mig.instances)
    for name in (divided, f"{divided}-1g-10gb-19-0", f"{whole}-1g-10gb-19-0", instance.lower()):
        with pytest.raises(RefusedError, match=f"{name}: no claim gets .*{message}"):
            await one.claims.prepare(node.allocate("other", name, pool=NODE))
    with pytest.raises(RefusedError, match="the node has no device gpu-9 now"):
        await one.claims.prepare(node.allocate("other", "gpu-9", pool=NODE))
    with pytest.raises(RefusedError, match=r"not released.*the process that makes partitions does not answer"):
        await one.claims.unprepare(key)
    # It answers again. The card that a claim has as a whole has no partitions.
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            one.claims.leave()
            with pytest.raises(RefusedError, match="still prepared for ResourceClaim ns/whole"):
                await one.claims.prepare(node.allocate("other", f"{whole}-1g-10gb-19-0", pool=NODE))
            await one.claims.unprepare(key)
            assert places(fixture) == []


@pytest.mark.parametrize("is_listing", [True, False])
async def test_a_process_that_hangs_is_asked_for_no_change_until_it_has_listed_again(
    machine: Machine, agent: Start, tmp_path: Path, *, is_listing: bool
) -> None:
    """It hangs when it is to list, or when it is to destroy."""
    fixture = machine(*(with_profiles(h100(number), mig_profiles.H100_80) for number in range(2)))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            key = node.allocate("one", device(one, "3g-40gb", 4), pool=NODE)
            await one.claims.prepare(key)
            one.process.hangs = True
            if is_listing:
                await one.look()
            for _ in range(3):
                with pytest.raises(RefusedError, match="does not answer: TimeoutError"):
                    await one.claims.unprepare(key)
            changes = one.process.changes
            assert changes == (1 if is_listing else 2)
            await one.claims.prepare(node.allocate("whole", "gpu-b1000000-0000-4000-8000-000000000001", pool=NODE))
            one.process.hangs = False
            await one.look()
            await one.claims.unprepare(key)
            assert (one.process.changes, places(fixture)) == (changes + 1, [])


class Answers:
    """An API server that keeps counters, and a process that does not answer for some seconds."""

    def __init__(self, *, process: float = 0.0, api: float = 0.0, error: ApiError | Unreachable | None = None) -> None:
        self._process, self._api, self._error = process, api, error or Unreachable("no answer")
        self.lists: list[float] = []
        self.probes: list[float] = []

    async def list(self) -> PartitionCards:
        self.lists.append(_now())
        if _now() < self._process:
            raise UnansweredError("the process that makes partitions does not answer: no such file")
        return PartitionCards(cards=())

    async def request(self, *_arguments: object, body: Any, **_options: object) -> Any:
        self.probes.append(_now())
        if _now() < self._api:
            raise self._error
        return body


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _nothing_left(_cards: object) -> str:
    return ""


@pytest.mark.looptime
@pytest.mark.parametrize(("process", "api", "known"), [(0.1, 0.0, 1.0), (45.0, 0.0, 46.0), (0.0, 12.0, 16.0)])
async def test_a_process_that_starts_with_the_agent_is_asked_again_in_a_second(
    process: float, api: float, known: float
) -> None:
    answers: Any = Answers(process=process, api=api)

    def changed() -> None:
        if not on_demand.unknown:
            running.cancel()

    on_demand = PartitionsOnDemand(answers, client=answers, node=NODE, released=contextlib.nullcontext)
    on_demand.on_change = changed
    running = asyncio.create_task(on_demand.run(_nothing_left))
    await asyncio.wait([running], timeout=120)
    assert _now() <= known
    # The API server and the cards' library are asked no more often than that.
    assert len(answers.probes) <= 2 + api / 5
    assert len(answers.lists) <= 6 + process + api / 5


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("status", "message", "known"),
    [
        (422, "ValidatingAdmissionPolicy 'frozen' with binding 'frozen' denied request: not now", 16.0),
        (422, 'admission webhook "frozen.example.com" denied the request: not now', 16.0),
        (403, "ValidatingAdmissionPolicy 'frozen' with binding 'frozen' denied request: not now", 16.0),
        # Before Kubernetes 1.35: the server keeps no counters.
        (422, "spec.devices[0].consumesCounters[0].counterSet: Invalid value", 0.0),
    ],
)
async def test_a_policy_that_refuses_slices_says_nothing_about_counters(
    status: int, message: str, known: float
) -> None:
    answers: Any = Answers(api=12.0, error=ApiError(status, "Invalid", message))
    on_demand = PartitionsOnDemand(answers, client=answers, node=NODE, released=contextlib.nullcontext)
    on_demand.on_change = lambda: on_demand.unknown or running.cancel()
    running = asyncio.create_task(on_demand.run(_nothing_left))
    await asyncio.wait([running], timeout=120)
    assert _now() <= known
    drops = "the API server drops counters of devices, as before Kubernetes 1.36"
    assert on_demand.problems(opened=True) == ([] if known else [drops])


async def test_a_claim_waits_for_a_process_that_is_restarted(machine: Machine, agent: Start, tmp_path: Path) -> None:
    """The process may end before the agent, or crash: kubelet would call again only a minute later."""
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            one.process.hangs = True
            key = node.allocate("one", device(one, "3g-40gb", 4), pool=NODE)
            preparing = asyncio.create_task(one.claims.prepare(key))
            await asyncio.sleep(3 * POLL)
            assert not preparing.done()
            one.process.hangs = False
            await one.look()
            await preparing
            assert places(fixture) == [(9, 4)]


async def test_an_instance_in_use_is_a_problem_of_the_node_until_its_claim_is_released(
    machine: Machine, agent: Start, tmp_path: Path
) -> None:
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            name = device(one, "3g-40gb", 4)
            key = node.allocate("one", name, pool=NODE)
            await one.claims.prepare(key)
            one.process.refusal = "GPU instance 2 of GPU-0 is in use by the processes [4711]"
            with pytest.raises(RefusedError, match="in use by the processes"):
                await one.claims.unprepare(key)
            # The calls of the next seconds are answered without the process, and without closing the cards.
            changes = one.process.changes
            for _ in range(3):
                with pytest.raises(RefusedError, match="in use by the processes"):
                    await one.claims.unprepare(key)
            assert one.process.changes == changes
            assert f"ResourceClaim ns/one not released: {name}: {one.process.refusal}" in one.condition()[1]
            # The label does not matter: the pod waits for it in any case.
            one.labels = {}
            await one.look()
            assert one.process.refusal in one.condition()[1]
        async with Agent(node, probe, sockets).running() as one:
            one.is_current = False
            with pytest.raises(RefusedError, match="not known yet"):
                await one.claims.unprepare(key)
            assert "ResourceClaim ns/one not released: the node's cards" in one.condition()[1]
            one.is_current = True
            await one.claims.unprepare(key)
            assert "not released" not in one.condition()[1]
            assert places(fixture) == []


async def test_a_pod_whose_card_has_fallen_off_the_bus_can_end(machine: Machine, agent: Start, tmp_path: Path) -> None:
    fixture = machine(*(with_profiles(h100(number), mig_profiles.H100_80) for number in range(2)))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            key = node.allocate("one", device(one, "3g-40gb", 4), pool=NODE)
            await one.claims.prepare(key)
            fixture.lose(0)
            await one.look()
            await one.claims.unprepare(key)
            assert (places(fixture), node.recorded(), node.files()) == ([(9, 4)], {}, {})
            # It answers again, with the instance.
            fixture.restore(0)
            await one.look()
            assert places(fixture) == []


@pytest.mark.looptime
async def test_the_more_often_a_partition_is_in_use_the_later_it_is_tried_again(tmp_path: Path) -> None:
    tries: list[float] = []
    clock = asyncio.get_running_loop().time

    class InUse(PartitionClient):
        async def destroy(self, key: str) -> None:
            if key == "one/gpu":
                tries.append(clock())
                if len(tries) < 8:
                    raise RefusedError("in use")

    api: Any = Node(tmp_path)
    on_demand = PartitionsOnDemand(InUse(tmp_path), client=api, node=NODE, released=contextlib.nullcontext)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2000):
            while len(tries) < 8:
                with contextlib.suppress(RefusedError):
                    await on_demand.destroy("one/gpu")
                await on_demand.destroy("another/gpu")
                await asyncio.sleep(1)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(tries)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    # It was destroyed. A later partition of this key is tried at once.
    await on_demand.destroy("one/gpu")
    assert len(tries) == 9


async def test_a_partition_that_a_pod_got_by_name_is_destroyed_when_this_pod_has_ended(
    machine: Machine, agent: Start, tmp_path: Path
) -> None:
    """While the driver was off, kubelet's device API gave it."""
    fixture = machine(*(with_profiles(h100(number), mig_profiles.H100_80) for number in range(2)))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    cards = [gpu.uuid for gpu in fixture.gpus]
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            key = node.allocate("one", device(one, "3g-40gb", 4), pool=NODE)
            await one.claims.prepare(key)
            [held] = one.claims.held[key.uid].devices
            # kubelet releases the claim.
            one.is_current = False
            with pytest.raises(RefusedError, match="not released: the node's cards and pods are not known yet"):
                await one.claims.unprepare(key)
            one.is_current, one.by_name = True, frozenset({held.id})
            await one.claims.unprepare(key)
            assert (places(fixture), node.recorded(), node.files()) == ([(9, 4)], {}, {})
            # Neither is it listed, nor destroyed while pods are not known, or have it or what is not known.
            for given in (held.id, cards[0], None, "MIG-0"):
                one.is_current, one.by_name = given is not None, frozenset({given} if given else ())
                await one.look()
                await one.look()
                assert places(fixture) == [(9, 4)], given
                assert given is None or f"stays: a pod has a part of {cards[0]} by name" in one.condition()[1]
                assert given == "MIG-0" or published(one).isdisjoint({"000000000000", "000000000000-1g-10gb-19-0"})
            one.is_current, one.by_name = True, frozenset({cards[1], "0000:1f:00.0"})
            await one.look()
            assert places(fixture) == []


@pytest.mark.parametrize("keeps_mode", [True, False])
async def test_an_instance_that_a_reset_ended_is_reported_and_its_containers_do_not_start(
    machine: Machine, agent: Start, tmp_path: Path, *, keeps_mode: bool
) -> None:
    """A reset keeps MIG mode on, and a reload of the driver does not. Then the card's device node is the whole card."""
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    probe, node = agent(fixture), Node(tmp_path / "agent")
    with serving(fixture, tmp_path / "record") as sockets:
        async with Agent(node, probe, sockets).running() as one:
            name = device(one, "3g-40gb", 4)
            key = node.allocate("one", name, pool=NODE)
            other = node.allocate("other", device(one, "1g-10gb", 0), pool=NODE)
            await one.claims.prepare(key)
            await one.look()
            assert (one.claims.withdrawn, runtime_files(node)) == ("", [f"k8s.gpu.berth.dev-claim_{key.uid}.json"])
            fixture.reset(0) if keeps_mode else fixture.reboot()
            await one.look()
            await renewed(one)
            message = f"no container of ResourceClaim ns/one can start: the node has no device {name} any more"
            assert f"{message}. If this lasts, delete the pods of the claim" in one.condition()[1]
            assert runtime_files(node) == []
            # The pods are deleted, and the next ones get what they need.
            await one.claims.unprepare(key)
            assert (one.claims.withdrawn, node.files(), places(fixture)) == ("", {}, [])
            await one.claims.prepare(other)
            await one.claims.prepare(key)
            await one.look()
            await renewed(one)
            assert (one.claims.withdrawn, places(fixture)) == ("", [(9, 4), (19, 0)])


def runtime_files(node: Node) -> list[str]:
    """Return the names of the files that the container runtime reads."""
    return [name for name in node.files() if name.endswith(".json")]


async def renewed(agent: Agent) -> None:
    """Wait until the CDI files are in step with the last reading."""
    if agent.claims.renewing:
        await agent.claims.renewing


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
    node.keeps_counters = False
    with serving(fixture, tmp_path / "record") as sockets:
        one = Agent(node, probe, sockets)
        await one.look()
    assert published(one) == {"000000000000"}
    assert "the API server drops counters" in one.condition()[1]
    # A node without cards has no NVML that could answer.
    one = Agent(node, agent(machine()), tmp_path, labels={})
    await one.look()
    assert one.reading.spec.devices == []
    assert "partitions" not in one.condition()[1]
