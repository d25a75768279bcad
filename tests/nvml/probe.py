"""What tests need to look at a machine with the agent's eyes."""

from collections.abc import Callable

from berth_agent.inventory import Reading
from berth_agent.nvml.inventory import NvmlInventory
from berth_agent.settings import Settings
from tests.nvml.fixture import NvmlFixture

NODE = "node-a"


class Probe:
    """The inventory of an agent on a machine."""

    def __init__(self, fixture: NvmlFixture) -> None:
        settings = Settings(node_name=NODE, nvml_library=fixture.library, sysfs_root=fixture.sysfs)
        self.inventory = NvmlInventory(settings)

    async def read(self) -> Reading:
        """Look at the machine."""
        return (await self.inventory.read())[NODE]


Machine = Callable[..., NvmlFixture]
"""Puts a machine with the given cards in force."""
Start = Callable[[NvmlFixture], Probe]
"""Starts the inventory on a machine."""
