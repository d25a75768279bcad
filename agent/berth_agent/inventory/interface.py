"""What an inventory tells: for each node that it speaks for, a Reading.

An inventory is asked again and again. It may return the same Reading object as before, which tells the
publisher at no cost that nothing changed; a thousand simulated nodes live from that.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from berth_agent.conditions import Finding
from berth_agent.health.faults import FaultEvent
from berth_agent.readings import Facts, Reading
from berth_api import names
from berth_api.device import DeviceSpec

MAX_LABEL: Final = 63


FaultListener = Callable[[FaultEvent], object]
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

    def listen(self, listener: FaultListener) -> None:
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

    def listen(self, listener: FaultListener) -> None:
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
    usage = re.sub(r"[^A-Za-z0-9._-]", "", text.replace(" ", "-"))
    return usage.strip("._-")[:MAX_LABEL].strip("._-")
