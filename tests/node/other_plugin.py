"""A device plugin of somebody else, as kubelet sees it: ids of its own, and no preference."""

# ruff: noqa: N802, ARG002 - the interface names its methods and arguments

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import grpc.aio

from berth_agent.kubelet_api import deviceplugin_pb2 as messages
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from devcluster.real_node import RealNode


class OtherPlugin(DevicePluginServicer):
    """A device plugin that offers units by some ids; a context manager. It serves in a thread of its own.

    Attributes:
        allocated: the ids of each container for which kubelet called Allocate.
    """

    def __init__(self, node: RealNode, *, resource: str, ids: Sequence[str]) -> None:
        self._resource, self._ids = resource, ids
        self._kubelet = node.device_plugins / "kubelet.sock"
        self._socket = node.device_plugins / f"other-{resource.replace('/', '-')}.sock"
        self._is_served, self._is_ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.allocated: list[list[str]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_served.wait()
        self.register()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()
        self._socket.unlink(missing_ok=True)

    def register(self) -> None:
        """Register with kubelet, which calls this plugin from now on."""
        asyncio.run(self._register())

    async def _register(self) -> None:
        request = messages.RegisterRequest(version="v1beta1", endpoint=self._socket.name, resource_name=self._resource)
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet}") as channel:
            await RegistrationStub(channel).Register(request)

    async def _serve(self) -> None:
        server = grpc.aio.server()
        add_DevicePluginServicer_to_server(self, server)
        server.add_insecure_port(f"unix://{self._socket}")
        await server.start()
        self._is_served.set()
        await asyncio.to_thread(self._is_ended.wait)
        await server.stop(grace=None)

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> messages.DevicePluginOptions:
        return messages.DevicePluginOptions()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[messages.ListAndWatchResponse]:
        yield messages.ListAndWatchResponse(devices=[messages.Device(ID=unit, health="Healthy") for unit in self._ids])
        await asyncio.Event().wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> messages.PreferredAllocationResponse:
        raise AssertionError("it was not offered")

    async def Allocate(self, request: Any, context: Any) -> messages.AllocateResponse:
        self.allocated += [list(container.devices_ids) for container in request.container_requests]
        answers = [messages.ContainerAllocateResponse() for _ in request.container_requests]
        return messages.AllocateResponse(container_responses=answers)

    async def PreStartContainer(self, request: Any, context: Any) -> messages.PreStartContainerResponse:
        raise AssertionError("it was not asked for")
