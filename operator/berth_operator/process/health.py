"""Whether the operator works: its watches, and the progress of its scheduling loop."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from berth_client.reflector import Reflector

STUCK_SECONDS: Final = 60.0
"""Seconds without a turn of the scheduling loop after which liveness fails."""
SILENT_SECONDS: Final = 600.0
"""Seconds without news on a watch after which liveness fails; bookmarks come every minute, broken watches continue."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Watches:
    """All watches of the process; their number changes with the configuration."""

    def __init__(self, *groups: Callable[[], Mapping[str, Reflector]]) -> None:
        """Watch the reflectors that the functions in `groups` return, each by a name that no other has."""
        self._groups = groups

    def all(self) -> dict[str, Reflector]:
        """Return the reflectors by their names."""
        return {name: reflector for group in self._groups for name, reflector in group().items()}

    def ages(self) -> Mapping[str, float]:
        """Return for each watch the seconds since it was last heard."""
        return {name: reflector.last_event_age() for name, reflector in self.all().items()}

    async def synced(self) -> None:
        """Wait for the first lists of all kinds, because decisions need the complete state."""
        while waiting := {name: reflector for name, reflector in self.all().items() if not reflector.is_synced}:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await next(iter(waiting.values())).synced.wait()
                    continue
            log.warning("not synced yet, nothing is decided", waiting=list(waiting))


def problem(*, idle_seconds: float, ages: Mapping[str, float]) -> str:
    """Return a leader's problem; empty if there is none.

    `idle_seconds` is the time since the last turn of the scheduling loop. `ages` has the time since each watch last
    received something.
    """
    if idle_seconds > STUCK_SECONDS:
        return f"the scheduling loop has not run for {idle_seconds:.0f} s; allowed are {STUCK_SECONDS:.0f}"
    silent = [name for name, age in ages.items() if age > SILENT_SECONDS]
    return f"nothing heard about {', '.join(silent)}" if silent else ""
