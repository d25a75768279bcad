"""The interface through which the server of a resource requests what its containers get."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from berth_agent.kubelet_api.deviceplugin_pb2 import (
    ContainerAllocateResponse,
    ContainerPreferredAllocationRequest,
    DevicePluginOptions,
)
from berth_agent.vendor import Offer


class ResourceHandler(Protocol):
    """Decides for the server of one resource."""

    @property
    def options(self) -> DevicePluginOptions:
        """Return which calls kubelet is to make."""
        ...

    @property
    def one_at_most(self) -> bool:
        """Return whether a container may have one replica only."""
        ...

    async def prefer(self, offer: Offer, request: ContainerPreferredAllocationRequest) -> list[str]:
        """Return the offered units that a container should get.

        Raises:
            RefusedError: there are too few.
        """
        ...

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Return how a container is given these units, which are offered.

        Raises:
            RefusedError: it must not have them, and its pod fails.
        """
        ...

    async def before_start(self, ids: Sequence[str]) -> None:
        """Prepare the start of a container that has these units.

        Raises:
            RefusedError: it must not start now; kubelet tries again.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A served resource: the offered devices, and the chooser that decides."""

    offer: Offer
    handler: ResourceHandler
