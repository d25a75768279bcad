"""HTTP/1.1 for requests whose answers are read as a whole, fast enough for a thousand binds a second.

aiohttp takes 175 µs of processor time per request, this module 70 µs (docs/performance.md). The module implements only
what an API server needs: one request at a time on a keep-alive connection, no redirects, no cookies.
"""

import asyncio
import math
from dataclasses import dataclass
from typing import cast

import httptools

from berth_client.endpoints import Endpoint
from berth_client.errors import PageTooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole answer."""

    status: int
    retry_after: str | None
    payload: bytes


class ConnectionPool:
    """Connections to one server, at most `limit` of them."""

    def __init__(self, endpoint: Endpoint, *, limit: int) -> None:
        self._endpoint = endpoint
        self._turns = asyncio.Semaphore(limit)
        self._idle: list[_Connection] = []
        """Idle connections, the most recently used last. That one is reused first: the server may close unused ones."""

    async def exchange(self, request: bytes, seconds: float, most: float = math.inf) -> Response:
        """Send a request and return its answer, whose body has at most `most` bytes.

        Raises:
            PageTooLarge: the body has more bytes.
            OSError: there was no answer, or not in time (TimeoutError); the request may have been executed.
        """
        clock, reused_at = asyncio.get_running_loop().time, -math.inf
        try:
            async with asyncio.timeout(seconds), self._turns:
                if (connection := self._kept()) is not None:
                    reused_at = clock()
                else:
                    connection = await self._endpoint.connect(_Connection)
                try:
                    response = await connection.exchange(request, most)
                except BaseException:
                    # Otherwise the rest of this answer would be read as the answer to the next request.
                    connection.abort()
                    raise
                if connection.usable:
                    connection.answered_at = clock()
                    self._idle.append(connection)
                else:
                    connection.abort()
                return response
        except TimeoutError:
            self._end_silent(reused_at)
            raise

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().abort()

    def _end_silent(self, since: float) -> None:
        """Close the idle connections that have not answered since a request whose connection did not answer.

        If a load balancer or an API server is gone without a word, all of them are broken, and each would cost another
        request its whole time.
        """
        silent = [connection for connection in self._idle if connection.answered_at < since]
        self._idle = [connection for connection in self._idle if connection.answered_at >= since]
        for connection in silent:
            connection.abort()

    def _kept(self) -> "_Connection | None":
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        return None


class _Connection(asyncio.Protocol):
    """One request at a time; the parser calls the `on_` methods."""

    def __init__(self) -> None:
        self.usable = False
        self.answered_at = -math.inf
        """When it last answered, by the loop's clock."""
        self._parser = httptools.HttpResponseParser(self)
        self._response: asyncio.Future[Response] | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._most = math.inf
        self._retry_after: str | None = None

    async def exchange(self, request: bytes, most: float) -> Response:
        if not self.usable:
            raise ConnectionError("connection lost: closed by the server")
        self._response = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._retry_after = None
        self._size, self._most = 0, most
        self._transport.write(request)
        try:
            return await self._response
        finally:
            # An idle connection keeps no answer, which may be as large as a pod.
            self._response, self._body = None, []

    def abort(self) -> None:
        self.usable = False
        self._transport.abort()

    # --- called by the loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.usable = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            self.abort()  # an answer without a request
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"not HTTP: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._fail(ConnectionError(f"connection lost: {exc or 'closed by the server'}"))
        del self._parser  # as in `streams`

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)

    # --- called by the parser ---------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode(errors="replace")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size <= self._most:
            self._body.append(body)
        else:
            self._body.clear()
            self._fail(PageTooLarge(f"the answer has more than {self._most:g} bytes"))
            self.abort()

    def on_message_complete(self) -> None:
        self.usable = self._parser.should_keep_alive()
        if self._response is not None and not self._response.done():
            payload = b"".join(self._body)
            status = self._parser.get_status_code()
            self._response.set_result(Response(status=status, retry_after=self._retry_after, payload=payload))
