"""A kubelet in memory as a device plugin sees it, on real sockets: registration, and kubelet's calls to plugins.

Like a real kubelet, it empties its folder when it starts, learns about devices only from the stream, and forgets all
plugins when it restarts.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpc import aio

from berth_agent.kubelet_api.deviceplugin_pb2 import (
    AllocateRequest,
    ContainerAllocateRequest,
    ContainerAllocateResponse,
    ContainerPreferredAllocationRequest,
    Empty,
    PreferredAllocationRequest,
    PreStartContainerRequest,
    RegisterRequest,
)
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from devcluster import waiting

DEADLINE = 120.0
"""Longest time in seconds until a change is seen."""


class Kubelet(RegistrationServicer):
    """A kubelet that runs from `start` to `stop`."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "kubelet.sock"
        self.requests: list[RegisterRequest] = []
        """All registrations, since the first start."""
        self.refuses = ""
        """The error message with which it refuses registrations; empty if it accepts them."""
        self.lists: dict[str, list[dict[str, str]]] = {}
        """Resource -> the lists that it received since the last registration: health by unit."""
        self.numa: dict[str, list[int]] = {}
        """Unit -> NUMA nodes."""
        self.ended: list[str] = []
        """Resources whose plugins closed the stream without an error."""
        self._streams: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Condition()
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Remove the sockets in the folder, but not in folders below it, and listen."""
        for file in self.socket.parent.iterdir():
            if not file.is_dir():
                file.unlink()
        self._server = aio.server()
        add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop; the socket's file stays, as after a kill."""
        for stream in self._streams.values():
            stream.cancel()
        await asyncio.gather(*self._streams.values(), return_exceptions=True)
        self._streams, self.lists = {}, {}
        if self._server:
            await self._server.stop(None)
            self._server = None

    async def restart(self) -> None:
        """Stop, and start again."""
        await self.stop()
        await self.start()

    @property
    def age(self) -> float:
        """Return the seconds since it began to listen."""
        return time.time() - self.socket.stat().st_ctime

    async def end_stream(self, resource: str) -> None:
        """Close the stream of a resource, as after an error in it; kubelet never opens it again by itself."""
        stream = self._streams.pop(resource)
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        del self.lists[resource]

    async def Register(self, request: RegisterRequest, context: Any) -> Empty:  # noqa: ARG002, N802
        """Accept a registration, and open the plugin's stream."""
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.requests.append(request)
        if (known := self._streams.pop(request.resource_name, None)) is not None:
            known.cancel()
        self.lists[request.resource_name] = []
        self._streams[request.resource_name] = asyncio.create_task(self._listen(request))
        return Empty()

    async def _listen(self, request: RegisterRequest) -> None:
        with contextlib.suppress(aio.AioRpcError):
            async with self._plugin(request.endpoint) as plugin:
                async for answer in plugin.ListAndWatch(Empty()):
                    async with self._changed:
                        self.lists[request.resource_name].append({each.ID: each.health for each in answer.devices})
                        self.numa |= {each.ID: [node.ID for node in each.topology.nodes] for each in answer.devices}
                        self._changed.notify_all()
            self.ended.append(request.resource_name)

    @contextlib.asynccontextmanager
    async def _plugin(self, endpoint: str) -> Any:
        async with aio.insecure_channel(f"unix:{self.socket.parent / endpoint}") as channel:
            yield DevicePluginStub(channel)

    # --- requests of tests --------------------------------------------------------------------------------------

    def capacity(self) -> dict[str, Mapping[str, str]]:
        """Return the units of each resource that has sent any, with their health."""
        return {resource: lists[-1] for resource, lists in self.lists.items() if lists}

    async def sees(
        self, predicate: Callable[[dict[str, Mapping[str, str]]], bool], *, deadline: float = DEADLINE
    ) -> dict[str, Mapping[str, str]]:
        """Wait until the units satisfy a predicate, and return them."""
        async with waiting.limit("the units of the device plugin", deadline=deadline), self._changed:
            await self._changed.wait_for(lambda: predicate(self.capacity()))
        return self.capacity()

    async def prefer(self, available: Sequence[str], size: int, must: Sequence[str] = ()) -> list[str]:
        """Call GetPreferredAllocation for a container that needs units of `nvidia.com/gpu`."""
        request = ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        async with self._plugin("berth/nvidia-gpu.sock") as plugin:
            answer = await plugin.GetPreferredAllocation(PreferredAllocationRequest(container_requests=[request]))
        return list(answer.container_responses[0].deviceIDs)

    async def allocate(self, *ids: str, endpoint: str = "berth/nvidia-gpu.sock") -> ContainerAllocateResponse:
        """Call Allocate for a container that gets these units."""
        request = AllocateRequest(container_requests=[ContainerAllocateRequest(devices_ids=ids)])
        async with self._plugin(endpoint) as plugin:
            answer = await plugin.Allocate(request)
        response: ContainerAllocateResponse = answer.container_responses[0]
        return response

    async def before_start(self, *ids: str, endpoint: str) -> None:
        """Call PreStartContainer for a container that has these units."""
        async with self._plugin(endpoint) as plugin:
            await plugin.PreStartContainer(PreStartContainerRequest(devices_ids=ids))
