"""Whether binds are under way: what can wait lets them go first.

To the API server an Event costs as much as a bind, and nobody waits for it.
"""

import asyncio
import contextlib
from typing import Final

PATIENCE: Final = 8.0
"""Seconds that a report waits at most, so that a pod has its Event 10 s after its bind in the longest storm."""


class InFlightBinds:
    """Counts binds under way."""

    def __init__(self) -> None:
        self._under_way = 0
        self._calm = asyncio.Event()
        self._calm.set()

    def begin(self) -> None:
        """One more bind is under way."""
        self._under_way += 1
        self._calm.clear()

    def end(self) -> None:
        """A bind has its answer."""
        self._under_way -= 1
        if not self._under_way:
            self._calm.set()

    @property
    def is_busy(self) -> bool:
        """Return whether any bind is under way; may be asked by any thread."""
        return self._under_way > 0

    async def wait(self, seconds: float) -> None:
        """Wait until no bind is under way, or so long."""
        if seconds > 0 and not self._calm.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._calm.wait()
