"""Test servers that run in their own thread and event loop, so that synchronous tests can use them."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Self

START_SECONDS: Final = 20.0


class Background:
    """A server in its own thread, as a context manager; `_serve` calls `_is_ready`, and runs until `_stop`."""

    def __init__(self, *, name: str) -> None:
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def __enter__(self) -> Self:
        """Start listening."""
        self._thread.start()
        self._started.result(START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server; requests under way are dropped."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        raise NotImplementedError

    def _is_ready(self) -> None:
        self._started.set_result(None)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        await self._serve()
        # aiohttp forgets the connection of a request that is cancelled while it connects; only the loop knows of it.
        transports: Mapping[int, asyncio.WriteTransport] = self._loop._transports  # type: ignore[attr-defined]
        for transport in list(transports.values()):
            transport.abort()
