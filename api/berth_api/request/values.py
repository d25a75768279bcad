"""A pod's request for devices, as values. They are frozen and hashable, because they are part of the pod's class."""

from dataclasses import dataclass, field
from typing import Final, Literal

from berth_api import links, names
from berth_api.names import GPU_MEMORY_RATIO
from berth_api.values import interning
from berth_api.values.selectors import EVERYTHING, LabelSelector, Requirement

CARD: Final = 100
"""A whole card, in hundredths."""

Unit = Literal["amounts", "plugin unit", "replica", "instance"]
AMOUNTS: Final = "amounts"
"""`Part.amounts` of each card."""
PLUGIN_UNIT: Final = "plugin unit"
"""`nvidia.com/gpu`: what the device plugin offers as one unit: a card, a replica, or an instance if the MIG strategy is
`single`. `Part.amounts` is the charge of a card."""
REPLICA: Final = "replica"
"""`nvidia.com/gpu.shared`: one of the equal time-sliced replicas of a card; the Device has their number."""
INSTANCE: Final = "instance"
"""`nvidia.com/mig-…`: a MIG instance."""

SubdeviceRule = Literal["", "last", "equal", "never", "only"]
LAST: Final = "last"
"""`nvidia.com/gpu` is a replica or MIG instance only where whole cards cannot serve the pod."""
EQUAL: Final = "equal"
"""Cards, replicas and instances are equal."""
NEVER: Final = "never"
"""`nvidia.com/gpu` is a whole card."""
ONLY: Final = "only"
"""`nvidia.com/gpu` is a replica or instance."""
WHOLE_CARD: Final = ""
"""The kind of a card without replicas and instances."""

Scope = Literal["", "Device", "PCIe", "NUMANode", "Node"]
Exclusive = Literal["", "DeviceLevel", "PCIeLevel"]


class RequestError(ValueError):
    """A request is invalid. The message names the field, its value and what is allowed."""

    def __init__(self, message: str, *resources: str) -> None:
        """Create an error about these resources, by their full names; empty if it concerns none."""
        super().__init__(message)
        self.resources = resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Equal parts of `count` cards of one type."""

    type: str
    count: int
    """How many cards, replicas or instances."""
    amounts: tuple[tuple[str, int], ...]
    """(resource without prefix, amount on each card); only resources that the pod named."""
    unit: Unit = AMOUNTS
    every: bool = False
    """All healthy cards that the selector matches, at least one, instead of `count` cards."""
    selector: LabelSelector = EVERYTHING
    """Selects cards by their labels."""
    functions: LabelSelector | None = None
    """Selects groups of virtual functions by their labels. Each card gives one function. None if none is requested."""
    scope: Scope = ""
    """The domain that must contain all cards of the part; `Node` and the empty scope require nothing."""
    exclusive: Exclusive = ""
    """What no other pod with the same policy may share: the card, or any card of its PCIe switch."""
    min_memory: int = 0
    """Bytes of memory that the pod must get of each card: of the card, the share, the replica or the instance."""
    subdevices: SubdeviceRule = ""
    """For a PLUGIN_UNIT, whether it may be a subdevice; empty if the profile decides."""
    kind: str | None = None
    """The kind of card that every unit must be of (`Cards.kind`); None for any. No pod requests it: a gang's decision
    sets it."""
    of_cards: tuple[Requirement, ...] = field(default=(), init=False, repr=False, compare=False)
    """What the selector requires of the ids of cards."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute once what every decision reads."""
        of_cards = tuple(
            requirement for requirement in self.selector.requirements if requirement.key == names.DEVICE_UUID
        )
        object.__setattr__(self, "of_cards", of_cards)
        object.__setattr__(self, "_hash", interning.hash_of(self))

    def __hash__(self) -> int:
        """Return the hash of all compared fields."""
        return self._hash

    @property
    def names_cards(self) -> bool:
        """Return whether the selector names single cards, so that nodes with equal cards may differ."""
        return bool(self.of_cards)

    @property
    def of_labels(self) -> LabelSelector:
        """Return what the selector requires of the labels of cards."""
        rest = tuple(requirement for requirement in self.selector.requirements if requirement.key != names.DEVICE_UUID)
        return self.selector if len(rest) == len(self.selector.requirements) else LabelSelector(requirements=rest)

    @property
    def whole(self) -> bool:
        """Return whether each card must be free of other pods."""
        amounts = dict(self.amounts)
        return amounts.get(GPU_MEMORY_RATIO, amounts.get(self.type, 0)) >= CARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """Types of devices that are allocated close to each other."""

    types: tuple[str, ...]
    """At least two types. The first is allocated first."""
    same_pcie: bool = False
    """Whether each PCIe switch with a card of one type must have one of each other type; else this is preferred."""
    exact: bool = False
    """Whether the pod gets exactly as many devices as it requests, because another device plugin gives the NICs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """The pod gets a partition of the NVSwitch, whatever the policy of the node is."""

    restricted: bool = False
    """Whether only partitions with the highest score are allowed."""
    bandwidth: int | None = None
    """The least ring bandwidth of the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTopology:
    """How the GPUs of a pod are connected."""

    level: str
    """`nvlink`, `xgmi` and so on for direct links between all of them (`links.LEVELS`), `pcie` for one PCIe switch, or
    `numa` for one NUMA node."""
    required: bool = True

    @property
    def link(self) -> str:
        """Return the type of the direct links; empty for the other levels."""
        return links.LEVELS.get(self.level, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """All that a pod requests of devices; empty for most pods."""

    parts: tuple[Part, ...] = ()
    vendor: str = ""
    """The vendor that the cards must have; empty for any."""
    prefix: str = names.PREFIX
    """The resource prefix that the pod used; its allocation uses the same."""
    hint: str = ""
    """A suggestion for the user if the request looks like a mistake."""
    labelled: bool = False
    """Whether the pod requests only by labels: then no container has a request, and all containers see all GPUs."""
    joint: Joint | None = None
    partition: PartitionSpec | None = None
    topology: GpuTopology | None = None
    mixed: bool = False
    """Whether the GPUs of the pod, and of the members of its gang, may be of several models and kinds."""
    names_cards: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether a part names single cards."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute once what every decision reads."""
        object.__setattr__(self, "names_cards", any(part.names_cards for part in self.parts))
        object.__setattr__(self, "_hash", interning.hash_of(self))

    def __hash__(self) -> int:
        """Return the hash of all compared fields."""
        return self._hash

    def __bool__(self) -> bool:
        return bool(self.parts)


NOTHING: Final = DeviceRequest()
