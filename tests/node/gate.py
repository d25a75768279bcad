"""A gate between kubelet and a device plugin: everything passes, and a test can act right before an Allocate.

with Gate(kubelet=node.device_plugins) as gate:      # the plugin registers at gate.socket
    gate.next_allocate(agent.kill)
"""

# ruff: noqa: N802 - the interface names its methods

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc.aio

from berth_agent.kubelet import deviceplugin_pb2 as messages
from berth_agent.kubelet.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    DevicePluginStub,
    RegistrationServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
    add_RegistrationServicer_to_server,
)

START_SECONDS: Final = 20.0
SOCKET: Final = "kubelet.sock"


class Gate:
    """Runs in a thread and loop of its own, so that synchronous tests can use it; a context manager."""

    def __init__(self, *, kubelet: Path) -> None:
        self._kubelet = kubelet
        # Its path must be short enough for a socket's.
        self._folder = tempfile.TemporaryDirectory(prefix="berth-")
        self.socket = Path(self._folder.name) / SOCKET
        self.act: Callable[[], object] | None = None
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="gate", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        self._started.result(START_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; kubelet sees its plugins end."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._folder.cleanup()

    def next_allocate(self, act: Callable[[], object]) -> None:
        """Do something when kubelet asks for an allocation the next time, before the plugin hears of it."""
        self.act = act

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        registrations = _Registrations(self, plugins=self.socket.parent, kubelet=self._kubelet)
        server = grpc.aio.server()
        add_RegistrationServicer_to_server(registrations, server)
        server.add_insecure_port(f"unix://{self.socket}")
        await server.start()
        self._started.set_result(None)
        await self._stop.wait()
        for each in (server, *registrations.servers.values()):
            await each.stop(grace=None)


class _Registrations(RegistrationServicer):
    """What the plugin takes for kubelet."""

    def __init__(self, gate: Gate, *, plugins: Path, kubelet: Path) -> None:
        self._gate, self._plugins, self._kubelet = gate, plugins, kubelet
        self.servers: dict[str, grpc.aio.Server] = {}

    async def Register(self, request: Any, context: Any) -> Any:  # noqa: ARG002
        """Serve a plugin's socket under the same name beside kubelet's, and register that."""
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
