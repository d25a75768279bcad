"""Answer kubelet's calls for the resources of GPUs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from berth_agent.kubelet.device_plugin.chooser import Chooser
from berth_agent.kubelet_api.deviceplugin_pb2 import (
    ContainerAllocateResponse,
    ContainerPreferredAllocationRequest,
    DevicePluginOptions,
)
from berth_agent.vendor import CardAccess, Offer

OPTIONS: Final = DevicePluginOptions(get_preferred_allocation_available=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHandler:
    """Allocates cards and instances, as the chooser decides."""

    context: CardAccess
    chooser: Chooser
    refuse_claimed: Callable[[Sequence[str]], object] = lambda _ids: None
    """Raises AllocationRefusedError if a ResourceClaim holds the card of one of these units."""

    @property
    def options(self) -> DevicePluginOptions:
        """Return that the plugin supports preferences, and does nothing before a container's start."""
        return OPTIONS

    @property
    def one_at_most(self) -> bool:
        """Return whether a container may have one replica only."""
        return self.context.one_at_most

    async def prefer(self, offer: Offer, request: ContainerPreferredAllocationRequest) -> list[str]:
        """Return the chooser's preference, else what fits best together.

        Raises:
            RefusedError: there are too few.
        """
        asked = (request.available_deviceIDs, request.must_include_deviceIDs, request.allocation_size)
        chosen = await self.chooser.prefer(offer.resource, *asked)
        return chosen or self.context.prefer(offer, *asked)

    async def allocate(self, resource: str, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Return how a container gets the devices.

        Raises:
            AllocationRefusedError: no pod is to have them, or a ResourceClaim holds one.
        """
        self.refuse_claimed(ids)
        await self.chooser.admit(resource, ids)
        # A claim may have been prepared meanwhile. From now on, the driver of claims sees what was admitted.
        self.refuse_claimed(ids)
        return self.context.grant(ids)

    async def before_start(self, ids: Sequence[str]) -> None:
        """Do nothing: the options make kubelet skip this call."""
