"""One resource's server: what kubelet asks at its socket."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream

from berth_agent.device_plugin import preferred, registration, response
from berth_agent.device_plugin.chooser import Chooser, RefusedError
from berth_agent.device_plugin.preferred import PreferenceError
from berth_agent.device_plugin.registration import Identity, ServingError
from berth_agent.device_plugin.resources import Offer, Unit
from berth_agent.device_plugin.response import InvalidRequestError, Machine
from berth_agent.kubelet.deviceplugin_grpc import DevicePluginBase
from berth_agent.kubelet.deviceplugin_pb2 import (
    AllocateRequest,
    AllocateResponse,
    ContainerAllocateResponse,
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
from berth_agent.rpc import Listener

OWN_FOLDER: Final = "berth"
"""Where the sockets are, below kubelet's folder: a kubelet that starts removes all sockets beside its own, but none in
a folder. So they stay, and it is enough to tell a new kubelet of them."""
GRACE: Final = 1.0
"""Seconds that calls under way get at the end."""

_log: Any = structlog.get_logger()

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def socket_name(resource: str) -> str:
    """Give the name of a resource's socket, as NVIDIA's plugin has it."""
    return f"nvidia-{resource.rpartition('/')[2]}.sock"


class Server(DevicePluginBase):
    """Serves one resource until it is stopped."""

    def __init__(
        self,
        offer: Offer,
        machine: Machine,
        *,
        chooser: Chooser,
        folder: Path,
        with_numa: bool,
        changed: Callable[[], object],
    ) -> None:
        self._offer = offer
        self._machine = machine
        self._chooser = chooser
        self._with_numa = with_numa
        self._change = asyncio.Event()
        self._ending = False
        self._listener: Listener | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._socket: Identity | None = None
        self.path: Final = folder / OWN_FOLDER / socket_name(offer.resource)
        self.registered = False
        self._listening = registration.Listening()
        self._changed = changed

    # --- its life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and see that kubelet would be answered.

        Raises:
            ServingError: it would not.
        """
        self.path.parent.mkdir(mode=0o750, exist_ok=True)
        self.path.unlink(missing_ok=True)
        listener = Listener([self])
        try:
            listener.listen(self.path)
        except OSError as error:
            raise ServingError(f"cannot listen at {self.path}: {error}") from error
        self._listener, self._socket = listener, registration.identity(self.path)
        await registration.check(self.path)

    async def register(self, kubelet: Path) -> None:
        """Make it known to kubelet, and again where kubelet has let go of it.

        Raises:
            ServingError: kubelet does not take it.
        """
        if self.registered and self._listening.is_over(_now()):
            _log.warning("kubelet does not watch it any more; registering it again", resource=self._offer.resource)
            self.registered = False
        if not self.registered:
            endpoint = f"{OWN_FOLDER}/{self.path.name}"
            await registration.register(kubelet, resource=self._offer.resource, endpoint=endpoint)
            self._listening.told(_now())
            self.registered = True

    @property
    def watched(self) -> bool:
        """Whether kubelet listens to what is offered: only then can it give any of it."""
        return self._listening.is_there

    @property
    def broken(self) -> bool:
        """Whether its socket is gone, or another's."""
        return self._socket is not None and registration.identity(self.path) != self._socket

    def update(self, offer: Offer, machine: Machine) -> None:
        """Offer other units from now on; kubelet is told at once."""
        self._machine = machine
        if offer != self._offer:
            self._offer = offer
            self._announce()

    async def stop(self, *, grace: float = GRACE) -> None:
        """Take the socket away, and end all calls after what they still have to tell."""
        self._ending = True
        self._announce()
        if self._listener is not None:
            if not self.broken:
                self.path.unlink()
            await self._listener.shut()
            if self._calls:
                await asyncio.wait(self._calls, timeout=grace)
            self._listener.drop()
        with contextlib.suppress(OSError):
            # The last one takes the folder away.
            self.path.parent.rmdir()

    async def withdraw(self) -> None:
        """Tell kubelet that there are no units any more, and end."""
        self.update(Offer(resource=self._offer.resource, units=()), self._machine)
        await self.stop()

    def _announce(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    # --- what kubelet asks --------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, stream: Stream[Empty, DevicePluginOptions]) -> None:  # noqa: N802
        """Tell that preferences are given, and nothing is done before a container's start."""
        await self._asked(stream)
        await stream.send_message(registration.OPTIONS)

    async def ListAndWatch(self, stream: Stream[Empty, ListAndWatchResponse]) -> None:  # noqa: N802
        """Tell all units, again at each change."""
        await self._asked(stream)
        self._listening.came(_now())
        self._changed()
        try:
            async for each in self._lists():
                await stream.send_message(each)
        finally:
            self._listening.left(_now())
            self._changed()

    async def _lists(self) -> AsyncGenerator[ListAndWatchResponse, None]:
        told: Offer | None = None
        while True:
            change = self._change
            if told is not self._offer:
                told = self._offer
                yield ListAndWatchResponse(devices=[self._device(unit) for unit in told.units])
            elif self._ending:
                return
            else:
                await change.wait()

    async def GetPreferredAllocation(  # noqa: N802
        self, stream: Stream[PreferredAllocationRequest, PreferredAllocationResponse]
    ) -> None:
        """Tell which units containers should get."""
        request = await self._asked(stream)
        try:
            answers = [await self._preferred(each) for each in request.container_requests]
        except PreferenceError as error:
            raise _refusal(f"error getting list of preferred allocation devices: {error}") from error
        await stream.send_message(PreferredAllocationResponse(container_responses=answers))

    async def Allocate(self, stream: Stream[AllocateRequest, AllocateResponse]) -> None:  # noqa: N802
        """Tell how containers are given their units."""
        request = await self._asked(stream)
        try:
            answers = [await self._allocated(each.devices_ids) for each in request.container_requests]
        except (InvalidRequestError, RefusedError) as error:
            raise _refusal(str(error)) from error
        await stream.send_message(AllocateResponse(container_responses=answers))

    async def PreStartContainer(  # noqa: N802
        self, stream: Stream[PreStartContainerRequest, PreStartContainerResponse]
    ) -> None:
        """Do nothing: kubelet is told not to ask."""
        await self._asked(stream)
        await stream.send_message(PreStartContainerResponse())

    async def _asked(self, stream: Stream[Asked, Answer]) -> Asked:
        """Take a call's request; from now on the end waits for the call."""
        task = asyncio.current_task()
        if task:
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        request = await stream.recv_message()
        if request is None:
            raise GRPCError(Status.INVALID_ARGUMENT, "a request is missing")
        return request

    async def _preferred(self, asked: ContainerPreferredAllocationRequest) -> ContainerPreferredAllocationResponse:
        wanted = (asked.available_deviceIDs, asked.must_include_deviceIDs, asked.allocation_size)
        chosen = await self._chooser.prefer(self._offer.resource, *wanted)
        if not chosen:
            policy = self._machine.options.flags.shared_devices_allocation_policy
            chosen = preferred.prefer(self._machine.spec, self._offer, *wanted, policy=policy)
        return ContainerPreferredAllocationResponse(deviceIDs=chosen)

    async def _allocated(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        response.check(self._offer, ids, one_at_most=self._machine.options.sharing.one_at_most)
        await self._chooser.admit(self._offer.resource, ids)
        return response.compose(self._machine, ids, key=str(uuid.uuid4()))

    def _device(self, unit: Unit) -> Device:
        nodes = [NUMANode(ID=unit.numa)] if self._with_numa and unit.numa >= 0 else []
        topology = TopologyInfo(nodes=nodes) if nodes else None
        return Device(ID=unit.id, health="Healthy" if unit.healthy else "Unhealthy", topology=topology)


def _refusal(why: str) -> GRPCError:
    return GRPCError(Status.FAILED_PRECONDITION, why)


def _now() -> float:
    return asyncio.get_running_loop().time()
