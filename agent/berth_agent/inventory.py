"""What an inventory tells: for each node that it speaks for, a Reading.

An inventory is asked again and again. It may return the same Reading object as before, which tells the
publisher at no cost that nothing changed; a thousand simulated nodes live from that.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from berth_agent.conditions import Finding
from berth_api import names
from berth_api.device import DeviceSpec

MAX_LABEL: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one look at one node found."""

    spec: DeviceSpec
    findings: tuple[Finding, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    heartbeat: bool = True
    """Whether the node's Lease is to be renewed. Only a fleet file ever says no."""


class Inventory(Protocol):
    """A source of readings."""

    async def read(self) -> Mapping[str, Reading]:
        """Look at all nodes; one that is missing is no longer spoken for."""
        ...

    def close(self) -> None:
        """Let go of the hardware, without waiting for it."""
        ...


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
