"""The agent's own resources for shares, with a kubelet in memory and a stand-in for the MPS daemon."""

import asyncio
import base64
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from structlog.testing import capture_logs

from berth_agent.isolation.manager import IsolationManager
from berth_agent.isolation.provider import Provider
from berth_agent.kubelet.admission.admission import UnavailableError
from berth_agent.kubelet.admission.pods import ContainerSpec, Pod
from berth_agent.readings import Reading
from berth_agent.vendors.nvidia.isolation.hami_core import HamiCoreProvider
from berth_agent.vendors.nvidia.isolation.mps import MpsProvider
from berth_api import names
from tests.mps.daemon import StandIn
from tests.objects.devices import spec
from tests.stand_ins.kubelet import Kubelet

LABELLED = {names.ISOLATION_KEY: "mps"}
MPS, HAMI_CORE = names.MPS_RESOURCE, names.HAMI_CORE_RESOURCE


def pod(name: str, memory: str = "0=4096M", threads: str = "25", card: str = "GPU-0", **fields: Any) -> Pod:
    """Return a pod with a share of a card by MPS."""
    container = ContainerSpec(name="main", by_mps=True, mps_memory=memory, mps_threads=threads, visible=(card,))
    return Pod(uid=name, namespace="ns", name=name, containers=(container,), **fields)


class Node:
    """One node: its pods, its Node's labels, and the manager."""

    def __init__(self, folder: Path, kubelet: Kubelet) -> None:
        self.folder, self.kubelet = folder, kubelet
        self.pods: list[Pod] = []
        self.unseen: list[Pod] = []
        """Pods that the watch does not have yet."""
        self.server_answers = True
        self.looks = 0
        """How often the manager read the pods: once in each check."""
        self.labels = LABELLED
        self.manager: IsolationManager
        self._running: asyncio.Task[None] | None = None

    def watched(self) -> list[Pod]:
        self.looks += 1
        return self.pods

    async def listed(self) -> tuple[list[Pod], int]:
        if not self.server_answers:
            raise UnavailableError("the API server does not answer")
        return [*self.pods, *self.unseen], 1

    def start(self, *providers: Provider) -> None:
        self.manager = IsolationManager(
            providers, kubelet=str(self.kubelet.socket), pods=self.watched, check_interval=0.1
        )
        self.label(self.labels)
        self._running = asyncio.create_task(self.manager.run())

    def start_mps(self, daemon: StandIn) -> None:
        self.start(MpsProvider(folder=daemon.folder, program=str(daemon.program), list_pods=self.listed))

    def label(self, labels: dict[str, str], **fields: Any) -> None:
        self.manager.update(Reading(spec=spec(2, **fields), findings=()), labels)

    async def stop(self) -> None:
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def condition(self) -> tuple[str, str]:
        findings = self.manager.view(Reading(spec=spec(2), findings=())).findings
        return (findings[0].reason, findings[0].message) if findings else ("", "")

    async def reason(self, reason: str) -> str:
        """Wait for the reason of the condition; return the message."""
        await until(lambda: self.condition()[0] == reason)
        return self.condition()[1]

    async def offers(self, resource: str, *, healthy: bool = True) -> None:
        health = {"Healthy"} if healthy else {"Unhealthy"}
        await self.kubelet.sees(lambda units: set(units.get(resource, {}).values()) == health)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - findings and programs send no event
            await asyncio.sleep(0.05)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="berth-") as path:
        (Path(path) / "plugins").mkdir()
        yield Path(path)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Node]:
    kubelet = Kubelet(folder / "plugins")
    await kubelet.start()
    running = Node(folder, kubelet)
    yield running
    await running.stop()
    await kubelet.stop()


@pytest.fixture
def daemon(folder: Path) -> Iterator[StandIn]:
    stand_in = StandIn(folder)
    stand_in.start()
    yield stand_in
    stand_in.kill()


def default(daemon: StandIn, card: int = 0) -> tuple[str, str]:
    return daemon.ask(f"get_default_device_pinned_mem_limit {card}"), daemon.ask("get_default_active_thread_percentage")


async def test_the_resource_is_offered_while_the_daemon_answers(node: Node, daemon: StandIn) -> None:
    node.start_mps(daemon)
    await node.offers(MPS)
    [request] = node.kubelet.requests
    assert (request.endpoint, request.options.pre_start_required) == ("berth/berth-mps.sock", True)
    assert len(node.kubelet.capacity()[MPS]) == 200
    daemon.kill()
    await node.offers(MPS, healthy=False)
    assert "Cannot find MPS control daemon process" in await node.reason("NotRunning")
    daemon.start()
    await node.offers(MPS)
    await node.reason("Serving")


async def test_nothing_is_offered_without_the_label_or_a_daemon(node: Node, daemon: StandIn) -> None:
    node.labels = {}
    node.start_mps(daemon)
    node.pods = [pod("left")]
    # A pod is there, so that the label was only just removed.
    await node.offers(MPS)
    node.pods = []
    await node.kubelet.sees(lambda units: not units.get(MPS))
    daemon.kill()
    node.label(LABELLED)
    await node.reason("NotRunning")
    assert len(node.kubelet.requests) == 1


async def test_a_container_gets_the_folder_of_the_daemon(node: Node, daemon: StandIn) -> None:
    node.start_mps(daemon)
    await node.offers(MPS)
    answer = await node.kubelet.allocate("mps-7", endpoint="berth/berth-mps.sock")
    assert dict(answer.envs) == {"CUDA_MPS_PIPE_DIRECTORY": "/run/berth/mps"}
    [mount] = answer.mounts
    assert (mount.container_path, mount.host_path, mount.read_only) == ("/run/berth/mps", str(daemon.folder), True)


async def test_the_largest_share_of_each_card_is_the_default(node: Node, daemon: StandIn) -> None:
    node.pods = [pod("small"), pod("large", "0=8192M", "50"), pod("other", "0=1024M", "10", card="GPU-1")]
    node.start_mps(daemon)
    await node.offers(MPS)
    assert (default(daemon), default(daemon, 1)) == (("8192M", "50.0"), ("1024M", "50.0"))
    node.pods = [node.pods[0], pod("large", "0=8192M", "50", ended=True)]
    await until(lambda: default(daemon) == ("4096M", "25.0"))


async def test_limits_follow_their_cards_to_other_places_on_the_bus(node: Node, daemon: StandIn) -> None:
    node.pods = [pod("large", "0=8192M"), pod("small", "0=1024M", card="GPU-1")]
    node.start_mps(daemon)
    await until(lambda: (default(daemon)[0], default(daemon, 1)[0]) == ("8192M", "1024M"))
    first, second = (card for card in spec(2).devices if card.type == names.GPU)
    moved = [
        first.model_copy(update={"topology": second.topology}),
        second.model_copy(update={"topology": first.topology}),
    ]
    node.manager.update(Reading(spec=spec(2).model_copy(update={"devices": moved}), findings=()), LABELLED)
    await until(lambda: (default(daemon)[0], default(daemon, 1)[0]) == ("1024M", "8192M"))


async def test_the_start_waits_for_limits_that_suffice(node: Node, daemon: StandIn) -> None:
    node.pods = [pod("first")]
    node.start_mps(daemon)
    await node.offers(MPS)
    node.unseen = [pod("second", "0=16384M", "90")]
    await node.kubelet.allocate("mps-1", endpoint="berth/berth-mps.sock")
    await node.kubelet.before_start("mps-1", endpoint="berth/berth-mps.sock")
    assert default(daemon) == ("16384M", "90.0")
    # The check of what the watch has does not lower it again.
    looks = node.looks
    await until(lambda: node.looks > looks + 2)
    assert default(daemon) == ("16384M", "90.0")
    # Nor does the list keep it after the pod has gone.
    node.pods, node.unseen, looks = [*node.pods, *node.unseen], [], node.looks
    await until(lambda: node.looks > looks + 2)
    node.pods = node.pods[:1]
    await until(lambda: default(daemon) == ("4096M", "25.0"))


async def test_a_server_that_runs_gets_the_limits_too(node: Node, daemon: StandIn) -> None:
    daemon.ask("client  ")
    server = daemon.ask("get_server_list")
    node.pods = [pod("first")]
    node.start_mps(daemon)
    await node.offers(MPS)
    assert daemon.ask(f"get_device_pinned_mem_limit {server} 0") == "4096M"
    assert daemon.ask(f"get_active_thread_percentage {server}") == "25.0"


@pytest.mark.parametrize("trouble", ["daemon", "server"])
async def test_the_start_is_refused_until_all_is_known(node: Node, daemon: StandIn, trouble: str) -> None:
    node.pods = [pod("first")]
    node.start_mps(daemon)
    await node.offers(MPS)
    if trouble == "daemon":
        daemon.kill()
    else:
        node.server_answers = False
    with pytest.raises(aio.AioRpcError) as error:
        await node.kubelet.before_start("mps-0", endpoint="berth/berth-mps.sock")
    assert "must not start without the MPS daemon" in str(error.value.details())
    if trouble == "daemon":
        daemon.start()
    else:
        node.server_answers = True
    await node.kubelet.before_start("mps-0", endpoint="berth/berth-mps.sock")
    assert default(daemon) == ("4096M", "25.0")


async def test_limits_that_others_change_are_set_again(node: Node, daemon: StandIn) -> None:
    node.pods = [pod("first")]
    node.start_mps(daemon)
    await node.offers(MPS)
    daemon.ask("set_default_device_pinned_mem_limit 0 70G")
    await node.kubelet.before_start("mps-0", endpoint="berth/berth-mps.sock")
    assert default(daemon) == ("4096M", "25.0")


async def test_a_restart_names_the_pods_that_had_clients(node: Node, daemon: StandIn) -> None:
    node.pods = [pod("old", started_at={"main": "2020-01-01T00:00:00Z"}), pod("new")]
    node.start_mps(daemon)
    assert "restart ns/old" in await node.reason("Restarted")
    node.pods = [replace(node.pods[0], started_at={"main": "2999-01-01T00:00:00Z"})]
    await node.reason("Serving")
    daemon.kill()
    assert "running with errors: ns/old" in await node.reason("NotRunning")


async def test_a_server_that_ends_takes_its_clients_with_it(node: Node, daemon: StandIn) -> None:
    node.pods = [pod("first", started_at={"main": "2999-01-01T00:00:00Z"})]
    daemon.ask("client  ")
    node.start_mps(daemon)
    await node.reason("Serving")
    # It began after the daemon, and before the end of the server.
    node.pods = [pod("first", started_at={"main": "2020-01-01T00:00:00Z"})]
    daemon.ask(f"shutdown_server {daemon.ask('get_server_list')}")
    assert "restart ns/first" in await node.reason("Restarted")


async def test_a_node_with_cards_in_mig_mode_shares_none_by_mps(node: Node, daemon: StandIn) -> None:
    node.start_mps(daemon)
    node.label(LABELLED, mig={1: ("1g.10gb",)})
    assert "cards 1 are in MIG mode" in await node.reason("NotRunning")


def install(folder: Path, version: str) -> Path:
    library = folder / "hami" / version / "libvgpu.so"
    library.parent.mkdir(parents=True)
    library.write_text(version)
    point(folder, version)
    return library


def point(folder: Path, version: str) -> None:
    (folder / "hami/next").symlink_to(version)
    (folder / "hami/next").replace(folder / "hami/current")


async def test_the_library_is_given_while_it_is_there(node: Node, folder: Path) -> None:
    node.start(HamiCoreProvider(folder / "hami", kubelet=folder))
    await node.reason("NotInstalled")
    assert node.kubelet.requests == []
    first = install(folder, "2.5")
    await node.offers(HAMI_CORE)
    assert await node.reason("Installed") == "version 2.5"
    answer = await node.kubelet.allocate("hami-core-0", endpoint="berth/berth-hami-core.sock")
    assert dict(answer.envs) == {"LD_PRELOAD": "/usr/local/vgpu/libvgpu.so"}
    assert [(mount.host_path, mount.read_only) for mount in answer.mounts] == [
        (str(first), True),
        (str(folder / "hami/lock"), False),
    ]
    assert (folder / "hami/lock").stat().st_mode & 0o7777 == 0o1777
    second = install(folder, "2.6")
    answer = await node.kubelet.allocate("hami-core-1", endpoint="berth/berth-hami-core.sock")
    assert answer.mounts[0].host_path == str(second)
    assert first.exists()


async def test_an_old_version_goes_when_no_pod_has_it(node: Node, folder: Path) -> None:
    first = install(folder, "2.5")
    answer = f'{{"AllocResp": "{base64.b64encode(str(first).encode()).decode()}"}}'
    checkpoint = folder / "kubelet_internal_checkpoint"
    checkpoint.write_text(f'{{"Data": {{"PodDeviceEntries": [{answer}]}}}}')
    second = install(folder, "2.6")
    node.start(HamiCoreProvider(folder / "hami", kubelet=folder, grace=0))
    looks = node.looks
    await until(lambda: node.looks > looks + 3)
    assert first.exists()
    checkpoint.write_text("damaged")
    with capture_logs() as logs:
        await until(lambda: bool(logs))
        checkpoint.write_text('{"Data": {"PodDeviceEntries": []}}')
        await until(lambda: not first.parent.exists())
    assert [log["event"] for log in logs] == [
        "old versions of HAMi-core stay, will try again",
        "old version of HAMi-core removed",
    ]
    assert second.exists()


async def test_no_container_starts_without_the_library(node: Node, folder: Path) -> None:
    library = install(folder, "2.5")
    node.start(HamiCoreProvider(folder / "hami", kubelet=folder))
    await node.offers(HAMI_CORE)
    await node.kubelet.before_start("hami-core-0", endpoint="berth/berth-hami-core.sock")
    library.unlink()
    await node.offers(HAMI_CORE, healthy=False)
    for call in (node.kubelet.allocate, node.kubelet.before_start):
        with pytest.raises(aio.AioRpcError) as error:
            await call("hami-core-0", endpoint="berth/berth-hami-core.sock")
        assert "must not start without it" in str(error.value.details())


@pytest.mark.parametrize("target", ["..", "/etc", "2.5/../../x", "absent"])
async def test_a_link_to_elsewhere_is_no_version(node: Node, folder: Path, target: str) -> None:
    install(folder, "2.5")
    point(folder, target)
    node.start(HamiCoreProvider(folder / "hami", kubelet=folder))
    assert "leads to no libvgpu.so" in await node.reason("NotInstalled")
