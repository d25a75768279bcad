"""Lists in pages, at quorum. No `resourceVersion` is sent, so the API server reads its newest state."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, Final

from berth_client.objects import Object

PAGE: Final = 250
"""Objects per page: two pages of each kind are in memory at a time, and one of pods is decoded in some 10 ms."""

Fetch = Callable[[Mapping[str, str]], Coroutine[Any, Any, Object]]
"""Requests one page with these parameters."""


async def pages(fetch: Fetch, params: Mapping[str, str]) -> AsyncGenerator[Object, None]:
    """Yield the pages of a list. The server prepares the next page while the consumer reads the last one.

    Raises:
        CallError: a page cannot be read.
    """
    token, request = "first", asyncio.ensure_future(fetch(_with_limit(params)))
    try:
        while token:
            page = await request
            if token := page["metadata"].get("continue") or "":
                request = asyncio.ensure_future(fetch({**_with_limit(params), "continue": token}))
                await asyncio.sleep(0)  # lets it be sent: reading the page does not yield to the loop
            yield page
    finally:
        request.cancel()


def _with_limit(params: Mapping[str, str]) -> dict[str, str]:
    return {**params, "limit": str(PAGE)}
