"""Cards of AMD on a real node: pods get the cards of their annotations, by device nodes alone.

The cards are a generated sysfs, and their device nodes stand for real ones.
"""

# ruff: noqa: N802, ARG002 - the interface of a device plugin names its methods and arguments

import asyncio
import os
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from berth_agent.kubelet_api import deviceplugin_pb2 as messages
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests import amd_trees
from tests.amd_trees import MI210
from tests.node.stage import NULL, Stage
from tests.nvml.fixture import NvmlFixture, a100

CARDS = "amd.com/gpu"


class Machine(NvmlFixture):
    """A machine with eight MI210 in two hives, and no NVML."""

    @property
    def library(self) -> Path:
        return self.folder / "no-such-library.so"

    def write(self) -> None:
        amd_trees.mi210(self.sysfs)

    def set_errors(self, minor: int, count: int) -> None:
        (self.sysfs / "bus/pci/devices" / MI210[minor].address / "ras/umc_err_count").write_text(
            f"ue: {count}\nce: 0\n"
        )


class AmdStage(Stage):
    """A stage with AMD's cards."""

    machine: Machine

    def __init__(self, node: RealNode, arena: Arena, folder: Path, **more: object) -> None:
        options = {"device_list_strategy": "envvar", "resync_interval": 1.0, **more}
        super().__init__(node, arena, folder, gpus=[a100(minor) for minor in range(len(MI210))], **options)
        self.machine = Machine(folder, gpus=self.machine.gpus)

    def _make_device_nodes(self) -> None:
        (self._folder / "dev/dri").mkdir(parents=True)
        cards = [f"dri/{kind}" for minor in range(len(MI210)) for kind in (f"card{minor + 1}", f"renderD{minor + 128}")]
        for name in ("kfd", *cards):
            os.mknod(self._folder / "dev" / name, stat.S_IFCHR | 0o666, NULL)

    def check_given(self, *pods: str) -> None:
        """Check that pods run with the cards of their annotations: by kubelet, their GpuPods, and under /dev."""
        for name in pods:
            self.wait(lambda name=name: self.is_running(name), what=f"{name} to run")
            entries = self.entries(name)
            ids = sorted(entry["id"] for entry in entries)
            assert sorted(self.held()[name, "main", CARDS]) == ids
            container = self.node.container(self.read(name))
            nodes = {path.name for path in Path(f"/proc/{container.pid}/root/dev/dri").iterdir()}
            of_cards = [{f"card{entry['minor'] + 1}", f"renderD{entry['minor'] + 128}"} for entry in entries]
            assert nodes == set().union(*of_cards)
            assert "kfd" in container.devices
            assert "AMD_VISIBLE_DEVICES" not in container.environment
            self.wait(lambda name=name, ids=ids: not self._of_gpu_pod(name, ids), what=f"the GpuPod of {name}")


def test_pods_get_the_cards_of_their_annotations(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with AmdStage(node, arena, tmp_path) as stage:
        device = stage.device()
        assert device["metadata"]["labels"][names.VENDOR_LABEL] == "amd"
        assert [card["id"] for card in device["spec"]["devices"]] == [f"GPU-{place.unique_id}" for place in MI210]

        # The pair is of one hive, and so are the four, which leaves one hive whole for them.
        stage.submit({CARDS: "1"}, "one")
        stage.submit({CARDS: "2"}, "two")
        stage.check_given("one", "two")
        stage.submit({CARDS: "4"}, "four")
        stage.check_given("four")
        hives = {name: {MI210[minor].hive for minor in stage.cards(name)} for name in ("two", "four")}
        assert all(len(hive) == 1 for hive in hives.values()), hives

        stage.agent.stop()
        stage.start_agent()
        node.restart_daemon("kubelet")
        stage.wait(stage.is_on_offer, what="the cards on offer again")
        stage.check_given("one", "two", "four")

        [last] = set(range(len(MI210))) - {minor for name in ("one", "two", "four") for minor in stage.cards(name)}
        stage.machine.set_errors(last, 1)
        broken = f"GPU-{MI210[last].unique_id}"
        stage.wait(lambda: broken not in stage.healthy()[CARDS], what="the fault for kubelet")
        stage.wait(
            lambda: [card["id"] for card in stage.device()["spec"]["devices"] if not card["health"]] == [broken],
            what="the fault for the scheduler",
        )
        stage.submit({CARDS: "1"}, "late")
        stage.wait(lambda: stage.waits("late"), what="the broken card to be refused")
        stage.machine.set_errors(last, 0)
        stage.check_given("late")


class StandIn(DevicePluginServicer):
    """What kubelet sees of AMD's device plugin: cards by their PCI addresses, and no preference."""

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> messages.DevicePluginOptions:
        return messages.DevicePluginOptions()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[messages.ListAndWatchResponse]:
        devices = [messages.Device(ID=place.address, health="Healthy") for place in MI210]
        yield messages.ListAndWatchResponse(devices=devices)
        await asyncio.Event().wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> messages.PreferredAllocationResponse:
        raise AssertionError("it was not offered")

    async def Allocate(self, request: Any, context: Any) -> messages.AllocateResponse:
        answers = [messages.ContainerAllocateResponse() for _ in request.container_requests]
        return messages.AllocateResponse(container_responses=answers)

    async def PreStartContainer(self, request: Any, context: Any) -> messages.PreStartContainerResponse:
        raise AssertionError("it was not asked for")


@contextmanager
def amds_plugin(node: RealNode) -> Iterator[None]:
    """Serve the stand-in in a thread of its own, and register it with kubelet."""
    socket = node.device_plugins / "amd.com_gpu"

    async def serve() -> None:
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(StandIn(), server)
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        request = messages.RegisterRequest(version="v1beta1", endpoint=socket.name, resource_name=CARDS)
        async with grpc.aio.insecure_channel(f"unix://{node.device_plugins / 'kubelet.sock'}") as channel:
            await RegistrationStub(channel).Register(request)
        await asyncio.to_thread(ended.wait)
        await server.stop(grace=None)

    ended = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    socket.unlink(missing_ok=True)


def test_the_cards_that_amds_plugin_gave_are_charged(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with AmdStage(node, arena, tmp_path, device_plugin=None) as stage, amds_plugin(node):
        stage.wait(lambda: node.allocatable(CARDS) == len(MI210), what="the cards on offer")
        stage.submit({CARDS: "3"}, "three")
        stage.wait(lambda: stage.is_running("three"), what="three to run")
        addresses = stage.held()["three", "main", CARDS]
        given = {minor for minor, place in enumerate(MI210) if place.address in addresses}
        stage.wait(lambda: set(stage.free()) == set(range(len(MI210))) - given, what="these cards to be charged")
        [held] = stage.device()["status"]["held"]
        assert {device["id"] for device in held["devices"]} == {f"GPU-{MI210[minor].unique_id}" for minor in given}
        stage.remove("three")
