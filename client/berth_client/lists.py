"""Lists in pages, at quorum. No `resourceVersion` is sent, so the API server reads its newest state.

`limit` counts objects, and Kubernetes has no bound in bytes: 250 pods may have 375 MB. So the client reads a page with
several objects only up to a number of bytes. A larger page is broken off, and requested again with half the objects.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Final

from berth_client.errors import PageTooLarge
from berth_client.objects import Object

PAGE: Final = 250
"""Most objects of a page: two pages of each kind are in memory at a time, and one of pods is decoded in some 10 ms."""

GROWS_AFTER: Final = 4
"""Pages in a row that were read whole, after which the next one may have twice the objects. An attempt that is too
large costs a request, so at most one request in five is in vain."""

Fetch = Callable[[Mapping[str, str]], Coroutine[Any, Any, Object]]
"""Requests one page with these parameters; raises `PageTooLarge` only if `limit` is above 1."""


class PageLimit:
    """How many objects the next page may have, learned from the pages so far."""

    def __init__(self) -> None:
        self.objects = PAGE
        self._whole = 0
        """Pages that were read whole, since the number changed."""

    @property
    def is_reduced(self) -> bool:
        """Return whether a page was too large recently."""
        return self.objects < PAGE

    def page_read(self) -> None:
        """Record that a page was small enough."""
        self._whole += 1
        if self._whole == GROWS_AFTER:
            self.objects, self._whole = min(2 * self.objects, PAGE), 0

    def page_broken(self) -> None:
        """Record that a page was too large."""
        self.objects, self._whole = max(self.objects // 2, 1), 0


class StreamedLists:
    """The kinds that the API server does not stream. It is asked once for each, as long as the program runs."""

    def __init__(self) -> None:
        self._refused: set[str] = set()
        """Paths, as many as there are sources of reflectors."""

    def may(self, path: str) -> bool:
        """Return whether the server has not refused to stream the collection at a path."""
        return path not in self._refused

    def refuse(self, path: str) -> None:
        """Record that the server does not stream the collection at a path."""
        self._refused.add(path)


async def pages(
    fetch: Fetch, params: Mapping[str, str], limit: PageLimit | None = None
) -> AsyncGenerator[Object, None]:
    """Yield the pages of a list. The server prepares the next page while the consumer reads the last one.

    After a page that was too large, the next one is requested only when the consumer has read the last one.

    Args:
        fetch: requests a page.
        params: `fieldSelector`, `labelSelector`.
        limit: what was learned from earlier pages of the same list.

    Raises:
        CallError: a page cannot be read.
    """
    limit = limit or PageLimit()
    request = asyncio.ensure_future(_page(fetch, params, "", limit))
    try:
        while True:
            page = await request
            token = page["metadata"].get("continue") or ""
            if is_ahead := bool(token) and not limit.is_reduced:
                request = asyncio.ensure_future(_page(fetch, params, token, limit))
                await asyncio.sleep(0)  # lets it be sent: reading the page does not yield to the loop
            yield page
            del page  # or it would stay until the next one arrives, as in a consumer that keeps it
            if not token:
                return
            if not is_ahead:
                request = asyncio.ensure_future(_page(fetch, params, token, limit))
    finally:
        request.cancel()


async def _page(fetch: Fetch, params: Mapping[str, str], token: str, limit: PageLimit) -> Object:
    """Return a page, with as many objects as can be read."""
    of_token = {"continue": token} if token else {}
    while True:
        try:
            page = await fetch({**params, "limit": str(limit.objects), **of_token})
        except PageTooLarge:
            limit.page_broken()
        else:
            limit.page_read()
            return page
