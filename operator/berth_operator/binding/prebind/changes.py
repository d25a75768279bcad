"""Wait for changes of the state during a bind, and the errors of the steps before a Binding."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Final

CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of what sends no event here: the term, the pod, the node."""


class PreBindError(Exception):
    """What must be written before a pod is bound could not be written."""


class GoneError(Exception):
    """The pod is gone or our term has ended, so there is nothing left to do."""


class Changes:
    """Wakes the binds that wait for a change of an object (namespace/name)."""

    def __init__(self) -> None:
        self.ended = False
        """Whether all waits shall end, because the process ends."""
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        """Object -> events to set when it changes."""

    def changed(self, key: str) -> None:
        """Wake the binds that wait for an object, because it changed."""
        for event in self._waiting.get(key, ()):
            event.set()

    def end(self) -> None:
        """Wake all."""
        self.ended = True
        for key in tuple(self._waiting):
            self.changed(key)

    async def wait_until(self, is_done: Callable[[], bool], objects: Collection[str]) -> None:
        """Wait until a condition holds. Check it when one of the objects changes, and each second.

        Raises what `is_done` raises.
        """
        event = asyncio.Event()
        for key in objects:
            self._waiting[key].add(event)
        try:
            while not is_done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_SECONDS):
                        await event.wait()
                event.clear()
        finally:
            for key in objects:
                self._waiting[key].discard(event)
                if not self._waiting[key]:
                    del self._waiting[key]
