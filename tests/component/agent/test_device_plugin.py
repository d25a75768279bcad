"""The device plugin and a kubelet, on real sockets."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc import aio
from structlog.testing import capture_logs

from berth_agent.conditions import Finding
from berth_agent.configuration.options import Options
from berth_agent.configuration.settings import Settings
from berth_agent.kubelet.allocations import CHECKPOINT
from berth_agent.kubelet.device_plugin.chooser import AllocationRefusedError
from berth_agent.kubelet.device_plugin.gpus import GpuHandler
from berth_agent.kubelet.device_plugin.handler import Service
from berth_agent.kubelet.device_plugin.manager import CHECK_INTERVAL, InitError
from berth_agent.kubelet.device_plugin.plugin_server import PluginServer
from berth_agent.kubelet.device_plugin.registration import CrashLoopError, ServingError
from berth_agent.kubelet.device_plugin.servers import SETTLING
from berth_agent.kubelet.device_plugin.takeover import MAX_REGISTRATIONS
from berth_agent.readings import NodeUse, Reading
from berth_agent.vendors.nvidia.hand_over import resources
from berth_agent.vendors.nvidia.hand_over.access import NvidiaAccess as AllocationContext
from berth_api import names
from berth_api.device import DeviceSpec
from tests.objects.devices import GPU, spec
from tests.stand_ins.kubelet import DEADLINE, Kubelet
from tests.stand_ins.nvidia_plugin import PluginManager

LOADED = Finding(type=names.DRIVER_LOADED, ok=True, reason="DriverLoaded")
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


class Choices:
    """A Chooser whose answers the test sets."""

    def __init__(self) -> None:
        self.preferred: list[str] = []
        self.refusal = ""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.kept: frozenset[str] = frozenset()
        self.admitted: list[tuple[str, list[str]]] = []
        self.looks = 0
        """How often the plugin read the withheld cards: once in each round."""

    async def prefer(
        self,
        resource: str,  # noqa: ARG002
        available: Sequence[str],  # noqa: ARG002
        must_include: Sequence[str],  # noqa: ARG002
        size: int,  # noqa: ARG002
    ) -> list[str]:
        return self.preferred

    async def admit(self, resource: str, ids: Sequence[str]) -> None:
        if self.refusal:
            raise AllocationRefusedError(self.refusal)
        self.admitted.append((resource, list(ids)))
        await self.may_answer.wait()

    def withheld(self) -> frozenset[str]:
        self.looks += 1
        return self.kept


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="berth-") as path:
        (Path(path) / "plugins").mkdir()
        yield Path(path)


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[Kubelet]:
    running = Kubelet(folder / "plugins")
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
def choices() -> Choices:
    return Choices()


def reading(device_spec: DeviceSpec, *findings: Finding) -> Reading:
    return Reading(spec=device_spec, findings=findings or (LOADED,))


@pytest.fixture
async def begin(folder: Path, choices: Choices) -> AsyncIterator[Callable[..., PluginManager]]:
    """Start plugins that stop with the test."""
    running: list[asyncio.Task[None]] = []

    def start(device_spec: DeviceSpec, *, check_interval: float = CHECK_INTERVAL, **settings: Any) -> PluginManager:
        own: dict[str, Any] = {
            "node_name": "a",
            "kubelet_socket": str(folder / "plugins/kubelet.sock"),
            "cdi_folder": folder / "cdi",
            "dev_folder": folder / "dev",
            "proc_root": folder / "proc",
        }
        plugin = PluginManager(Settings(**own | settings), chooser=choices, check_interval=check_interval)
        plugin.update(reading(device_spec))
        running.append(asyncio.create_task(plugin.run()))
        return plugin

    yield start
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - files and findings send no event
            await asyncio.sleep(0.01)


def finding(plugin: PluginManager, device_spec: DeviceSpec) -> tuple[str, str]:
    *_, last = plugin.view(reading(device_spec)).findings
    return last.reason, last.message


def withheld(plugin: PluginManager) -> tuple[int, ...]:
    """Return the cards of a node with two cards that the device plugin is to withhold."""
    use = plugin.with_withheld(replace(reading(spec(2)), use=NodeUse(boot_id="boot"))).use
    assert use is not None
    return use.withheld


async def test_each_resource_is_registered_with_its_units(kubelet: Kubelet, begin: Any) -> None:
    begin(spec(2, mig={1: ("1g.10gb", "1g.10gb")}))
    capacity = await kubelet.sees(lambda units: len(units) == 2)
    assert capacity == {
        GPU: {"GPU-0": HEALTHY},
        "nvidia.com/mig-1g.10gb": {"MIG-1-0": HEALTHY, "MIG-1-1": HEALTHY},
    }
    registered = {each.resource_name: each for each in kubelet.requests}
    assert (registered[GPU].version, registered[GPU].endpoint) == ("v1beta1", "berth/nvidia-gpu.sock")
    assert registered[GPU].options.get_preferred_allocation_available
    assert not registered[GPU].options.pre_start_required
    assert registered["nvidia.com/mig-1g.10gb"].endpoint == "berth/nvidia-mig-1g.10gb.sock"


async def test_a_change_of_health_is_sent_in_the_stream(kubelet: Kubelet, begin: Any) -> None:
    plugin = begin(spec(2))
    await kubelet.sees(lambda units: GPU in units)
    plugin.update(reading(spec(2, unhealthy=(1,))))
    await kubelet.sees(lambda units: units[GPU] == {"GPU-0": HEALTHY, "GPU-1": UNHEALTHY})
    plugin.update(reading(spec(2)))
    await kubelet.sees(lambda units: units[GPU] == {"GPU-0": HEALTHY, "GPU-1": HEALTHY})
    assert len(kubelet.requests) == 1


async def test_a_resource_that_kubelet_dropped_is_registered_again(kubelet: Kubelet, begin: Any) -> None:
    begin(spec(2, mig={1: ("1g.10gb",)}))
    await kubelet.sees(lambda units: len(units) == 2)
    await kubelet.end_stream(GPU)
    assert GPU not in kubelet.capacity()
    await kubelet.sees(lambda units: GPU in units)
    assert [each.resource_name for each in kubelet.requests].count(GPU) == 2
    # What kubelet still watches is not changed.
    assert len(kubelet.requests) == 3


async def test_an_unchanged_reading_sends_kubelet_nothing(kubelet: Kubelet, begin: Any, choices: Choices) -> None:
    plugin = begin(spec(2))
    await kubelet.sees(lambda units: GPU in units)
    looks = choices.looks
    plugin.update(reading(spec(2)))
    plugin.refresh()
    await until(lambda: choices.looks > looks)
    plugin.update(reading(spec(3)))
    await kubelet.sees(lambda units: len(units[GPU]) == 3)
    assert [len(each) for each in kubelet.lists[GPU]] == [2, 3]


async def test_withheld_cards_are_unhealthy_until_they_are_not(kubelet: Kubelet, begin: Any, choices: Choices) -> None:
    plugin = begin(spec(2))
    await kubelet.sees(lambda units: GPU in units)
    choices.kept = frozenset({"GPU-0"})
    plugin.refresh()
    await kubelet.sees(lambda units: units[GPU] == {"GPU-0": UNHEALTHY, "GPU-1": HEALTHY})
    choices.kept = frozenset()
    await kubelet.sees(lambda units: units[GPU] == {"GPU-0": HEALTHY, "GPU-1": HEALTHY})


async def test_another_mig_layout_moves_units_between_resources(kubelet: Kubelet, begin: Any, folder: Path) -> None:
    plugin = begin(spec(2))
    await kubelet.sees(lambda units: GPU in units)
    plugin.update(reading(spec(2, mig={0: ("3g.40gb",), 1: ("3g.40gb",)})))
    capacity = await kubelet.sees(lambda units: "nvidia.com/mig-3g.40gb" in units and not units[GPU])
    assert capacity == {GPU: {}, "nvidia.com/mig-3g.40gb": {"MIG-0-0": HEALTHY, "MIG-1-0": HEALTHY}}
    await until(lambda: not (folder / "plugins/berth/nvidia-gpu.sock").exists())
    await until(lambda: kubelet.ended == [GPU])
    plugin.update(reading(spec(2)))
    await kubelet.sees(lambda units: len(units[GPU]) == 2 and not units["nvidia.com/mig-3g.40gb"])


async def test_all_resources_are_registered_with_a_new_kubelet(kubelet: Kubelet, begin: Any) -> None:
    plugin = begin(spec(2))
    # More often than a socket may be lost.
    for round_ in range(7):
        await kubelet.sees(lambda units: GPU in units)
        assert len(kubelet.requests) == round_ + 1
        await kubelet.restart()
        plugin.refresh()
    await kubelet.sees(lambda units: GPU in units)
    assert (await kubelet.allocate("GPU-1")).envs


async def test_a_new_kubelet_is_registered_with_before_the_next_check(kubelet: Kubelet, begin: Any) -> None:
    # It must be faster than kubelet, which refuses plugins that it finds before they register.
    begin(spec(2), check_interval=10 * DEADLINE)
    await kubelet.sees(lambda units: GPU in units)
    await kubelet.restart()
    await kubelet.sees(lambda units: GPU in units)


async def test_cards_are_withheld_while_kubelet_would_refuse_pods(kubelet: Kubelet, begin: Any) -> None:
    events: list[tuple[int, ...]] = []
    plugin = begin(spec(2))
    plugin.on_kubelet = lambda: events.append(withheld(plugin))
    assert withheld(plugin) == (0, 1)
    await kubelet.sees(lambda units: GPU in units)
    # It listens, but started too recently to know which of its pods are gone.
    assert withheld(plugin) == (0, 1)
    await until(lambda: withheld(plugin) == ())
    assert kubelet.age >= SETTLING

    await kubelet.end_stream(GPU)
    await until(lambda: withheld(plugin) == (0, 1))
    await kubelet.sees(lambda units: GPU in units)
    await until(lambda: withheld(plugin) == ())
    assert events == [(), (0, 1), ()]

    plugin.leave()
    assert withheld(plugin) == (0, 1)


async def test_units_that_the_agent_did_not_give_are_the_sign_of_another_plugin(
    folder: Path, kubelet: Kubelet, begin: Any
) -> None:
    write_checkpoint(folder, before="GPU-0")
    plugin = begin(spec(2), check_interval=0.05)
    await until(lambda: withheld(plugin) == ())
    await kubelet.allocate("GPU-1")
    write_checkpoint(folder, before="GPU-0", own="GPU-1")
    for again in range(1, MAX_REGISTRATIONS + 1):
        given = {f"other-{number}": "GPU-0" for number in range(again)}
        write_checkpoint(folder, own="GPU-1", **given)
        await until_registered(kubelet, 1 + again)
        # The card stays withheld as long as a container has it from the other plugin.
        await until(lambda: withheld(plugin) == (0,))
        assert finding(plugin, spec(2)) == ("Registered", "")
    write_checkpoint(folder, own="GPU-1")
    await until(lambda: withheld(plugin) == ())
    write_checkpoint(folder, own="GPU-1", last="GPU-0")
    await until(lambda: withheld(plugin) == (0, 1))
    reason, message = finding(plugin, spec(2))
    assert reason == "OtherPlugin"
    assert message.startswith(
        "kubelet calls another device plugin for nvidia.com/gpu, which registered after the agent"
    )
    # A damaged checkpoint shows nothing, and a new kubelet knows neither plugin.
    (folder / "plugins" / CHECKPOINT).write_text("{")
    await kubelet.restart()
    await until(lambda: withheld(plugin) == (0,))
    assert len(kubelet.requests) == 2 + MAX_REGISTRATIONS


async def test_another_plugin_is_noticed_on_a_node_whose_kubelet_has_had_no_plugin_yet(
    folder: Path, kubelet: Kubelet, begin: Any
) -> None:
    plugin = begin(spec(2), check_interval=0.05)
    await until(lambda: withheld(plugin) == ())
    write_checkpoint(folder, other="GPU-0")
    await until_registered(kubelet, 2)
    await until(lambda: withheld(plugin) == (0,))


async def until_registered(kubelet: Kubelet, times: int) -> None:
    await until(lambda: len(kubelet.requests) == times)


def write_checkpoint(folder: Path, **given: str) -> None:
    """Write kubelet's checkpoint: the UID of each pod, and the unit that its container has."""
    entries = [
        {
            "PodUID": pod,
            "ContainerName": "main",
            "ResourceName": GPU,
            "DeviceIDs": {"-1": [unit]},
            "AllocResp": "",
        }
        for pod, unit in given.items()
    ]
    draft = folder / "plugins/.draft"
    draft.write_text(json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}}))
    draft.rename(folder / "plugins" / CHECKPOINT)


async def test_a_kubelet_that_comes_later_is_waited_for(folder: Path, begin: Any) -> None:
    plugin = begin(spec(1))
    await until(lambda: finding(plugin, spec(1))[0] == "NotRegistered")
    assert finding(plugin, spec(1))[1] == f"no kubelet at {folder / 'plugins/kubelet.sock'} yet"
    late = Kubelet(folder / "plugins")
    await late.start()
    await late.sees(lambda units: GPU in units)
    await until(lambda: finding(plugin, spec(1)) == ("Registered", ""))
    await late.stop()


async def test_a_refused_registration_is_reported_and_retried(kubelet: Kubelet, begin: Any) -> None:
    kubelet.refuses = "resource is taken"
    plugin = begin(spec(1))
    await until(lambda: "resource is taken" in finding(plugin, spec(1))[1])
    assert finding(plugin, spec(1))[1].startswith(f"kubelet did not register {GPU} at ")
    kubelet.refuses = ""
    await kubelet.sees(lambda units: GPU in units)


async def test_a_removed_socket_is_created_again_but_not_forever(
    kubelet: Kubelet, folder: Path, choices: Choices
) -> None:
    settings = Settings(node_name="a", kubelet_socket=str(kubelet.socket), cdi_folder=folder / "cdi")
    plugin = PluginManager(settings, chooser=choices)
    plugin.update(reading(spec(1)))
    running = asyncio.create_task(plugin.run())
    socket = folder / "plugins/berth/nvidia-gpu.sock"
    for crash in range(6):
        await until(lambda crash=crash: len(kubelet.requests) == crash + 1)  # type: ignore[misc]
        socket.unlink()
        plugin.refresh()
    with pytest.raises(CrashLoopError, match=f"{socket} broke 6 times within 60 minutes"):
        await asyncio.wait_for(running, DEADLINE)


async def test_the_sockets_go_at_the_end(kubelet: Kubelet, folder: Path, choices: Choices) -> None:
    settings = Settings(node_name="a", kubelet_socket=str(kubelet.socket), cdi_folder=folder / "cdi")
    plugin = PluginManager(settings, chooser=choices)
    plugin.update(reading(spec(1)))
    running = asyncio.create_task(plugin.run())
    await kubelet.sees(lambda units: GPU in units)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [each.name for each in (folder / "plugins").iterdir()] == ["kubelet.sock"]


@asynccontextmanager
async def served(kubelet: Kubelet, folder: Path, choices: Choices) -> AsyncIterator[PluginServer]:
    """Run the server of one card alone, so that a test can stop it."""
    options = Options()
    [offer] = resources.offers(spec(1), options).offers
    machine = AllocationContext(spec=spec(1), options=options)
    service = Service(offer=offer, handler=GpuHandler(context=machine, chooser=choices))
    server = PluginServer(
        service, folder=folder / "plugins", with_numa=False, changed=lambda: None, refused=lambda *_: None
    )
    await server.start()
    await server.register(kubelet.socket)
    await kubelet.sees(lambda units: GPU in units)
    yield server


async def test_the_end_waits_for_calls_under_way(kubelet: Kubelet, folder: Path, choices: Choices) -> None:
    async with served(kubelet, folder, choices) as server:
        choices.may_answer.clear()
        answer = asyncio.create_task(kubelet.allocate("GPU-0"))
        await until(lambda: bool(choices.admitted))
        stopping = asyncio.create_task(server.stop(grace=DEADLINE))
        await until(lambda: kubelet.ended == [GPU])
        assert not server.path.exists()
        choices.may_answer.set()
        assert dict((await answer).envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
        await stopping


async def test_the_end_does_not_wait_forever(kubelet: Kubelet, folder: Path, choices: Choices) -> None:
    async with served(kubelet, folder, choices) as server:
        choices.may_answer.clear()
        answer = asyncio.create_task(kubelet.allocate("GPU-0"))
        await until(lambda: bool(choices.admitted))
        await server.stop()
        with pytest.raises(aio.AioRpcError) as error:
            await answer
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        await until(lambda: kubelet.ended == [GPU])


async def test_the_end_leaves_the_socket_of_the_agent_that_follows(
    kubelet: Kubelet, folder: Path, choices: Choices
) -> None:
    async with served(kubelet, folder, choices) as before, served(kubelet, folder, choices) as after:
        assert before.broken
        await before.stop()
        assert not after.broken
        assert dict((await kubelet.allocate("GPU-0")).envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-0"}
        await after.stop()
    assert [each.name for each in (folder / "plugins").iterdir()] == ["kubelet.sock"]


async def test_a_socket_that_cannot_be_served_is_an_error(kubelet: Kubelet, folder: Path, choices: Choices) -> None:
    (folder / "plugins/berth/nvidia-gpu.sock").mkdir(parents=True)
    with pytest.raises(ServingError, match=r"cannot listen at .*/berth/nvidia-gpu\.sock"):
        async with served(kubelet, folder, choices):
            pass
    assert kubelet.requests == []


async def test_without_a_kubelets_socket_nothing_is_registered(kubelet: Kubelet, begin: Any) -> None:
    plugin = begin(spec(0), kubelet_socket="")
    await until(lambda: finding(plugin, spec(0))[0] == "NoDevices")
    assert kubelet.requests == []


async def test_the_condition_appears_once_it_is_known(kubelet: Kubelet, begin: Any) -> None:
    plugin = begin(spec(1))
    assert plugin.view(reading(spec(1))).findings == (LOADED,)
    await kubelet.sees(lambda units: GPU in units)
    await until(lambda: finding(plugin, spec(1)) == ("Registered", ""))
    plugin.update(reading(spec(0)))
    await until(lambda: finding(plugin, spec(0))[0] == "NoDevices")


@pytest.mark.parametrize(("is_reported", "expected"), [(False, [[], []]), (True, [[0], [1]])])
async def test_numa_nodes_are_reported_only_on_request(
    is_reported: bool,
    expected: list[list[int]],
    kubelet: Kubelet,
    begin: Any,
) -> None:
    begin(spec(8), numa_to_kubelet=is_reported)
    await kubelet.sees(lambda units: GPU in units)
    assert [kubelet.numa["GPU-0"], kubelet.numa["GPU-7"]] == expected


# --- kubelet's calls --------------------------------------------------------------------------------------------


async def test_the_choosers_units_are_preferred(kubelet: Kubelet, begin: Any, choices: Choices) -> None:
    begin(spec(4))
    await kubelet.sees(lambda units: GPU in units)
    choices.preferred = ["GPU-3", "GPU-1"]
    assert await kubelet.prefer(["GPU-0", "GPU-1", "GPU-2", "GPU-3"], 2) == ["GPU-3", "GPU-1"]


async def test_without_a_choice_the_closest_units_are_preferred(kubelet: Kubelet, begin: Any) -> None:
    begin(spec(4, profile="a10"))
    await kubelet.sees(lambda units: GPU in units)
    assert await kubelet.prefer(["GPU-1", "GPU-2", "GPU-3"], 2) == ["GPU-2", "GPU-3"]
    assert await kubelet.prefer(["GPU-0", "GPU-1", "GPU-2"], 2, ["GPU-1"]) == ["GPU-1", "GPU-0"]
    with pytest.raises(aio.AioRpcError) as error:
        await kubelet.prefer(["GPU-1"], 2)
    expected = "error getting list of preferred allocation devices: not enough available devices to satisfy allocation"
    assert error.value.details() == expected


async def test_an_allocation_is_admitted_and_answered(kubelet: Kubelet, begin: Any, choices: Choices) -> None:
    begin(spec(4), device_list_strategy=("envvar", "cdi-cri", "cdi-annotations"))
    await kubelet.sees(lambda units: GPU in units)
    response = await kubelet.allocate("GPU-3", "GPU-1")
    assert dict(response.envs) == {"NVIDIA_VISIBLE_DEVICES": "GPU-3,GPU-1"}
    assert len(response.cdi_devices) == 2
    assert choices.admitted == [(GPU, ["GPU-3", "GPU-1"])]
    # The annotation's key is new each time, because two containers of a pod may have one each.
    assert response.annotations.keys() != (await kubelet.allocate("GPU-3", "GPU-1")).annotations.keys()


@pytest.mark.parametrize(
    ("ids", "refusal", "expected"),
    [
        (["GPU-9"], "", f'invalid allocation request for "{GPU}": invalid request: unknown device: GPU-9'),
        (["GPU-1"], "no pod of this node was given GPU-1", "no pod of this node was given GPU-1"),
    ],
)
async def test_kubelet_gets_the_text_of_a_refusal_and_it_is_reported(  # noqa: PLR0917
    ids: list[str], refusal: str, expected: str, kubelet: Kubelet, begin: Any, choices: Choices
) -> None:
    plugin, reported = begin(spec(2)), list[tuple[str, str]]()
    plugin.on_refusal = lambda resource, why: reported.append((resource, why))
    await kubelet.sees(lambda units: GPU in units)
    choices.refusal = refusal
    with pytest.raises(aio.AioRpcError) as error:
        await kubelet.allocate(*ids)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, expected)
    assert choices.admitted == []
    assert reported == [(GPU, expected)]


# --- configuration ----------------------------------------------------------------------------------------------


def sliced(path: Path, slices: int, strategy: str = "envvar") -> Path:
    flags = {"plugin": {"deviceListStrategy": strategy}}
    sharing = {"timeSlicing": {"resources": [{"name": "gpu", "replicas": slices}]}}
    path.write_text(yaml.safe_dump({"version": "v1", "flags": flags, "sharing": sharing}))
    return path


async def test_a_changed_file_is_in_force_after_reload(kubelet: Kubelet, begin: Any, folder: Path) -> None:
    file = sliced(folder / "config.yaml", 2)
    plugin = begin(spec(1), config_file=file)
    await kubelet.sees(lambda units: GPU in units and len(units[GPU]) == 2)
    assert plugin.view(reading(spec(1))).spec.devices[0].replicas == 2
    sliced(file, 3, "volume-mounts")
    plugin.reload()
    await kubelet.sees(lambda units: GPU in units and len(units[GPU]) == 3)
    assert (await kubelet.allocate("GPU-0::2")).mounts
    assert plugin.view(reading(spec(1))).spec.devices[0].replicas == 3


async def test_a_file_that_turns_wrong_changes_nothing(kubelet: Kubelet, begin: Any, folder: Path) -> None:
    file = sliced(folder / "config.yaml", 2)
    plugin = begin(spec(1), config_file=file)
    await kubelet.sees(lambda units: GPU in units and len(units[GPU]) == 2)
    file.write_text("version: v9")
    plugin.reload()
    plugin.update(reading(spec(2)))
    await kubelet.sees(lambda units: len(units[GPU]) == 4)
    assert len(kubelet.requests) == 1


async def test_the_cdi_specification_follows_the_devices_and_outlives_the_plugin(
    kubelet: Kubelet, folder: Path, choices: Choices
) -> None:
    settings = Settings(
        node_name="a",
        kubelet_socket=str(kubelet.socket),
        cdi_folder=folder / "cdi",
        device_list_strategy=("cdi-cri",),
    )
    plugin = PluginManager(settings, chooser=choices)
    plugin.update(reading(spec(1)))
    running = asyncio.create_task(plugin.run())
    file = folder / "cdi/k8s.device-plugin.nvidia.com-gpu.json"
    await until(file.exists)
    assert "/dev/nvidia1" not in file.read_text()
    plugin.update(reading(spec(2)))
    await until(lambda: "/dev/nvidia1" in file.read_text())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert file.exists()


MISCONFIGURED = spec(2, mig={0: ("1g.10gb",)})
UNLIKE = "all devices on the node must be configured with the same migEnabled value"


async def test_cards_that_contradict_the_strategy_are_no_longer_offered(kubelet: Kubelet, begin: Any) -> None:
    plugin = begin(spec(2), mig_strategy="single")
    await kubelet.sees(lambda units: GPU in units)
    plugin.update(reading(MISCONFIGURED))
    await kubelet.sees(lambda units: units[GPU] == {})
    await until(lambda: finding(plugin, MISCONFIGURED) == ("Misconfigured", UNLIKE))
    plugin.update(reading(spec(2)))
    await kubelet.sees(lambda units: len(units[GPU]) == 2)


async def test_a_missing_imex_channel_is_reported_until_it_appears(kubelet: Kubelet, begin: Any, folder: Path) -> None:
    plugin = begin(spec(1), imex_channel_ids=(0,), imex_required=True, check_interval=0.05)
    await until(lambda: finding(plugin, spec(1))[0] == "Misconfigured")
    assert "channel0: not there" in finding(plugin, spec(1))[1]
    assert kubelet.requests == []
    (folder / "dev/nvidia-caps-imex-channels/channel0").mkdir(parents=True)
    await kubelet.sees(lambda units: units.get(GPU) == {"GPU-0": HEALTHY})
    assert (await kubelet.allocate("GPU-0")).envs["NVIDIA_IMEX_CHANNELS"] == "0"


async def test_a_device_node_that_appears_later_is_given(kubelet: Kubelet, begin: Any, folder: Path) -> None:
    """The driver loads nvidia-uvm when the first program needs it."""
    strategy = ("envvar", "cdi-cri")
    begin(spec(1), device_list_strategy=strategy, pass_device_specs=True, check_interval=0.05)
    file = folder / "cdi/k8s.device-plugin.nvidia.com-gpu.json"
    await until(file.exists)
    assert "/dev/nvidia-uvm" not in file.read_text()
    (folder / "dev").mkdir()
    (folder / "dev/nvidia-uvm").touch()
    await until(lambda: "/dev/nvidia-uvm" in file.read_text())
    await kubelet.sees(lambda units: GPU in units)
    paths = [node.host_path for node in (await kubelet.allocate("GPU-0")).devices]
    assert paths == ["/dev/nvidia-uvm", "/dev/nvidia0"]


async def test_a_folder_that_cannot_be_written_is_reported_until_it_can(
    kubelet: Kubelet, begin: Any, folder: Path
) -> None:
    """Without the CDI specification no container starts, so nothing is offered."""
    (folder / "cdi").touch()
    plugin = begin(spec(1), device_list_strategy=("cdi-cri",), check_interval=0.05)
    await until(lambda: finding(plugin, spec(1))[0] == "NotRegistered")
    assert str(folder / "cdi") in finding(plugin, spec(1))[1]
    assert kubelet.requests == []
    (folder / "cdi").unlink()
    await kubelet.sees(lambda units: units.get(GPU) == {"GPU-0": HEALTHY})


async def test_no_container_starts_without_what_the_loaded_driver_needs(
    kubelet: Kubelet, begin: Any, folder: Path
) -> None:
    """The runtime refuses a device whose file does not exist, and kubelet tries again until it does."""
    (folder / "proc").mkdir(exist_ok=True)
    strategy = ("envvar", "cdi-cri")
    with capture_logs() as logs:
        begin(spec(1), device_list_strategy=strategy, pass_device_specs=True, check_interval=0.05)
        file = folder / "cdi/k8s.device-plugin.nvidia.com-gpu.json"
        await until(file.exists)
        assert "/dev/nvidia-uvm" not in file.read_text()
        (folder / "proc/devices").write_text("Character devices:\n195 nvidiactl\n510 nvidia-uvm\n")
        await until(lambda: "/dev/nvidia-uvm" in file.read_text())
    assert sum("nvidia-uvm is not loaded" in line["event"] for line in logs) == 1
    await kubelet.sees(lambda units: GPU in units)
    paths = [node.host_path for node in (await kubelet.allocate("GPU-0")).devices]
    assert paths == ["/dev/nvidia0"], "what is not there is not passed without CDI, as by NVIDIA's plug-in"


NO_DRIVER = Finding(type=names.DRIVER_LOADED, ok=False, reason="LibraryNotFound", message="libnvidia-ml.so.1")


@pytest.mark.parametrize(
    ("first", "settings", "expected"),
    [
        (reading(spec(0), NO_DRIVER), {}, "the driver is not loaded: LibraryNotFound libnvidia-ml.so.1"),
        (reading(MISCONFIGURED), {"mig_strategy": "single"}, UNLIKE),
        (reading(spec(0), NO_DRIVER), {"fail_on_init_error": False}, None),
        (reading(MISCONFIGURED), {"mig_strategy": "single", "fail_on_init_error": False}, None),
        (reading(spec(0)), {}, None),
    ],
)
async def test_a_node_with_nothing_to_offer_at_the_start(
    first: Reading, settings: dict[str, Any], expected: str | None, choices: Choices
) -> None:
    plugin = PluginManager(Settings(node_name="a", **settings), chooser=choices)
    plugin.update(first)
    if expected is None:
        plugin.check()
        return
    with pytest.raises(InitError) as error:
        plugin.check()
    assert str(error.value) == f"--fail-on-init-error is set: {expected}"


async def test_a_driver_that_goes_later_ends_nothing(choices: Choices) -> None:
    plugin = PluginManager(Settings(node_name="a"), chooser=choices)
    plugin.update(reading(spec(2)))
    plugin.update(reading(spec(0), NO_DRIVER))
    plugin.check()


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(["x" * 2**20], id="an id of a megabyte"),
        pytest.param([f"GPU-x{number}" for number in range(100_000)], id="a hundred thousand ids"),
        pytest.param(["GPU-0"] * 100_000, id="one id a hundred thousand times"),
    ],
)
async def test_a_call_with_oversized_ids_is_refused_and_not_echoed(
    ids: list[str], kubelet: Kubelet, begin: Any
) -> None:
    begin(spec(2))
    await kubelet.sees(lambda units: GPU in units)
    with pytest.raises(aio.AioRpcError) as error:
        await kubelet.allocate(*ids)
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert len(error.value.details() or "") < 400
    assert (await kubelet.allocate("GPU-1")).envs
