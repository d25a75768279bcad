"""HTTP/1.1 for requests whose answers are read whole: what a thousand binds a second are sent with.

aiohttp takes 175 µs of processor time a request, this 70 (docs/performance.md). It knows what an API server needs and
no more: one request at a time on a kept connection, no redirects, no cookies, no proxy.
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

import httptools


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    retry_after: str | None
    payload: bytes


class Wire:
    """Connections to one server, at most `limit` of them."""

    def __init__(
        self, *, host: str, port: int, tls: ssl.SSLContext | None, server_name: str | None, limit: int
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._server_name = (server_name or host) if tls else None
        self._turns = asyncio.Semaphore(limit)
        self._idle: list[_Connection] = []
        """The last used comes last, and is used first: the others may be closed by the server, unneeded."""

    async def exchange(self, request: bytes, seconds: float) -> Answer:
        """Send a request and give its answer.

        Raises:
            OSError: there was none, or not in time (TimeoutError); the request may have been executed.
        """
        async with asyncio.timeout(seconds), self._turns:
            connection = self._kept() or await self._open()
            try:
                answer = await connection.exchange(request)
            except BaseException:
                # What is still to come would be taken for the next request's answer.
                connection.abort()
                raise
            if connection.usable:
                self._idle.append(connection)
            return answer

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().abort()

    def _kept(self) -> "_Connection | None":
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        return None

    async def _open(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, self._host, self._port, ssl=self._tls, server_hostname=self._server_name
        )
        return connection


class _Connection(asyncio.Protocol):
    """One request at a time; the parser calls the `on_` methods."""

    def __init__(self) -> None:
        self.usable = False
        self._answer: asyncio.Future[Answer] | None = None
        self._body: list[bytes] = []
        self._retry_after: str | None = None

    async def exchange(self, request: bytes) -> Answer:
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._retry_after = [], None
        self._transport.write(request)
        return await self._answer

    def abort(self) -> None:
        self.usable = False
        self._transport.abort()

    # --- called by the loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.usable = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._fail(f"connection lost: {exc}")

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(why))

    # --- called by the parser ---------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self._retry_after = value.decode(errors="replace")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.usable = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            payload = b"".join(self._body)
            status = self._parser.get_status_code()
            self._answer.set_result(Answer(status=status, retry_after=self._retry_after, payload=payload))
