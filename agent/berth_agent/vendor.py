"""What a vendor of GPUs brings. Read this module first if you add a vendor (CONTRIBUTING.md has the recipe).

A vendor is a folder in `vendors`, or another distribution with the entry point `berth.gpu_vendors`. It has a class with
the members of `Vendor`. These are its parts, of which only the first is required:

    Discovery        the cards of the node. Its readings also have the processes that use each card
    Events           faults that the driver reports between two readings
    Measurements     temperature, power and use for the metrics
    NumberedEvents   how often each numbered event of the driver came, for the metrics
    FaultCatalogue   what ends each kind of fault. The vendor's module adds it to `health.catalogue` when it is imported
    HandOver         resources for kubelet, and how a container gets its cards
    NamesCards       ids by which other device plugins offer the cards to kubelet
    NodeFacts        labels of the Node, in `readings`
    Isolation        limits of containers to their shares of cards, in `isolation.provider`
    Partitions       makes partitions of cards on demand

One object may have the first four parts. All other rooms of the agent are shared by all vendors: they know these
interfaces, and no vendor.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from berth_agent.configuration.settings import Settings
from berth_agent.health.faults import FaultEvent
from berth_agent.kubelet_api.deviceplugin_pb2 import ContainerAllocateResponse
from berth_agent.readings import CardSample, Reading
from berth_api import names
from berth_api.device import DeviceSpec

FaultListener = Callable[[FaultEvent], object]
"""Called with each fault event, from any thread."""


# --- the cards --------------------------------------------------------------------------------------------------


class Discovery(Protocol):
    """Finds the cards of the node."""

    async def read(self) -> Mapping[str, Reading]:
        """Return the readings of all nodes; a node that is missing was removed from the inventory.

        A real vendor has one node. The reading has the cards, the labels of the Device, and the `NodeFacts`. If it
        raises or hangs, the agent keeps the last reading, with a condition.
        """
        ...

    def close(self) -> None:
        """Close the hardware without waiting for it."""
        ...


@runtime_checkable
class Events(Protocol):
    """Reports faults as they occur."""

    def listen(self, listener: FaultListener) -> None:
        """Call the listener with each fault event from now on."""
        ...


@runtime_checkable
class Measurements(Protocol):
    """Measures the cards."""

    async def sample(self) -> Mapping[str, CardSample]:
        """Return what GPUs measure now, by their ids; may take as long as the driver does."""
        ...


@runtime_checkable
class NumberedEvents(Protocol):
    """Counts the events of a driver that numbers them."""

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Return how many fault events came since the start, by id of the card and number of the event.

        `berth_gpu_xid_errors_total` shows them. `OTHER_EVENTS` stands for all numbers that the vendor does not list.
        """
        ...


OTHER_EVENTS: Final = 0


@runtime_checkable
class ReleasesCards(Protocol):
    """An inventory that keeps cards open, which may keep a partition or a mode in use."""

    def released(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which no card is open.

        Raises:
            RefusedError: on entering, if they cannot be closed.
        """
        ...


def released(inventory: object) -> AbstractAsyncContextManager[None]:
    """Return a context in which an inventory has no card open; `ReleasesCards` has the errors."""
    return inventory.released() if isinstance(inventory, ReleasesCards) else contextlib.nullcontext()


@runtime_checkable
class Inventory(Discovery, Events, Measurements, NumberedEvents, Protocol):
    """A source of readings, as the shared rooms use it: the parts about the cards in one object.

    An inventory is read periodically. If nothing changed, it may return the same Reading object as before. The
    publisher then skips the comparison, which makes a thousand simulated nodes affordable.
    """


# --- kubelet and containers -------------------------------------------------------------------------------------


class MisconfiguredError(Exception):
    """The node's cards cannot be offered as the options need it. The Device shows the text."""


class RefusedError(Exception):
    """Kubelet must not do what it requests. It shows the text on the pod."""


class UnansweredError(RefusedError):
    """A call had no answer: what it requested may have been done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One of what a resource counts."""

    id: str
    minor: int
    """The minor of its card."""
    healthy: bool
    numa: int = -1
    """NUMA node of its card; -1 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One resource, as the plugin reports it to kubelet."""

    resource: str
    units: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """All that a node offers, and what of its cards it does not."""

    offers: tuple[Offer, ...] = ()
    warnings: tuple[str, ...] = ()


def whole_cards(spec: DeviceSpec, *, withheld: frozenset[str] = frozenset()) -> tuple[Unit, ...]:
    """Return a node's GPUs as units; withheld ones are unhealthy."""
    return tuple(
        Unit(
            id=card.id,
            minor=card.minor,
            healthy=card.health and card.id not in withheld,
            numa=card.topology.node_id if card.topology else -1,
        )
        for card in spec.devices
        if card.type == names.GPU
    )


Specification = dict[str, Any]
"""The content of a CDI file."""
CDI_VENDOR: Final = "k8s.device-plugin."
"""How the vendors of all CDI devices begin that the agent specifies."""


class CardAccess(Protocol):
    """How containers get the cards of one reading. A class that derives from it needs only `prefer` and `grant`."""

    @property
    def one_at_most(self) -> bool:
        """Return whether a container may have one replica only."""
        return False

    def check(self) -> None:
        """Check that everything exists that containers must have.

        Raises:
            MisconfiguredError: something does not.
        """
        return  # without it, the method is abstract

    def cdi(self) -> dict[str, Specification]:
        """Return the CDI specifications by their classes; none if containers get no cards by CDI.

        Their vendor is `CDI_VENDOR` with the vendor's domain: `k8s.device-plugin.example.com`.
        """
        return {}

    def prefer(self, offer: Offer, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Return the units that a container of this size should get, if the scheduler has not chosen them.

        Raises:
            RefusedError: there are too few.
        """
        ...

    def grant(self, ids: Sequence[str]) -> ContainerAllocateResponse:
        """Return the device nodes, mounts, variables and CDI names with which a container gets these units.

        Raises:
            RefusedError: a container cannot have them.
        """
        ...


class HandOver(Protocol):
    """Offers cards to kubelet, and gives them to containers.

    A class that derives from it needs only `offers` and `access`: it has no options, replicas and partitions then.
    """

    @property
    def fails_without_cards(self) -> bool:
        """Return whether the agent ends if there is nothing to offer at its start."""
        return False

    @property
    def renames(self) -> bool:
        """Return whether replicas of cards are a resource of their own."""
        return False

    def reload(self) -> None:
        """Read the options again.

        Raises:
            OptionsError: they cannot be used; the last ones stay.
        """
        return  # without it, the method is abstract

    def offers(self, spec: DeviceSpec, *, withheld: frozenset[str] = frozenset()) -> Offers:
        """Return what a node offers. Units of withheld cards are unhealthy, like units of unhealthy cards.

        Raises:
            MisconfiguredError: the cards contradict the options.
        """
        ...

    def shown(self, spec: DeviceSpec) -> DeviceSpec:
        """Return the spec as it is published: with the partitions and replicas with which cards are offered."""
        return spec

    def access(self, spec: DeviceSpec) -> CardAccess:
        """Return how containers get these cards, by what exists on the node now. The agent calls it every second."""
        ...


CardNames = Callable[[DeviceSpec], Sequence[tuple[str, str]]]
"""Returns names of a node's cards and partitions, each with the id of one that the name may stand for."""


@runtime_checkable
class NamesCards(Protocol):
    """The part of a vendor that knows by which ids other device plugins offer its cards to kubelet.

    PCI addresses need not be among them, and neither what may follow a name, as in `nvidia0/vgpu1`.
    """

    def card_names(self, settings: Settings, spec: DeviceSpec) -> Sequence[tuple[str, str]]:
        """Return each name with the id of a card or partition; a name that may stand for several, several times."""
        ...


# --- partitions on demand ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProfile:
    """A kind of partition that can be made on a card."""

    id: int
    name: str
    """`1g.10gb+me`, as in the name of a MIG device."""
    slices: int
    """Compute slices."""
    instances: int
    """How many of the kind the card can have at most."""
    memory_mib: int
    engines: Mapping[str, int]
    """How much of each engine a partition has, by the name of its capacity: `multiprocessors`, `copyEngines` …"""
    size: int
    """Memory slices."""
    starts: Sequence[int]
    """Memory slices at which a partition can begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where on a card a partition of a profile is, in memory slices."""

    profile: int
    start: int
    size: int

    def overlaps(self, other: "Placement") -> bool:
        """Return whether two partitions cannot be there at once."""
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionableCard:
    """A card on which partitions can be made."""

    card: str
    """UUID."""
    is_partitioned: bool
    """Whether the card is in the mode that partitions need."""
    changes_at_once: bool
    """Whether the mode changes without a reset of the card."""
    profiles: Sequence[PartitionProfile]
    made: Mapping[str, Placement]
    """Partitions that `Partitions.make` made, by their keys."""
    foreign: Sequence[Placement]
    """Partitions that others made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCards:
    """The cards of a node on which partitions can be made."""

    cards: Sequence[PartitionableCard]
    problems: Sequence[str] = ()
    """Why other cards are not among them."""


class Partitions(Protocol):
    """Makes partitions on demand. A caller names each by a key of its own, and each call can be repeated."""

    async def list(self) -> PartitionCards:
        """Return the cards on which partitions can be made.

        Raises:
            RefusedError: they are not known.
        """
        ...

    async def make(self, key: str, *, card: str, placement: Placement) -> str:
        """Make a partition, or complete it, and return its id.

        Raises:
            RefusedError: it is not complete, or not yet: a refused call may still be performed. So record the key
                first. The same call completes it, and `destroy` removes what was made of it.
        """
        ...

    async def destroy(self, key: str) -> None:
        """Destroy a partition; there may be none of this key.

        If its card does not answer, it stays, and the call succeeds. `list` shows it when the card answers again.

        Raises:
            RefusedError: it may still be there.
        """
        ...

    async def clear(self, card: str) -> None:
        """End the mode that partitions need, so that a pod can have the whole card.

        Raises:
            RefusedError: the card may still be in this mode.
        """
        ...


@runtime_checkable
class MakesPartitions(Protocol):
    """The part of a vendor that makes partitions on demand."""

    def partitions(self, settings: Settings) -> Partitions | None:
        """Return what makes partitions; None if the settings do not request it."""
        ...


# --- the vendor -------------------------------------------------------------------------------------------------


class Vendor(Protocol):
    """A vendor of GPUs."""

    @property
    def name(self) -> str:
        """Return its name in the label of the Device, `nvidia`."""
        ...

    def is_present(self, sysfs_root: Path) -> bool | None:
        """Return whether the PCI bus has a GPU of this vendor, with or without its driver; None without a PCI bus.

        Integrated graphics and the displays of management controllers do not count. Use `sysfs.has_gpus`, which has
        this rule for all vendors.
        """
        ...

    def is_driven(self, sysfs_root: Path) -> bool:
        """Return whether the vendor's driver holds a card. It decides if the node has GPUs of several vendors."""
        ...

    def discovery(self, settings: Settings) -> Discovery:
        """Return the source of the node's readings. If it also has one of the other parts, it is used."""
        ...

    def hand_over(self, settings: Settings) -> HandOver | None:
        """Return how kubelet and containers get the cards; None if the agent only publishes them.

        Raises:
            OptionsError: the options cannot be used.
        """
        ...
