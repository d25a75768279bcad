"""Inventories: sources of a Reading for each of their nodes.

An inventory is read periodically. If nothing changed, it may return the same Reading object as before. The publisher
then skips the comparison, which makes a thousand simulated nodes affordable.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from berth_agent.conditions import Finding
from berth_agent.health.faults import FaultEvent
from berth_agent.readings import CardSample, NoFacts, Reading
from berth_api import names
from berth_api.device import DeviceSpec

MAX_LABEL: Final = 63


FaultListener = Callable[[FaultEvent], object]
"""Called with each fault event, from any thread."""


_NOT_LOOKED_FOR: Final = (
    Finding(type=names.DRIVER_LOADED, ok=True, reason="NotNeeded", message="the settings look for no GPUs"),
    Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead"),
)


class Inventory(Protocol):
    """A source of readings."""

    async def read(self) -> Mapping[str, Reading]:
        """Return the readings of all nodes; a node that is missing was removed from the inventory."""
        ...

    def listen(self, listener: FaultListener) -> None:
        """Call the listener with each fault event from now on."""
        ...

    async def sample(self) -> Mapping[str, CardSample]:
        """Return what GPUs measure now, by their UUIDs; may take as long as the driver does."""
        ...

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Return the number of Xids since the start, by UUID and Xid. Xid 0 stands for unknown Xids."""
        ...

    def close(self) -> None:
        """Close the hardware without waiting for it."""
        ...


class NothingMeasured:
    """The samples of an inventory without hardware."""

    async def sample(self) -> Mapping[str, CardSample]:
        """Return nothing."""
        return {}

    def xids(self) -> Mapping[tuple[str, int], int]:
        """Return nothing."""
        return {}


class NoGpus(NothingMeasured):
    """The inventory of a node whose GPUs are not to be discovered."""

    def __init__(self, *, node: str) -> None:
        self._readings = {node: Reading(spec=DeviceSpec(devices=[]), findings=_NOT_LOOKED_FOR, facts=NoFacts())}

    async def read(self) -> Mapping[str, Reading]:
        """Return a reading without GPUs."""
        return self._readings

    def listen(self, listener: FaultListener) -> None:
        """Do nothing: there are no fault events."""

    def close(self) -> None:
        """Do nothing: no hardware is held."""


def label_value(text: str) -> str:
    """Shape a text into a label's value: spaces become dashes, other foreign characters go."""
    usage = re.sub(r"[^A-Za-z0-9._-]", "", text.replace(" ", "-"))
    return usage.strip("._-")[:MAX_LABEL].strip("._-")
