"""Lists and watches objects of the API server, and lists again when a watch breaks."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Protocol

import structlog

from berth_agent.cluster import GONE, CallError

FIRST_RETRY: Final = 0.5
LAST_RETRY: Final = 30.0
"""Seconds between two tries; they double from the first to the last."""

Object = dict[str, Any]

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class ListerWatcher(Protocol):
    """What can be listed and watched, as client-go's ListerWatcher."""

    async def list(self, path: str, *, field: str) -> tuple[list[Object], str]:
        """List objects, with the version that they are of."""

    def watch(self, path: str, *, field: str, version: str) -> AsyncGenerator[Object, None]:
        """Yield what changes after a version."""


async def follow(
    source: ListerWatcher,
    path: str,
    *,
    field: str,
    listed: Callable[[list[Object], str], None],
    changed: Callable[[str, Object], None],
) -> None:
    """List and watch objects until cancelled.

    `listed` gets each list and its version, `changed` the type and object of each event.
    """
    clock = asyncio.get_running_loop().time
    pause = FIRST_RETRY
    while True:
        began = math.inf
        try:
            found, version = await source.list(path, field=field)
            listed(found, version)
            began = clock()
            await _watch(source, path, field=field, version=version, changed=changed)
        except CallError as error:
            # Back off if the API server allows list but not watch: relisting in a loop would overload it.
            pause = FIRST_RETRY if clock() - began > pause else pause
            _log.warning("not watched, will try again", path=path, only=field, error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_RETRY)


async def _watch(
    source: ListerWatcher, path: str, *, field: str, version: str, changed: Callable[[str, Object], None]
) -> None:
    """Follow one version after the other until the server has forgotten the last."""
    while True:
        try:
            async for event in source.watch(path, field=field, version=version):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    changed(event["type"], event["object"])
        except CallError as error:
            if error.status == GONE:
                return
            raise
