"""Facts about a node: values that the agent's layers share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from berth_agent.conditions import Finding
from berth_api.device import (
    ClaimedDevice,
    DeviceSpec,
    ExceedingUse,
    ForeignUse,
    HeldByContainer,
    MigInstance,
    RunningPod,
    UnheldUse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process that uses a card."""

    pid: int
    memory: int = 0
    """Bytes of the card's; 0 if the driver does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Memory of a card or MIG instance, in bytes. Memory that the driver reserves is neither used nor free."""

    total: int
    used: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSample:
    """A card's measurements at one moment; None, or absent, for values that it does not report."""

    memory: MemoryUse | None = None
    sm_utilization: float | None = None
    """Share of the last sample period in which a kernel ran, from 0 to 1. The other engines' values are such shares,
    too."""
    memory_utilization: float | None = None
    encoder_utilization: float | None = None
    decoder_utilization: float | None = None
    power: float | None = None
    """Watts."""
    power_limit: float | None = None
    """Watts that the card may draw now."""
    temperature: int | None = None
    """Degrees Celsius."""
    clocks: Mapping[str, int] = field(default_factory=dict)
    """Hertz, by `sm` and `memory`."""
    throttle_reasons: Mapping[str, bool] = field(default_factory=dict)
    """Whether each reason that the card reports holds."""
    ecc_errors: Mapping[str, int] = field(default_factory=dict)
    """Since the driver was loaded, by `corrected` and `uncorrected`."""
    instances: Mapping[str, MemoryUse] = field(default_factory=dict)
    """Memory of MIG instances, by their UUIDs."""
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedByContainer:
    """A device of a ResourceClaim that a container has, by kubelet's report."""

    pod: str
    """Its namespace is the claim's."""
    container: str
    device: ClaimedDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPart:
    """What a container has of a card by a ResourceClaim."""

    namespace: str
    pod: str
    container: str
    key: str
    """Names what of the claim it is. Containers that share it have equal keys."""
    card: str
    """UUID."""
    instance: MigInstance | None = None
    """The MIG instance, which the Device need not list; None for the card, or a share of it."""
    memory: int | None = None
    """Bytes of a share; None if it is no share."""
    cores: int = 0
    """Hundredths of the card's cores that a share reserves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """The agent's part of a Device's status, in addition to its conditions."""

    held: tuple[HeldByContainer, ...] = ()
    boot_id: str = ""
    withheld: tuple[int, ...] = ()
    foreign: tuple[ForeignUse, ...] = ()
    claimed: tuple[ClaimedDevice, ...] = ()
    exceeding: tuple[ExceedingUse, ...] = ()
    unheld: tuple[UnheldUse, ...] = ()
    uncertain: tuple[int, ...] = ()
    running: tuple[RunningPod, ...] = ()
    stopped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts of a node for its labels, in addition to its DeviceSpec. A vendor derives its own, which write labels."""

    machine: str = ""
    """The machine's product name; empty where it is not known."""
    cards: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the cards, by their UUIDs."""

    def labels(self, spec: DeviceSpec, *, renamed: bool) -> dict[str, str]:  # noqa: ARG002
        """Return the Node's labels; none if it has no GPU.

        Args:
            spec: the node's cards, some of them with replicas.
            renamed: whether replicas of cards are a resource of their own.
        """
        return {}

    def attributes(self, spec: DeviceSpec, card: str) -> dict[str, dict[str, Any]]:  # noqa: ARG002
        """Return a card's attributes in ResourceSlices, in addition to its DeviceInfo: `{"cores": {"int": 8}}`.

        Args:
            spec: the node's cards.
            card: the card's UUID.
        """
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of one reading of one node."""

    spec: DeviceSpec
    findings: tuple[Finding, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    processes: Mapping[int, tuple[Process, ...]] | None = field(default_factory=dict, compare=False)
    """Processes that compute on a GPU, by its minor; empty if foreign use is not published. None before the driver has
    listed them, which leaves what is published of them unchanged.

    Another object each time that the driver has listed them, also if the processes are the same."""
    use: NodeUse | None = None
    """What pods hold; None before kubelet answered, which leaves the published value unchanged."""
    heartbeat: bool = True
    """Whether the node's Lease is to be renewed. Only a fleet file sets it to false."""
    reset: frozenset[str] = frozenset()
    """UUIDs of the GPUs that were reset since the reading before."""
    offered: bool = True
    """Whether the agent's device plugin offers the GPUs. False if the plugin of their vendor does."""
    facts: NodeFacts | None = None
    """Facts for the Node's labels; None if the inventory does not set them."""
    unnumbered: frozenset[str] = frozenset()
    """Types whose devices have no minors of their own. The spec only counts these devices; `numbering` replaces the
    counts."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of the Device: what the agent has to know after its restart."""
