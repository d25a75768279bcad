"""The gRPC server of one resource."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
import structlog
from grpc import aio

from berth_agent import files
from berth_agent.files import FileIdentity
from berth_agent.kubelet.device_plugin import registration
from berth_agent.kubelet.device_plugin.handler import Service
from berth_agent.kubelet.device_plugin.offered_ids import InvalidRequestError, OfferedIds
from berth_agent.kubelet.device_plugin.registration import ServingError
from berth_agent.kubelet.device_plugin.takeover import ResourceState, TakeoverDetector
from berth_agent.kubelet_api.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerPreferredAllocationRequest,
    ContainerPreferredAllocationResponse,
    Device,
    DevicePluginOptions,
    Empty,
    ListAndWatchResponse,
    NUMANode,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
    PreStartContainerRequest,
    PreStartContainerResponse,
    TopologyInfo,
)
from berth_agent.kubelet_api.deviceplugin_pb2_grpc import DevicePluginServicer, add_DevicePluginServicer_to_server
from berth_agent.vendor import Offer, RefusedError, Unit

OWN_FOLDER: Final = "berth"
"""Where the sockets are, below kubelet's folder: a kubelet that starts removes all sockets next to its own, but none in
a folder. So they stay, and it is enough to register them with a new kubelet."""
MAX_CONTAINERS: Final = 64
"""Containers of one call; kubelet calls for one at a time."""
MAX_RECEIVED: Final = 2**21
"""Bytes of a call: 256 cards with 100 replicas each have ids of a megabyte."""
FOLDER_MODE: Final = 0o750
"""The mode with which kubelet creates its own folder of sockets."""
GRACE: Final = 1.0
"""Seconds that calls under way get at the end."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

OnRefusal = Callable[[str, str], object]
"""Takes the resource that kubelet requested for a pod, and why it was refused."""
_Context = aio.ServicerContext[Any, Any]


def socket_name(resource: str) -> str:
    """Return the name of a resource's socket, as NVIDIA's plugin has it: `nvidia-gpu.sock` of `nvidia.com/gpu`."""
    vendor, _, name = resource.partition("/")
    return f"{vendor.partition('.')[0]}-{name}.sock"


class PluginServer(DevicePluginServicer):
    """Serves one resource until it is stopped."""

    def __init__(
        self,
        service: Service,
        *,
        folder: Path,
        with_numa: bool,
        changed: Callable[[], object],
        refused: OnRefusal,
    ) -> None:
        """Serve a resource at a socket below kubelet's folder.

        Args:
            service: the resource, and what decides about it.
            folder: kubelet's folder of plug-ins.
            with_numa: whether kubelet gets the NUMA nodes of units.
            changed: called when kubelet begins or ends to watch the units.
            refused: called when kubelet is refused units.
        """
        self._offer = service.offer
        self._offered = OfferedIds(service.offer)
        self._handler = service.handler
        self._with_numa = with_numa
        self._change = asyncio.Event()
        self._ending = False
        self._server: aio.Server | None = None
        self._socket: FileIdentity | None = None
        self.path: Final = folder / OWN_FOLDER / socket_name(service.offer.resource)
        self.registered = False
        self._watch = registration.WatchTracker()
        self._takeover = TakeoverDetector()
        self._changed = changed
        self._refused = refused

    # --- its life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and check that the socket answers.

        Raises:
            ServingError: it would not.
        """
        server = aio.server(options=[("grpc.max_receive_message_length", MAX_RECEIVED)])
        add_DevicePluginServicer_to_server(self, server)
        try:
            files.make_folder(self.path.parent, mode=FOLDER_MODE)
            # When gRPC stops, it removes whatever is at the path that it bound. By then that may be the socket of
            # another agent, which replaces this one; so it binds another path, and the socket is moved.
            bound = self.path.with_name(f".{self.path.name}")
            server.add_insecure_port(f"unix:{bound}")
            bound.rename(self.path)
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise ServingError(f"cannot listen at {self.path}: {error}") from error
        self._server, self._socket = server, files.identity(self.path)
        await server.start()
        await registration.check(self.path)

    async def register(self, kubelet: Path, state: ResourceState | None = None) -> None:
        """Register with kubelet, and again if kubelet does not watch the resource any more or calls another plugin.

        `state` is what kubelet's checkpoint has of the resource; None if it has not been read.

        Raises:
            ServingError: kubelet does not take it.
        """
        if state is not None:
            self._takeover.compare_answers(state, _now(), is_registered=self.registered)
            if self.registered and self.watched:
                offered = frozenset(unit.id for unit in self._offer.units if unit.healthy)
                self._takeover.compare_offer(state, offered, _now())
        if self._takeover.is_taken and self.registered and self._takeover.may_register(_now()):
            _log.warning("kubelet called another device plugin; registering again", resource=self._offer.resource)
            self.registered = False
        if self.registered and self._watch.is_overdue(_now()):
            _log.warning(
                "kubelet does not watch the resource any more; registering it again", resource=self._offer.resource
            )
            self._watch.back_off()
            self.registered = False
        if not self.registered:
            endpoint = f"{OWN_FOLDER}/{self.path.name}"
            await registration.register(
                kubelet, resource=self._offer.resource, endpoint=endpoint, options=self._handler.options
            )
            self._watch.registered(_now())
            self._takeover.registered(_now())
            self.registered = True

    @property
    def watched(self) -> bool:
        """Whether kubelet listens to the offers. Only then can it allocate them."""
        return self._watch.is_there

    @property
    def is_taken(self) -> bool:
        """Whether kubelet calls another plugin for the resource."""
        return self._takeover.is_taken

    @property
    def minors_given_by_other(self) -> frozenset[int]:
        """Return the minors of the cards of which another plugin gave units, by the ids of this offer."""
        given = self._takeover.given_by_other
        return frozenset(unit.minor for unit in self._offer.units if unit.id in given)

    @property
    def broken(self) -> bool:
        """Whether its socket is gone, or another's."""
        return self._socket is not None and files.identity(self.path) != self._socket

    def update(self, service: Service) -> None:
        """Offer other units from now on; they are sent to kubelet at once."""
        self._handler = service.handler
        self._update(service.offer)

    def _update(self, offer: Offer) -> None:
        if offer != self._offer:
            self._offer, self._offered = offer, OfferedIds(offer)
            self._announce()

    async def stop(self, *, grace: float = GRACE) -> None:
        """Remove the socket, and end all calls after they have sent their remaining answers."""
        self._ending = True
        self._announce()
        if self._server is not None:
            if not self.broken:
                self.path.unlink()
            await self._server.stop(grace)
        with contextlib.suppress(OSError):
            # The last one takes the folder away.
            self.path.parent.rmdir()

    async def withdraw(self) -> None:
        """Report to kubelet that there are no units any more, and stop."""
        self._update(Offer(resource=self._offer.resource, units=()))
        await self.stop()

    def _announce(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    # --- what kubelet asks --------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, request: Empty, context: _Context) -> DevicePluginOptions:  # noqa: ARG002, N802
        """Return which calls kubelet is to make."""
        return self._handler.options

    async def ListAndWatch(self, request: Empty, context: _Context) -> AsyncIterator[ListAndWatchResponse]:  # noqa: ARG002, N802
        """Send all units, again at each change."""
        stream = self._watch.stream_started(_now())
        self._changed()
        try:
            async for device_list in self._lists():
                yield device_list
        finally:
            self._watch.stream_ended(stream, _now())
            self._changed()

    async def _lists(self) -> AsyncGenerator[ListAndWatchResponse, None]:
        sent: Offer | None = None
        while True:
            change = self._change
            if sent is not self._offer:
                sent = self._offer
                yield ListAndWatchResponse(devices=[self._device(unit) for unit in sent.units])
            elif self._ending:
                return
            else:
                await change.wait()

    async def GetPreferredAllocation(  # noqa: N802
        self, request: PreferredAllocationRequest, context: _Context
    ) -> PreferredAllocationResponse:
        """Return which units containers should get."""
        try:
            _check_containers(request)
            answers = []
            for container in request.container_requests:
                self._offered.check(container.must_include_deviceIDs, one_at_most=False)
                offered = ContainerPreferredAllocationRequest(
                    available_deviceIDs=self._offered.only(container.available_deviceIDs),
                    must_include_deviceIDs=container.must_include_deviceIDs,
                    allocation_size=container.allocation_size,
                )
                ids = await self._handler.prefer(self._offer, offered)
                answers.append(ContainerPreferredAllocationResponse(deviceIDs=ids))
        except RefusedError as error:
            await self._refuse(context, f"error getting list of preferred allocation devices: {error}")
        return PreferredAllocationResponse(container_responses=answers)

    async def Allocate(self, request: AllocateRequest, context: _Context) -> AllocateResponse:  # noqa: N802
        """Return how containers are given their units."""
        try:
            _check_containers(request)
            answers = []
            for container in request.container_requests:
                self._offered.check(container.devices_ids, one_at_most=self._handler.one_at_most)
                answers.append(await self._handler.allocate(self._offer.resource, container.devices_ids))
                self._takeover.answered(container.devices_ids, _now())
        except RefusedError as error:
            await self._refuse(context, str(error))
        return AllocateResponse(container_responses=answers)

    async def PreStartContainer(  # noqa: N802
        self, request: PreStartContainerRequest, context: _Context
    ) -> PreStartContainerResponse:
        """Prepare a container's start. Kubelet calls it only if the options request it."""
        try:
            await self._handler.before_start(request.devices_ids)
        except RefusedError as error:
            # The pod stays, and kubelet reports the message on it.
            await _abort(context, str(error))
        return PreStartContainerResponse()

    async def _refuse(self, context: _Context, why: str) -> NoReturn:
        """Refuse units to a pod, which fails. It may be a static pod that has no object on the API server."""
        self._refused(self._offer.resource, why)
        await _abort(context, why)

    def _device(self, unit: Unit) -> Device:
        nodes = [NUMANode(ID=unit.numa)] if self._with_numa and unit.numa >= 0 else []
        topology = TopologyInfo(nodes=nodes) if nodes else None
        return Device(ID=unit.id, health="Healthy" if unit.healthy else "Unhealthy", topology=topology)


def _check_containers(request: AllocateRequest | PreferredAllocationRequest) -> None:
    """Check the number of containers of a call. Each of them is decided in turn.

    Raises:
        InvalidRequestError: the call is not for one container; kubelet calls for one at a time.
    """
    if len(request.container_requests) > MAX_CONTAINERS:
        raise InvalidRequestError(
            f"invalid request: {len(request.container_requests)} containers; allowed are {MAX_CONTAINERS}"
        )


async def _abort(context: _Context, why: str) -> NoReturn:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)


def _now() -> float:
    return asyncio.get_running_loop().time()
