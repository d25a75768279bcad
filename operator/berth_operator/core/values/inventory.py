"""The fields of a Node and of its Device that scheduling reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from berth_api.allocation.partitions import Table
from berth_api.values.selectors import Labels
from berth_operator.core.values.request import Taint

ANY_VENDOR: Final = ""
DEFAULT_VENDOR: Final = "nvidia"
"""The vendor of a Device that does not name one."""

Links = tuple[tuple[int, str, int], ...]
"""(minor of the other card, type of the link to it, number of links). `berth_api.links` has the types."""
Functions = tuple[tuple[Labels, tuple[tuple[int, str], ...]], ...]
"""Groups of a card's virtual functions: (labels, (minor, bus id) of each)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What scheduling reads of a Node."""

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    ready: bool = True
    unreachable: bool = False
    """Not ready because its kubelet no longer reports."""
    features: tuple[str, ...] = ()
    """The features that its kubelet declares."""
    images: tuple[tuple[str, int], ...] = ()
    """(name, bytes)."""


class CardFacts(NamedTuple):
    """How large and fast a GPU is, next to its memory; 0 is unknown."""

    multiprocessors: int = 0
    memory_bandwidth: int = 0
    """Bytes per second."""
    encoders: int = 0
    decoders: int = 0


NO_FACTS: Final = CardFacts()


class Bar(NamedTuple):
    """Why a healthy card is not given by name."""

    reason: str
    """The reason for pods that wait. It is the same for all cards of a driver."""
    detail: str
    """The reason for the Device, with the pool and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """One card as its Device lists it."""

    type: str
    minor: int
    id: str
    model: str = ""
    healthy: bool = True
    """Also false for cards that cannot be allocated, whole or shared: in MIG mode, barred, or inconsistent with the
    rest of the Device."""
    failed: bool = False
    """Whether it could be allocated if its agent reported it as healthy."""
    bar: Bar | None = None
    amounts: tuple[tuple[str, int], ...] = ()
    """(resource, capacity of the whole card); also its number of instances of each profile, of replicas and of virtual
    functions."""
    numa: int = -1
    socket: int = -1
    address: str = ""
    """PCI address; empty if it is not known."""
    pcie: str = ""
    """The PCIe switch; empty if it is not known."""
    module: int = -1
    """Position on the baseboard."""
    labels: Labels = ()
    links: Links = ()
    functions: Functions = ()
    """Virtual functions."""
    instances: tuple[tuple[str, str], ...] = ()
    """(MIG UUID, resource) of each instance that can be allocated."""
    instance_memory: tuple[tuple[str, int], ...] = ()
    """(resource, bytes of each instance); of a time-sliced instance, bytes of each of its replicas."""
    parts: tuple[str, ...] = ()
    """MIG UUIDs of all its instances, whether they can be allocated or not."""
    replica_resource: str = ""
    """The only resource name under which pods can request its replicas; empty if both names are allowed."""
    facts: CardFacts = NO_FACTS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInventory:
    """What scheduling reads of a Device."""

    cards: tuple[CardInfo, ...] = ()
    vendor: str = DEFAULT_VENDOR
    partitions: Table = ()
    """The partitions of the node's NVSwitch; empty if it has none."""
    partitions_only: bool | None = None
    """Whether whole cards are allocated by partition only, instead of by preference; None to use the Node's label."""
    mig_single: bool = False
    """Whether `nvidia.com/gpu` is a MIG instance on cards that have instances (MIG strategy single)."""
    kubelet_chooses: bool = False
    """Whether kubelet chooses the time-sliced replicas of a container, maybe several of one card."""
    one_replica: bool = False
    """Whether the device plugin refuses containers that request several replicas."""


NO_DEVICE: Final = DeviceInventory(vendor=ANY_VENDOR)
