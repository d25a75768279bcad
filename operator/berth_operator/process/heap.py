"""Return free pages of the heap to the system once a minute.

glibc itself returns only the end of the heap. Free pages between blocks in use stay resident. While pods arrive and
leave, the number of these pages grows for hours, though the bytes in use do not (docs/performance-resources.md has
figures).
"""

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

PERIOD: Final = 60.0
"""Seconds between two calls of malloc_trim, each 7 ms at 100 MiB, 40 at 1 GiB: the event loop waits if it allocates."""


async def run(period: float = PERIOD) -> None:
    """Return free pages every `period` seconds, until cancelled; return at once if libc is not glibc."""
    # malloc_trim(3), which takes the bytes to keep at the end of the heap.
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        await asyncio.sleep(period)
        await asyncio.to_thread(trim, 0)
