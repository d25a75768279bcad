"""What an inventory tells: for each node that it speaks for, a Reading.

An inventory is asked again and again. It may return the same Reading object as before, which tells the
publisher at no cost that nothing changed; a thousand simulated nodes live from that.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from berth_agent.conditions import Finding
from berth_agent.health.faults import Fault
from berth_agent.labels import Facts
from berth_agent.truth.processes import Process
from berth_agent.truth.use import NodeUse
from berth_api import names
from berth_api.device import DeviceSpec

MAX_LABEL: Final = 63


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """What cannot wait for the next reading, and asks for one at once."""

    node: str
    card: str = ""
    """UUID of the GPU that it concerns; empty where all may be concerned."""
    faults: tuple[Fault, ...] = ()


Listener = Callable[[Alarm], object]
"""Is told of alarms, from any thread."""


_NOT_LOOKED_FOR: Final = (
    Finding(type=names.DRIVER_LOADED, ok=True, reason="NotNeeded", message="the settings look for no GPUs"),
    Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead"),
)


class Inventory(Protocol):
    """A source of readings."""

    async def read(self) -> Mapping[str, Reading]:
        """Look at all nodes; one that is missing is no longer spoken for."""
        ...

    def listen(self, listener: Listener) -> None:
        """Tell somebody of alarms from now on."""
        ...

    def close(self) -> None:
        """Let go of the hardware, without waiting for it."""
        ...


class NoGpus:
    """The inventory of a node whose GPUs nobody wants to know of."""

    def __init__(self, *, node: str) -> None:
        self._readings = {node: Reading(spec=DeviceSpec(devices=[]), findings=_NOT_LOOKED_FOR, facts=Facts())}

    async def read(self) -> Mapping[str, Reading]:
        """Tell of no GPU."""
        return self._readings

    def listen(self, listener: Listener) -> None:
        """Do nothing: no hardware raises an alarm."""

    def close(self) -> None:
        """Do nothing: no hardware is held."""


def labels_of(spec: DeviceSpec) -> dict[str, str]:
    """Tell vendor, model and driver. A node with cards of several models gets no model label."""
    models = {device.model for device in spec.devices if device.type == "gpu"}
    if not models:
        return {}
    model = models.pop().removeprefix("NVIDIA ") if len(models) == 1 else ""
    labels = {
        names.VENDOR_LABEL: "nvidia",
        names.MODEL_LABEL: label_value(model),
        names.DRIVER_LABEL: label_value(spec.driver_version),
    }
    return {key: value for key, value in labels.items() if value}


def label_value(text: str) -> str:
    """Shape a text into a label's value: spaces become dashes, other foreign characters go."""
    kept = re.sub(r"[^A-Za-z0-9._-]", "", text.replace(" ", "-"))
    return kept.strip("._-")[:MAX_LABEL].strip("._-")
