"""Whether binds are in flight, so that reports can wait for them.

An Event costs the API server as much as a bind, and is less urgent.
"""

import asyncio
import contextlib
from typing import Final

PATIENCE: Final = 8.0
"""Seconds that a report waits for binds at most, so that a pod has its Event within 10 s of its bind under any load."""


class InFlightBinds:
    """Counts the binds in flight."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Record that a bind was sent."""
        self._count += 1
        self._idle.clear()

    def end(self) -> None:
        """Record that a bind was answered."""
        self._count -= 1
        if not self._count:
            self._idle.set()

    @property
    def is_busy(self) -> bool:
        """Return whether any bind is in flight; safe in any thread."""
        return self._count > 0

    async def wait(self, seconds: float) -> None:
        """Wait until no bind is in flight, for `seconds` at most."""
        if seconds > 0 and not self._idle.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._idle.wait()
