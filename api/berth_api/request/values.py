"""What a pod asks of devices, as values: frozen and hashable, since they are part of the pod's class."""

from dataclasses import dataclass, field
from typing import Final, Literal

from berth_api import interning, names
from berth_api.names import GPU_MEMORY_RATIO
from berth_api.selectors import EVERYTHING, LabelSelector

CARD: Final = 100
"""A whole card, in hundredths."""

Unit = Literal["amounts", "plugin unit", "replica", "instance"]
AMOUNTS: Final = "amounts"
"""So much of each card as `Part.amounts` says."""
PLUGIN_UNIT: Final = "plugin unit"
"""`nvidia.com/gpu`: what the Device offers as one: a card, a replica of one, or an instance where the MIG strategy is
`single`. `Part.amounts` is what a card takes."""
REPLICA: Final = "replica"
"""`nvidia.com/gpu.shared`: one of the equal slices in which a card's time is given out; how large tells the Device."""
INSTANCE: Final = "instance"
"""`nvidia.com/mig-…`: a MIG instance."""

Level = Literal["nvlink", "pcie", "numa"]
Scope = Literal["", "Device", "PCIe", "NUMANode", "Node"]
Exclusive = Literal["", "DeviceLevel", "PCIeLevel"]


class RequestError(ValueError):
    """A request means nothing; the text names the field, its value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Equal parts of `count` cards of one type."""

    type: str
    count: int
    """How many cards, replicas or instances."""
    amounts: tuple[tuple[str, int], ...]
    """(resource without prefix, amount on each card); only what the pod named."""
    unit: Unit = AMOUNTS
    every: bool = False
    """All healthy cards that the selector picks, rather than `count` of them: at least one."""
    selector: LabelSelector = EVERYTHING
    """Which cards, by their labels."""
    functions: LabelSelector | None = None
    """From which groups of virtual functions each card gives one, by their labels; None where none is wanted."""
    scope: Scope = ""
    """Within what all cards of the part must be; `Node` and the empty one ask for nothing."""
    exclusive: Exclusive = ""
    """What no other pod with such a request may be on: the card, or any card of its PCIe switch."""
    min_memory: int = 0
    """Bytes that each card must have in all."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the hash once: parts are looked up with every decision."""
        object.__setattr__(self, "_hash", interning.hash_of(self))

    def __hash__(self) -> int:
        """Give the hash of everything that is compared."""
        return self._hash

    @property
    def whole(self) -> bool:
        """Whether each card must be free of other pods."""
        amounts = dict(self.amounts)
        return amounts.get(GPU_MEMORY_RATIO, amounts.get(self.type, 0)) >= CARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """Types of devices that are to lie together."""

    types: tuple[str, ...]
    """At least two; the first is placed first."""
    same_pcie: bool = False
    """Whether every switch with a card of one type must have one of each other type; else that is preferred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """The pod keeps to the partitions of its node's NVSwitch, whatever the node's policy is."""

    restricted: bool = False
    """Only the partitions with the highest score will do."""
    bandwidth: int | None = None
    """The ring bandwidth that the partition must have at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTopology:
    """How the pod's GPUs must reach each other."""

    level: Level
    """All by NVLink, under one PCIe switch, or on one NUMA node."""
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """All that a pod asks of devices; empty for most pods."""

    parts: tuple[Part, ...] = ()
    vendor: str = ""
    """The only vendor whose cards will do; empty for any."""
    prefix: str = names.PREFIX
    """The prefix that the pod used, and that its allocation uses in turn."""
    hint: str = ""
    """What the user may have meant instead."""
    labelled: bool = False
    """The pod asks by labels alone: none of its containers has a request, and all of them see its GPUs."""
    joint: Joint | None = None
    partition: PartitionSpec | None = None
    topology: GpuTopology | None = None
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the hash once: requests are looked up with every decision."""
        object.__setattr__(self, "_hash", interning.hash_of(self))

    def __hash__(self) -> int:
        """Give the hash of everything that is compared."""
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.parts)


NOTHING: Final = DeviceRequest()
