"""kubelet's PodResources: which devices it gave to which containers."""

import contextlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from google.protobuf.message import Message
from grpc import aio
from pydantic import ValidationError

from berth_agent.kubelet.admission.admission import UnavailableError
from berth_agent.kubelet.admission.mirror import ContainerReport
from berth_agent.kubelet.admission.pods import PLUGIN, is_of_plugin
from berth_agent.kubelet.channel import open_channel, reason
from berth_agent.kubelet_api import podresources_pb2 as messages
from berth_agent.kubelet_api.podresources_pb2_grpc import PodResourcesListerStub
from berth_agent.readings import ClaimedByContainer
from berth_api.device import ClaimedDevice

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

ANSWER_SECONDS: Final = 2.0
"""Kubelet answers in a millisecond, or hangs."""


class PodResources:
    """Asks kubelet at its socket, one call at a time, over a connection that is kept while calls succeed."""

    def __init__(self, socket: Path, *, plugin: Collection[str] = PLUGIN, timeout: float = ANSWER_SECONDS) -> None:
        """Report devices of the device plugin's resources (`is_of_plugin`)."""
        self._socket, self._plugin = socket, plugin
        self._timeout = timeout
        self._channel = open_channel(socket)
        self.claim_users: tuple[ClaimedByContainer, ...] = ()
        """The devices of ResourceClaims that each container had by the last answer, sorted."""

    async def list_containers(self) -> tuple[ContainerReport, ...]:
        """Return what kubelet reports that containers have.

        Raises:
            UnavailableError: kubelet does not answer, or with what cannot be parsed.
        """
        method, request = PodResourcesListerStub(self._channel).List, messages.ListPodResourcesRequest()
        answer = await self._call(method, request, messages.ListPodResourcesResponse)
        self.claim_users = tuple(sorted(_claimed(answer), key=_order))
        return tuple(_reports(answer, self._plugin))

    async def list_allocatable(self) -> dict[str, frozenset[str]]:
        """Return the ids of the healthy devices that kubelet can allocate, held or not, by the plugin's resources.

        Raises:
            UnavailableError: kubelet does not answer, or with what cannot be parsed.
        """
        method = PodResourcesListerStub(self._channel).GetAllocatableResources
        request = messages.AllocatableResourcesRequest()
        answer = await self._call(method, request, messages.AllocatableResourcesResponse)
        return _ids_by_resource(answer.devices, self._plugin)

    async def _call(
        self, method: "aio.UnaryUnaryMultiCallable[Request, Response]", request: Request, response: type[Response]
    ) -> Response:
        try:
            answer: Response | None = await method(request, timeout=self._timeout)
        except aio.AioRpcError as error:
            # After a failed attempt to connect a channel pauses before the next; a new one finds kubelet at once.
            await self._channel.close()
            self._channel = open_channel(self._socket)
            raise UnavailableError(f"{self._socket}: {reason(error)}") from error
        if answer is None:
            # gRPC for Python returns None where an answer cannot be parsed, though its types say otherwise.
            raise UnavailableError(f"{self._socket}: the answer is no {response.DESCRIPTOR.name}")
        return answer

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _order(user: ClaimedByContainer) -> tuple[str, ...]:
    device = user.device
    return device.namespace, device.claim, device.driver, device.pool, device.device, user.pod, user.container


def _claimed(answer: messages.ListPodResourcesResponse) -> Iterator[ClaimedByContainer]:
    containers = ((pod.name, container) for pod in answer.pod_resources for container in pod.containers)
    claims = ((pod, container.name, claim) for pod, container in containers for claim in container.dynamic_resources)
    for pod, container, claim in claims:
        for device in claim.claim_resources:
            # Names that the API server does not allow are of no claim.
            with contextlib.suppress(ValidationError):
                claimed = ClaimedDevice(
                    namespace=claim.claim_namespace,
                    claim=claim.claim_name,
                    driver=device.driver_name,
                    pool=device.pool_name,
                    device=device.device_name,
                )
                yield ClaimedByContainer(pod=pod, container=container, device=claimed)


def _reports(answer: messages.ListPodResourcesResponse, plugin: Collection[str] = PLUGIN) -> Iterator[ContainerReport]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            if ids_by_resource := _ids_by_resource(container.devices, plugin):
                yield ContainerReport(
                    namespace=pod.namespace, pod=pod.name, container=container.name, by_resource=ids_by_resource
                )


def _ids_by_resource(
    entries: Iterable[messages.ContainerDevices], plugin: Collection[str]
) -> dict[str, frozenset[str]]:
    ids_by_resource: dict[str, frozenset[str]] = {}
    for devices in entries:
        name = devices.resource_name
        if is_of_plugin(name, plugin):
            # Devices of several NUMA nodes stand in an entry each.
            ids_by_resource[name] = ids_by_resource.get(name, frozenset()).union(devices.device_ids)
    return ids_by_resource
