"""The reporter publishes a machine's processes next to kubelet's answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_agent.kubelet.admission import pods
from berth_agent.kubelet.admission.admission import Admission, UnavailableError
from berth_agent.kubelet.admission.checkpoint import Checkpoint
from berth_agent.kubelet.admission.mirror import ContainerReport
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.publishing.gpupods import GpuPods
from berth_agent.readings import ClaimedByContainer, NodeUse, Reading
from berth_agent.usage.reporter import UsageReporter
from berth_api.device import MAX_DEVICES, MAX_HELD, ClaimedDevice, DeviceSpec, ForeignUse, UnheldUse
from berth_client.errors import Unreachable
from tests.nvml.fixture import NvmlFixture, Process, a100
from tests.nvml.probe import Machine, Probe, Start

GI = 2**30
UIDS = {"none": "1f2e3d4c-5b6a-4788-9900-aabbccddeeff", "other": "2f2e3d4c-5b6a-4788-9900-aabbccddeeff"}
OF_GONE = "3f2e3d4c-5b6a-4788-9900-aabbccddeeff"
"""A pod that has gone, while a process of it runs on."""
GPU = "nvidia.com/gpu"


def pod(name: str, count: int, *containers: str) -> Pod:
    limits = {GPU: str(count)} if count else {}
    spec = {"containers": [{"name": name, "resources": {"limits": limits}} for name in containers or ("main",)]}
    return pods.of_object({"metadata": {"uid": UIDS[name], "namespace": "ns", "name": name}, "spec": spec})


class Kubelet:
    """Answers with what it has given."""

    def __init__(self, **given: str) -> None:
        self.given = given
        self.containers: tuple[str, ...] = ("main",)
        self.is_away = False
        self.asked = asyncio.Event()
        self.claim_users: tuple[ClaimedByContainer, ...] = ()

    async def list_containers(self) -> tuple[ContainerReport, ...]:
        self.asked.set()
        if self.is_away:
            raise UnavailableError("no such socket")
        return tuple(
            ContainerReport(namespace="ns", pod=name, container=container, by_resource={GPU: frozenset({card})})
            for name, card in self.given.items()
            for container in self.containers
        )


class Server:
    """An API server with the node's pods, which do not change, and without GpuPods."""

    def __init__(self) -> None:
        self.lists = 0
        self.is_cut = False
        """Whether writes have no answer."""
        self.written = asyncio.Event()

    async def follow(self, admission: Admission) -> None:
        admission.replace_pods([pod("none", 0), pod("other", 1)], 1)

    async def read_list(self, *_: Any, **__: Any) -> tuple[list[Any], str]:
        self.lists += 1
        return [], "1"

    async def apply(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.written.set()
        if self.is_cut:
            raise Unreachable("no answer")
        return {"metadata": {"uid": "u"}}

    async def delete(self, *_: Any, **__: Any) -> None:
        """Delete a GpuPod."""


class World:
    """A machine with two cards, of which kubelet gave the second to the pod `other`, and the reporter."""

    def __init__(self, fixture: NvmlFixture, probe: Probe, folder: Path) -> None:
        for pid, uid in enumerate((*UIDS.values(), OF_GONE), 10):
            (folder / f"proc/{pid}").mkdir(parents=True)
            (folder / f"proc/{pid}/cgroup").write_text(f"0::/kubepods/pod{uid}/c\n")
        self.fixture, self.probe, self.kubelet = fixture, probe, Kubelet(other=fixture.gpus[1].uuid)
        self.server = Server()
        server: Any = self.server
        admission = Admission(
            kubelet=self.kubelet,
            server=server,
            events=server,
            memory=Checkpoint(path=folder / "checkpoint", boot_id="b"),
            running=frozenset,
        )
        settings = probe.settings.model_copy(
            update={"proc_root": folder / "proc", "pod_resources_interval": 0.001, "resync_interval": 1000.0}
        )
        gpu_pods = GpuPods(client=server, node="n")
        self.reporter = UsageReporter(settings, boot_id="b", pods=server, admission=admission, gpu_pods=gpu_pods)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self.reporter.begin(lambda: None, tasks)

    async def unheld(self, *, read: bool = True) -> list[tuple[str, int, str]]:
        """Return what is published after another reading: the pod, the card and the memory of each use."""
        use = await self.use(await self.probe.read(), read=read)
        return [(unheld.pod, unheld.minor, str(unheld.memory)) for unheld in use.unheld] if use else []

    async def use(self, reading: Reading, *, read: bool = True) -> NodeUse | None:
        """Return what is published after a reading."""
        if read:
            self.reporter.observe(reading)
        # The first time may be before the reading; what follows the second one is published before the third.
        for _ in range(3):
            self.kubelet.asked.clear()
            await self.kubelet.asked.wait()
        return self.reporter.with_use(reading).use


@pytest.fixture
async def world(machine: Machine, agent: Start, tmp_path: Path) -> AsyncIterator[World]:
    fixture = machine(a100(0), a100(1))
    created = World(fixture, agent(fixture), tmp_path)
    running = asyncio.create_task(created.run())
    yield created
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_pods_that_use_cards_of_others_are_published_after_two_readings(world: World) -> None:
    world.fixture.gpus[0].processes = [Process(pid=10, used=60 * GI), Process(pid=11, used=2 * GI)]
    world.fixture.gpus[1].processes = [Process(pid=10, used=GI), Process(pid=11, used=70 * GI)]
    world.fixture.write()
    assert await world.unheld() == []
    assert await world.unheld(read=False) == []
    both = [("none", 0, "60Gi"), ("other", 0, "2Gi")]
    assert await world.unheld() == both
    world.fixture.gpus[0].processes = []
    world.fixture.write()
    world.kubelet.is_away = True
    assert await world.unheld() == both
    world.kubelet.is_away = False
    assert await world.unheld() == []
    # A Device has a bound, and kubelet's answer has none.
    devices = (
        ClaimedDevice(namespace="ns", claim="c", driver="d", pool="p", device=f"gpu-{number}") for number in range(300)
    )
    world.kubelet.claim_users = tuple(ClaimedByContainer(pod="p", container="c", device=device) for device in devices)
    await world.unheld()
    use = world.reporter.with_use(await world.probe.read()).use
    assert use is not None
    assert len(use.claimed) == MAX_DEVICES


async def test_what_an_earlier_run_published_stands_until_processes_are_listed(world: World) -> None:
    uses = [
        UnheldUse(type="gpu", minor=0, id="i", namespace="ns", pod="p", pod_uid=uid, memory="60Gi")
        for uid in (UIDS["none"], OF_GONE, "of a pod whose processes have ended, too")
    ]
    foreign = (ForeignUse(type="gpu", minor=1, processes=1),)
    world.reporter.restore(DeviceSpec(), NodeUse(boot_id="b", foreign=foreign, unheld=tuple(uses)))
    reading = await world.probe.read()
    use = await world.use(replace(reading, processes=None))
    assert use
    assert (use.foreign, use.unheld) == (foreign, tuple(uses[:2]))
    use = await world.use(reading)
    assert use
    assert (use.foreign, use.unheld) == ((), ())


async def test_pods_that_have_gone_or_ended_linger_while_they_have_processes(world: World) -> None:
    await world.use(await world.probe.read())
    static = replace(pod("none", 0), uid="mirror", static_uid=OF_GONE)
    for listed, lingering in (
        ([pod("none", 0), replace(pod("other", 1), ended=True), static], {UIDS["other"]}),
        ([pod("none", 0), pod("other", 1), static], set()),
        ([pod("none", 0), pod("other", 1)], {OF_GONE}),
    ):
        world.reporter.admission.replace_pods(listed, 2)
        assert world.reporter.lingering() == lingering


async def test_what_was_published_before_a_boot_does_not_stand(world: World) -> None:
    foreign = (ForeignUse(type="gpu", minor=1, processes=1),)
    world.reporter.restore(DeviceSpec(), NodeUse(boot_id="a", foreign=foreign))
    use = await world.use(replace(await world.probe.read(), processes=None))
    assert use
    assert use.foreign == ()


async def test_gpupods_are_listed_again_after_a_write_without_an_answer(world: World) -> None:
    world.server.is_cut = True
    await world.use(await world.probe.read())
    await world.server.written.wait()
    world.server.is_cut = False
    await world.use(await world.probe.read())
    lists = world.server.lists
    assert lists > 1
    await world.use(await world.probe.read())
    assert world.server.lists == lists


async def test_what_does_not_fit_is_logged_once_until_it_fits(world: World) -> None:
    many = tuple(f"c{number}" for number in range(MAX_HELD + 1))
    reading = await world.probe.read()
    await world.use(reading)
    world.reporter.admission.replace_pods([pod("other", 1, *many)], 2)
    with capture_logs() as logs:
        for containers, times in ((many, 1), (many, 1), (many[:1], 1), (many, 2)):
            world.kubelet.containers = containers
            use = await world.use(reading)
            assert use
            assert len(use.held) == min(len(containers), MAX_HELD)
            events = [log["event"] for log in logs if log["log_level"] == "warning"]
            assert sorted(events) == sorted(
                [
                    "a pod has too many containers with devices for a GpuPod",
                    "too many containers have devices: some are listed in GpuPods alone",
                ]
                * times
            )
