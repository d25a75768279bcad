"""Serve the metrics of a program over HTTP, in its loop.

Every client that reaches the port may send anything. So the connections, the size of a request and the time of an
answer are bounded, and no client can take the memory that the heartbeat needs. Each answer closes its connection.

Many addresses together may hold all connections. Then a new address gets the place of the oldest connection of the
address with the most, first of those that have sent no whole request. So Prometheus is always answered.
docs/decisions/libraries.md#servers-of-metrics compares libraries.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

from berth_base import sockets

PATH: Final = "/metrics"
MAX_CONNECTIONS: Final = 32
MAX_OF_PEER: Final = 4
"""Maximum number of connections of one address."""
MAX_REQUEST: Final = 8192
"""Bytes of a request's head; a body is not read."""
SECONDS: Final = 10.0
"""Longest time from a connection to its end, which is how long Prometheus waits."""
HEAD_END: Final = b"\r\n\r\n"

Render = Callable[[], Awaitable[bytes]]
Refuse = Callable[[str], Awaitable[tuple[int, str] | None]]
"""Returns the status and reason for which a request is refused, by its Authorization header; None if it is allowed."""
_AUTHORIZATION: Final = b"authorization"


async def _allow(_: str) -> None:
    return None


@contextlib.asynccontextmanager
async def serving(
    render: Render, *, address: str, port: int, refuse: Refuse = _allow, seconds: float = SECONDS
) -> AsyncIterator[int]:
    """Serve metrics until the end, and yield the port; 0 serves none. No connection lasts longer than the seconds.

    Raises:
        StartError: the address and port cannot be listened on.
    """
    if not port:
        yield port
        return
    listener = sockets.listener_of(f"--metrics-port {port}", address, port)
    server = await asyncio.start_server(_Connections(render, refuse, seconds).serve, sock=listener, limit=MAX_REQUEST)
    try:
        yield port
    finally:
        server.close()


@dataclass(slots=True, eq=False)
class _Connection:
    peer: str
    """The address of the client."""
    task: "asyncio.Task[None] | None"
    """What answers it."""
    is_answered: bool = False
    """Whether its request has come whole."""
    is_displaced: bool = False


class _Connections:
    """Answers connections, a bounded number at a time."""

    def __init__(self, render: Render, refuse: Refuse, seconds: float) -> None:
        self._render, self._refuse, self._seconds = render, refuse, seconds
        self._open: dict[_Connection, None] = {}
        """The oldest first."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        connection = _Connection(str((writer.get_extra_info("peername") or [""])[0]), asyncio.current_task())
        try:
            if self._admit(connection):
                async with asyncio.timeout(self._seconds):
                    try:
                        head = await reader.readuntil(HEAD_END)
                    except asyncio.LimitOverrunError:
                        writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
                    else:
                        connection.is_answered = True
                        line, _, headers = head.partition(b"\r\n")
                        writer.write(await self._response(line.decode("latin-1"), _authorization(headers)))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            # The client is too slow, or gone: to close would wait until it has read the answer.
            writer.transport.abort()
        except asyncio.CancelledError:
            writer.transport.abort()
            if not connection.is_displaced:
                raise
        finally:
            self._open.pop(connection, None)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def _admit(self, connection: "_Connection") -> bool:
        """Count a connection, and return whether it is served; another one may have to give up its place."""
        by_peer = Counter(one.peer for one in self._open)
        if by_peer[connection.peer] >= MAX_OF_PEER:
            return False
        if len(self._open) >= MAX_CONNECTIONS:
            # The first of equal values is the oldest.
            victim = max(self._open, key=lambda one: (not one.is_answered, by_peer[one.peer]))
            if by_peer[connection.peer] and by_peer[victim.peer] <= by_peer[connection.peer] + 1:
                return False
            self._displace(victim)
        self._open[connection] = None
        return True

    def _displace(self, victim: _Connection) -> None:
        """End a connection and the work for its answer, which would otherwise have no bound."""
        del self._open[victim]
        victim.is_displaced = True
        if victim.task is not None:
            victim.task.cancel()

    async def _response(self, line: str, authorization: str) -> bytes:
        method, _, rest = line.partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST)
        if target.partition("?")[0] != PATH:
            return _response(HTTPStatus.NOT_FOUND, f"metrics are served at {PATH}\n".encode())
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, allow="GET, HEAD")
        if (refusal := await self._refuse(authorization)) is not None:
            status, reason = refusal
            return _response(HTTPStatus(status), f"{reason}\n".encode())
        body = await self._render()
        return _response(HTTPStatus.OK, body, content_type=CONTENT_TYPE_LATEST, with_body=method == "GET")


def _authorization(headers: bytes) -> str:
    """Return the value of the Authorization header; empty if there is none."""
    for line in headers.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == _AUTHORIZATION:
            return value.strip().decode("latin-1")
    return ""


def _response(
    status: HTTPStatus,
    body: bytes = b"",
    *,
    content_type: str = "text/plain; charset=utf-8",
    allow: str = "",
    with_body: bool = True,
) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *([f"Allow: {allow}"] if allow else []),
        *(["WWW-Authenticate: Bearer"] if status == HTTPStatus.UNAUTHORIZED else []),
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + HEAD_END + (body if with_body else b"")
