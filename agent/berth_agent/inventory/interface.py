"""Inventories without hardware, and values of labels."""

import re
from collections.abc import Mapping
from typing import Final

from berth_agent.conditions import Finding
from berth_agent.readings import CardSample, NodeFacts, Reading
from berth_agent.vendor import FaultListener
from berth_api import names
from berth_api.device import DeviceSpec

MAX_LABEL: Final = 63


_NOT_LOOKED_FOR: Final = (
    Finding(type=names.DRIVER_LOADED, ok=True, reason="NotNeeded", message="the settings look for no GPUs"),
    Finding(type=names.INVENTORY_READ, ok=True, reason="InventoryRead"),
)


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
        self._readings = {node: Reading(spec=DeviceSpec(devices=[]), findings=_NOT_LOOKED_FOR, facts=NodeFacts())}

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
