"""What kubelet calls at the driver's sockets, for every version of the interfaces that kubelet may speak."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
import structlog
from grpc import aio

from berth_agent.dra.calls import PREPARE, UNPREPARE, CallMetrics
from berth_agent.kubelet_api import dra_pb2 as messages
from berth_agent.kubelet_api import drahealth_pb2 as health_messages
from berth_agent.kubelet_api.registration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from berth_agent.kubelet_api.registration_pb2_grpc import RegistrationServicer
from berth_agent.vendor import RefusedError
from berth_api.names import DRA_DRIVER

PACKAGE: Final = "k8s.io.kubelet.pkg.apis.dra"
DRIVER_VERSIONS: Final = ("v1", "v1beta1")
"""kubelet takes the first that it knows."""
HEALTH_VERSIONS: Final = ("v1", "v1alpha1")
RENEWAL: Final = 10.0
"""Seconds after which an unchanged health is sent again."""
HEALTH_TIMEOUT: Final = 30
"""Seconds without renewal after which kubelet shows the health as unknown."""
MAX_MESSAGE: Final = 1024
"""Bytes of the message about a device's health."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
_Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimKey:
    """A ResourceClaim as kubelet names it."""

    uid: str
    namespace: str
    name: str

    @property
    def title(self) -> str:
        """The claim in messages."""
        return f"ResourceClaim {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device of a claim, for kubelet."""

    request: str
    """The request that it was allocated to, without its subrequest."""
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    """Qualified names of CDI devices."""
    share_id: str | None = None
    """The scheduler's ID of the claim's share; None for the whole device."""


class Claims(Protocol):
    """Prepares claims. Calls come for several claims at once, and again for the same claim."""

    async def prepare(self, claim: ClaimKey) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices, ready for containers.

        Raises:
            RefusedError: they are not. kubelet shows the text on the pod, and calls again after more than a minute.
        """
        ...

    async def unprepare(self, claim: ClaimKey) -> None:
        """Release a claim, of which all containers have ended; a claim that is not known is released.

        Raises:
            RefusedError: it is not released. kubelet calls again.
        """
        ...


class HealthFeed:
    """The health of the devices, for any number of listeners."""

    def __init__(self) -> None:
        self._faults: Mapping[tuple[str, str], str] = {}
        self.change = asyncio.Event()
        """Set at the next change, and replaced."""

    def update(self, faults: Mapping[tuple[str, str], str]) -> None:
        """Report from now on the faults of all devices, by pool and name; the empty string stands for none."""
        if faults != self._faults:
            self._faults = faults
            self.wake()

    def wake(self) -> None:
        """Have all listeners look again."""
        self.change.set()
        self.change = asyncio.Event()

    def message(self) -> health_messages.NodeWatchResourcesResponse:
        """Return the health of all devices now."""
        now = int(time.time())
        return health_messages.NodeWatchResourcesResponse(
            devices=[
                health_messages.DeviceHealth(
                    device=health_messages.DeviceIdentifier(pool_name=pool, device_name=device),
                    health=health_messages.UNHEALTHY if fault else health_messages.HEALTHY,
                    last_updated_time=now,
                    health_check_timeout_seconds=HEALTH_TIMEOUT,
                    message=fault.encode()[:MAX_MESSAGE].decode(errors="ignore"),
                )
                for (pool, device), fault in self._faults.items()
            ]
        )


class DriverService:
    """The services at the driver's socket."""

    def __init__(self, *, claims: Claims, health: HealthFeed, metrics: CallMetrics) -> None:
        self._claims = claims
        self._health = health
        self._metrics = metrics
        self._is_ending = False

    def add_to(self, server: aio.Server) -> None:
        """Serve all versions. Their messages are the same on the wire: v1beta1 has one field less."""
        calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                self._prepare,
                request_deserializer=messages.NodePrepareResourcesRequest.FromString,
                response_serializer=messages.NodePrepareResourcesResponse.SerializeToString,
            ),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                self._unprepare,
                request_deserializer=messages.NodeUnprepareResourcesRequest.FromString,
                response_serializer=messages.NodeUnprepareResourcesResponse.SerializeToString,
            ),
        }
        watch: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=health_messages.NodeWatchResourcesRequest.FromString,
                response_serializer=health_messages.NodeWatchResourcesResponse.SerializeToString,
            )
        }
        drivers = [(f"{PACKAGE}.{version}.DRAPlugin", calls) for version in DRIVER_VERSIONS]
        healths = [(f"{version}.DRAResourceHealth", watch) for version in HEALTH_VERSIONS]
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(name, methods) for name, methods in (*drivers, *healths)]
        )

    def end(self) -> None:
        """End the streams: the server stops."""
        self._is_ending = True
        self._health.wake()

    async def _prepare(
        self, request: messages.NodePrepareResourcesRequest, _: _Context
    ) -> messages.NodePrepareResourcesResponse:
        answers = await asyncio.gather(*map(self._prepare_one, request.claims))
        uids = [claim.uid for claim in request.claims]
        return messages.NodePrepareResourcesResponse(claims=dict(zip(uids, answers, strict=True)))

    async def _prepare_one(self, claim: messages.Claim) -> messages.NodePrepareResourceResponse:
        try:
            with self._metrics.timed(PREPARE):
                devices = await self._claims.prepare(_key(claim))
        except RefusedError as error:
            _log.warning("claim not prepared", namespace=claim.namespace, claim=claim.name, reason=str(error))
            return messages.NodePrepareResourceResponse(error=str(error))
        return messages.NodePrepareResourceResponse(
            devices=[
                messages.Device(
                    request_names=[device.request],
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids,
                    share_id=device.share_id,
                )
                for device in devices
            ]
        )

    async def _unprepare(
        self, request: messages.NodeUnprepareResourcesRequest, _: _Context
    ) -> messages.NodeUnprepareResourcesResponse:
        answers = await asyncio.gather(*map(self._unprepare_one, request.claims))
        uids = [claim.uid for claim in request.claims]
        return messages.NodeUnprepareResourcesResponse(claims=dict(zip(uids, answers, strict=True)))

    async def _unprepare_one(self, claim: messages.Claim) -> messages.NodeUnprepareResourceResponse:
        try:
            with self._metrics.timed(UNPREPARE):
                await self._claims.unprepare(_key(claim))
        except RefusedError as error:
            _log.warning("claim not released", namespace=claim.namespace, claim=claim.name, reason=str(error))
            return messages.NodeUnprepareResourceResponse(error=str(error))
        return messages.NodeUnprepareResourceResponse()

    async def _watch(
        self, _request: health_messages.NodeWatchResourcesRequest, _: _Context
    ) -> AsyncIterator[health_messages.NodeWatchResourcesResponse]:
        while not self._is_ending:
            change = self._health.change
            yield self._health.message()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL):
                    await change.wait()


class DriverRegistration(RegistrationServicer):
    """Shows kubelet what the driver is, and records whether kubelet accepts it."""

    def __init__(self, *, endpoint: str) -> None:
        self._endpoint = endpoint
        self.is_registered = False
        self.failure = ""
        """Why kubelet does not accept the driver; empty if it does, or has not answered yet."""

    async def GetInfo(self, request: InfoRequest, context: _Context) -> PluginInfo:  # noqa: ARG002, N802
        """Return the driver's name, socket and versions; kubelet waits for a second."""
        versions = [
            *(f"{version}.DRAPlugin" for version in DRIVER_VERSIONS),
            *(f"{version}.DRAResourceHealth" for version in HEALTH_VERSIONS),
        ]
        return PluginInfo(type="DRAPlugin", name=DRA_DRIVER, endpoint=self._endpoint, supported_versions=versions)

    async def NotifyRegistrationStatus(  # noqa: N802
        self,
        request: RegistrationStatus,
        context: _Context,  # noqa: ARG002
    ) -> RegistrationStatusResponse:
        """Record whether kubelet accepts the driver."""
        self.is_registered, self.failure = request.plugin_registered, request.error
        if request.plugin_registered:
            _log.info("kubelet accepted the driver of claims", driver=DRA_DRIVER)
        else:
            _log.warning("kubelet refused the driver of claims, and will try again", reason=request.error)
        return RegistrationStatusResponse()


def _key(claim: messages.Claim) -> ClaimKey:
    return ClaimKey(uid=claim.uid, namespace=claim.namespace, name=claim.name)
