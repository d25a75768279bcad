"""What is known of a node: the values that the agent's parts hand to each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from berth_agent.conditions import Finding
from berth_api.device import DeviceSpec, ForeignUse, HeldByContainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses a card."""

    pid: int
    memory: int = 0
    """Bytes of the card's; 0 where the driver does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The agent's part of a Device's status, beside its conditions."""

    held: tuple[HeldByContainer, ...] = ()
    boot_id: str = ""
    withheld: tuple[int, ...] = ()
    foreign: tuple[ForeignUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What is told of a card beside its DeviceInfo."""

    compute: tuple[int, int]
    """CUDA compute capability."""
    pci_class: str
    is_vgpu: bool = False
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of MIG instances, by their UUIDs: `multiprocessors`, `slices.gi`, `engines.copy` …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is told of a node beside its DeviceSpec."""

    machine: str = ""
    """The machine's product name; empty where it is not known."""
    cards: Mapping[str, CardFacts] = field(default_factory=dict)
    """By their UUIDs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one look at one node found."""

    spec: DeviceSpec
    findings: tuple[Finding, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    processes: Mapping[int, tuple[Process, ...]] = field(default_factory=dict, compare=False)
    """By the minor of a GPU those that compute on it, where somebody wants to know."""
    use: NodeUse | None = None
    """What pods hold; none where nobody asked kubelet yet, and what stands on the server stays."""
    heartbeat: bool = True
    """Whether the node's Lease is to be renewed. Only a fleet file ever says no."""
    reset: frozenset[str] = frozenset()
    """UUIDs of the GPUs that were reset since the reading before."""
    facts: Facts | None = None
    """What the Node's labels are to tell of, beside the spec; none where the inventory has no say in them."""
    unnumbered: frozenset[str] = frozenset()
    """Types whose devices have no minors of their own: those in the spec only count them; `numbering` replaces them."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Device: what the agent has to know after its restart."""
