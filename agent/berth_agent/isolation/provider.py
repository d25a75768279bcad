"""The interface of providers. Each provider has a resource through which containers get what they need on the node."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from berth_agent.conditions import Finding
from berth_agent.configuration.settings import Settings
from berth_agent.kubelet.admission.pods import Pod
from berth_agent.kubelet.device_plugin.handler import ResourceHandler
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerPreferredAllocationRequest, DevicePluginOptions
from berth_agent.vendor import Offer, Unit
from berth_api.device import DeviceSpec
from berth_api.names import GPU

UNITS: Final = 100
"""Containers of each card: none has less than a hundredth of it."""
OPTIONS: Final = DevicePluginOptions(pre_start_required=True)

ListPods = Callable[[], Awaitable[tuple[list[Pod], int]]]
"""Lists the pods of the node at quorum; raises UnavailableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What is known of the node."""

    spec: DeviceSpec
    labels: Mapping[str, str] = field(default_factory=dict)
    """The Node's labels."""
    pods: tuple[Pod, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderStatus:
    """What a provider can do now."""

    wanted: bool
    """Whether this node is to have its resource."""
    healthy: bool
    """Whether new containers can get it."""
    findings: tuple[Finding, ...] = ()


class Provider(ResourceHandler, Protocol):
    """Provides containers with something of the node. It is also the handler of its resource."""

    resource: str

    def count(self, spec: DeviceSpec) -> int:
        """Return how many units a node with these devices has."""
        ...

    async def check(self, node: NodeView) -> ProviderStatus:
        """Check the provider's requirements, and repair them where possible."""
        ...


@runtime_checkable
class Isolation(Protocol):
    """The part of a vendor that limits containers to their shares of cards."""

    def providers(self, settings: Settings, *, list_pods: ListPods) -> list[Provider]:
        """Return the providers that the settings request."""
        ...


class AnyUnit:
    """What all providers answer alike: units are equal, and each start of a container is checked."""

    def count(self, spec: DeviceSpec) -> int:
        """Return as many for each card as there can be shares of it."""
        return UNITS * sum(card.type == GPU for card in spec.devices)

    @property
    def options(self) -> DevicePluginOptions:
        """Return that kubelet must call before each start."""
        return OPTIONS

    @property
    def one_at_most(self) -> bool:
        """Return that there is no such rule."""
        return False

    async def prefer(self, offer: Offer, request: ContainerPreferredAllocationRequest) -> list[str]:  # noqa: ARG002
        """Return the first units; the options make kubelet skip this call."""
        return list(request.available_deviceIDs[: request.allocation_size])


def offer(resource: str, count: int, *, healthy: bool) -> Offer:
    """Return the units of a provider's resource, the same ones as long as there are as many."""
    name = resource.partition("/")[2]
    units = (Unit(id=f"{name}-{number}", minor=0, healthy=healthy) for number in range(count))
    return Offer(resource=resource, units=tuple(units))
