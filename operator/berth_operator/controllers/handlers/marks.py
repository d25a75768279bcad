"""Pass marked objects from the scheduler's thread to the writer in kopf's thread."""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from berth_operator.state.cache.views import StatusKind

GATHER: Final = 0.05
"""Seconds for which marks are gathered, because each hand-over interrupts the scheduler's thread."""

Marked = tuple[StatusKind, str]


class Marks:
    """Marks objects whose status may need a write; used in the scheduler's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._hand_over: Callable[[Collection[Marked]], None] | None = None
        self._gathered: dict[Marked, None] = {}

    def open(self, hand_over: Callable[[Collection[Marked]], None]) -> None:
        """Begin to pass marks to `hand_over`; earlier marks are dropped."""
        self._hand_over = hand_over

    def mark(self, kind: StatusKind, name: str) -> None:
        """Mark an object, and pass it on within `GATHER` seconds."""
        if self._hand_over is None:
            return
        if not self._gathered:
            self._loop.call_later(GATHER, self._flush, self._hand_over)
        self._gathered[kind, name] = None

    def _flush(self, hand_over: Callable[[Collection[Marked]], None]) -> None:
        gathered, self._gathered = self._gathered, {}
        hand_over(gathered)
