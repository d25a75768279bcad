"""One node's cards as NVIDIA's library shows them."""

from collections.abc import Mapping

from berth_agent.inventory import Reading
from berth_agent.settings import Settings


class NvmlInventory:
    """Readings of this node."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def read(self) -> Mapping[str, Reading]:
        """Look at all cards."""
        return {}

    def close(self) -> None:
        """Do nothing."""
