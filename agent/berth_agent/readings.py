"""What is known of a node: values that the agent's layers share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from berth_agent.conditions import Finding
from berth_api.device import DeviceSpec, ForeignUse, HeldByContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses a card."""

    pid: int
    memory: int = 0
    """Bytes of the card's; 0 if the driver does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The agent's part of a Device's status, in addition to its conditions."""

    held: tuple[HeldByContainer, ...] = ()
    boot_id: str = ""
    withheld: tuple[int, ...] = ()
    foreign: tuple[ForeignUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """Facts of a card for labels, in addition to its DeviceInfo."""

    compute: tuple[int, int]
    """CUDA compute capability."""
    pci_class: str
    is_vgpu: bool = False
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of MIG instances, by their UUIDs: `multiprocessors`, `slices.gi`, `engines.copy` …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of a node for labels, in addition to its DeviceSpec."""

    machine: str = ""
    """The machine's product name; empty where it is not known."""
    cards: Mapping[str, CardFacts] = field(default_factory=dict)
    """By their UUIDs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one reading of one node found."""

    spec: DeviceSpec
    findings: tuple[Finding, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    processes: Mapping[int, tuple[Process, ...]] = field(default_factory=dict, compare=False)
    """Processes that compute on a GPU, by its minor; empty if foreign use is not published."""
    use: NodeUse | None = None
    """What pods hold; None before kubelet answered: then what is published stays."""
    heartbeat: bool = True
    """Whether the node's Lease is to be renewed. Only a fleet file sets it to false."""
    reset: frozenset[str] = frozenset()
    """UUIDs of the GPUs that were reset since the reading before."""
    facts: Facts | None = None
    """Facts for the Node's labels; None if the inventory does not set them."""
    unnumbered: frozenset[str] = frozenset()
    """Types whose devices have no minors of their own: those in the spec only count them; `numbering` replaces them."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Device: what the agent has to know after its restart."""
