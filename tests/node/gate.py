"""A gate between kubelet and a device plugin: everything passes, and a test can act right before an Allocate.

with Gate(kubelet=node.device_plugins) as gate:      # the plugin registers at gate.socket
    gate.next_allocate(agent.kill)
"""

# ruff: noqa: N802 - the interface names its methods

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc.aio

from berth_agent.kubelet_api import deviceplugin_pb2 as messages
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    DevicePluginStub,
    RegistrationServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
    add_RegistrationServicer_to_server,
)
from tests.stand_ins.background import Background

SOCKET: Final = "kubelet.sock"


class Gate(Background):
    """The gate; a context manager."""

    def __init__(self, *, kubelet: Path) -> None:
        super().__init__(name="gate")
        self._kubelet = kubelet
        # Its path must be short enough for a socket's.
        self._folder = tempfile.TemporaryDirectory(prefix="berth-")
        self.socket = Path(self._folder.name) / SOCKET
        self.act: Callable[[], object] | None = None

    def next_allocate(self, act: Callable[[], object]) -> None:
        """Do something when kubelet asks for an allocation the next time, before the plugin hears of it."""
        self.act = act

    async def _serve(self) -> None:
        registrations = _Registrations(self, plugins=self.socket.parent, kubelet=self._kubelet)
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(registrations, server)
        server.add_insecure_port(f"unix://{self.socket}")
        await server.start()
        self._is_ready()
        await self._stop.wait()
        for running in (server, *registrations.servers.values()):
            await running.stop(grace=None)
        self._folder.cleanup()


class _Registrations(RegistrationServicer):
    """What the plugin takes for kubelet."""

    def __init__(self, gate: Gate, *, plugins: Path, kubelet: Path) -> None:
        self._gate, self._plugins, self._kubelet = gate, plugins, kubelet
        self.servers: dict[str, grpc.aio.Server] = {}

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        """Serve a plugin's socket under the same name in kubelet's folder, and register that."""
        if request.endpoint not in self.servers:
            server = self.servers[request.endpoint] = grpc.aio.server()
            add_DevicePluginServicer_to_server(_Passing(self._gate, self._plugins / request.endpoint), server)
            (self._kubelet / request.endpoint).parent.mkdir(exist_ok=True)
            server.add_insecure_port(f"unix://{self._kubelet / request.endpoint}")
            await server.start()
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet / SOCKET}") as channel:
            return await RegistrationStub(channel).Register(request)


class _Passing(DevicePluginServicer):
    """What kubelet takes for the plugin."""

    def __init__(self, gate: Gate, plugin: Path) -> None:
        self._gate, self._target = gate, f"unix://{plugin}"

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return await self._pass("GetDevicePluginOptions", request)

    async def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return await self._pass("GetPreferredAllocation", request)

    async def Allocate(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        act, self._gate.act = self._gate.act, None
        if act:
            await asyncio.to_thread(act)
        return await self._pass("Allocate", request)

    async def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        return await self._pass("PreStartContainer", request)

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: ARG002
        async with grpc.aio.insecure_channel(self._target) as channel:
            async for answer in DevicePluginStub(channel).ListAndWatch(messages.Empty()):
                yield answer

    async def _pass(self, method: str, request: Any) -> Any:
        async with grpc.aio.insecure_channel(self._target) as channel:
            answer: Awaitable[Any] = getattr(DevicePluginStub(channel), method)(request)
            return await answer
