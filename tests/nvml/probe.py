"""Helpers for tests to read a machine as the agent does."""

import queue
from collections.abc import Callable
from typing import Any

from berth_agent.configuration.settings import Settings
from berth_agent.health.faults import FaultEvent
from berth_agent.readings import Reading
from berth_agent.vendors.nvidia.nvml.inventory import NvmlInventory
from tests.nvml.fixture import NvmlFixture

NODE = "node-a"
ALARM_WITHIN = 5.0
"""Longest time in seconds until a fault event."""


class Probe:
    """The inventory of an agent on a machine."""

    def __init__(self, fixture: NvmlFixture, **settings: Any) -> None:
        self.settings = Settings(node_name=NODE, nvml_library=fixture.library, sysfs_root=fixture.sysfs, **settings)
        self.inventory = NvmlInventory(self.settings)
        self._fault_events: queue.SimpleQueue[FaultEvent] = queue.SimpleQueue()
        self.inventory.listen(self._fault_events.put)

    def fault_event(self) -> FaultEvent:
        """Return the next fault event.

        Raises:
                queue.Empty: none came within the time that is allowed.
        """
        return self._fault_events.get(timeout=ALARM_WITHIN)

    async def read(self) -> Reading:
        """Return a reading of the machine."""
        return (await self.inventory.read())[NODE]


Machine = Callable[..., NvmlFixture]
"""Writes a machine with the given cards."""
Start = Callable[..., Probe]
"""Starts the inventory on a machine."""
