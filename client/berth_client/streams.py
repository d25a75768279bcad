"""HTTP/1.1 for watches, whose answers are read as they arrive. Each watch has its own connection."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final, cast

import httptools

from berth_client.endpoints import Endpoint

HIGH_WATER: Final = 2**18
"""Unread bytes beyond which the connection stops reading, so that the server has to wait."""


class StreamPool:
    """Opens streams to one server, at most `limit` at a time."""

    def __init__(self, endpoint: Endpoint, *, limit: int) -> None:
        self._endpoint = endpoint
        self._turns = asyncio.Semaphore(limit)

    @contextlib.asynccontextmanager
    async def open(self, request: bytes, seconds: float) -> AsyncIterator["_Stream"]:
        """Send a request and wait for the head of its answer; the connection is closed at the end of the block.

        Raises:
            OSError: there was no answer, or not in time (TimeoutError).
        """
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(seconds):
                await stack.enter_async_context(self._turns)
                stream = await self._endpoint.connect(_Stream)
                stack.callback(stream.abort)
                await stream.send(request)
            yield stream


class _Stream(asyncio.Protocol):
    """One request and its answer; the parser calls the `on_` methods."""

    def __init__(self) -> None:
        self.status = 0
        self.retry_after: str | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._is_complete = False
        self._failure = ""
        self._arrived = asyncio.Event()

    async def send(self, request: bytes) -> None:
        """Send the request and wait until `status` is known.

        Raises:
            OSError: there is no answer.
        """
        self._transport.write(request)
        while not self.status:
            await self._wait()

    async def chunks(self, idle_seconds: float) -> AsyncGenerator[bytes, None]:
        """Yield the answer's body as it arrives.

        Raises:
            OSError: the answer broke off, or nothing arrived for `idle_seconds` (TimeoutError).
        """
        while self._chunks or not self._is_complete:
            async with asyncio.timeout(idle_seconds):
                while not self._chunks and not self._is_complete:
                    await self._wait()
            chunk = b"".join(self._chunks)
            self._chunks, self._size = [], 0
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()
            yield chunk

    def abort(self) -> None:
        """Close the connection."""
        self._transport.abort()

    async def _wait(self) -> None:
        if self._failure:
            raise ConnectionError(self._failure)
        self._arrived.clear()
        await self._arrived.wait()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._arrived.set()

    # --- called by the loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"connection lost: {exc or 'closed by the server'}")
        del self._parser  # it refers to this object: both, with TLS's buffers, would wait for the collector

    # --- called by the parser ---------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value.decode(errors="replace")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._arrived.set()

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)
        self._size += len(body)
        if self._size > HIGH_WATER and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._arrived.set()

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._arrived.set()


async def lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Split chunks at newlines; empty lines and a last line without a newline are left out."""
    pending: list[bytes] = []
    async for chunk in chunks:
        for line in _complete(pending, chunk):
            yield line
            del line
        del chunk  # or it would stay until the next one arrives, as the line would


def _complete(pending: list[bytes], chunk: bytes) -> Iterator[bytes]:
    """Yield the lines that a chunk completes; what comes after them is `pending` then."""
    first, *others = chunk.split(b"\n")
    pending.append(first)
    for start in others:
        line = b"".join(pending)
        pending[:] = [start]
        if line:
            yield line
