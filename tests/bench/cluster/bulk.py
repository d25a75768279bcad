"""Bulk requests: thousands of objects, created 64 at a time or deleted as a collection."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

import aiohttp

from devcluster import Cluster, waiting
from tests.bench.cluster import aside

AT_ONCE: Final = 64
PAGE: Final = 500
DELETED_SECONDS: Final = 300.0
_REFUSED: Final = 400

Raw = Mapping[str, Any]


class Bulk:
    """Requests to a cluster as its administrator, many at a time; an asynchronous context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self.server = cluster.server
        self._cluster, self._open = cluster, contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = await self._open.enter_async_context(aside.session(self._cluster, limit=AT_ONCE))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()
        # An aborted transport closes its socket in the loop's next iteration.
        await asyncio.sleep(0)

    async def create(self, path: str, objects: Sequence[Raw]) -> None:
        """Create objects of one kind."""
        left = iter(objects)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(self._create_next(path, left))

    async def read_all(self, path: str) -> list[dict[str, Any]]:
        """Return everything under a path, read page by page."""
        items, more = [], ""
        while True:
            page = await self.request("GET", f"{path}?limit={PAGE}&continue={more}")
            items += page["items"]
            if not (more := page["metadata"].get("continue", "")):
                return items

    async def clear(self, path: str) -> None:
        """Delete everything under a path, and wait until it is gone."""
        await self.request("DELETE", path, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})

        async def is_empty() -> bool:
            return not (await self.request("GET", f"{path}?limit=1"))["items"]

        await waiting.until_async(is_empty, deadline=DELETED_SECONDS, what=f"{path} to be empty", poll=0.2)

    async def request(self, method: str, path: str, body: Raw | None = None) -> dict[str, Any]:
        """Send one request and return the answer."""
        async with self._session.request(method, self.server + path, json=body) as response:
            answer: dict[str, Any] = await response.json()
            if response.status >= _REFUSED:
                raise RuntimeError(f"{method} {path}: {response.status} {answer.get('message')}")
            return answer

    async def _create_next(self, path: str, left: Iterator[Raw]) -> None:
        for item in left:
            await self.request("POST", path, item)
