"""What scheduling reads of a Node and of its Device."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth_api.partitions import Table
from berth_api.selectors import Labels
from berth_operator.core.values.request import Taint

ANY_VENDOR: Final = ""
DEFAULT_VENDOR: Final = "nvidia"
"""The vendor of a Device that names none."""

Links = tuple[tuple[int, int], ...]
"""(minor of the other card, how good the link to it is)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """One card as its Device lists it."""

    type: str
    minor: int
    id: str
    model: str = ""
    healthy: bool = True
    """Also false for cards that cannot be handed out, whole or shared: in MIG mode, or contradicting the rest of the
    Device."""
    amounts: tuple[tuple[str, int], ...] = ()
    """(resource, what the whole card offers): also how many instances of each profile, replicas and virtual functions
    it has."""
    numa: int = -1
    socket: int = -1
    pcie: str = ""
    """The PCIe switch."""
    module: int = -1
    """Position on the baseboard."""
    labels: Labels = ()
    links: Links = ()
    functions: Functions = ()
    """Virtual functions."""
    instances: tuple[tuple[str, str], ...] = ()
    """(MIG UUID, resource) of each instance that can be handed out."""
    parts: tuple[str, ...] = ()
    """MIG UUIDs of all its instances, whether they can be handed out or not."""
    replica_resource: str = ""
    """The one name by which pods may ask for its replicas; empty for either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInventory:
    """What scheduling reads of a Device."""

    cards: tuple[CardInfo, ...] = ()
    vendor: str = DEFAULT_VENDOR
    partitions: Table = ()
    """The partitions of the node's NVSwitch; empty if it has none."""
    partitions_only: bool | None = None
    """Whether whole cards are allocated by partition only, not just by preference; None to take it from the Node's
    label."""
    mig_single: bool = False
    """Whether `nvidia.com/gpu` is a MIG instance on cards that have some."""


NO_DEVICE: Final = DeviceInventory(vendor=ANY_VENDOR)
