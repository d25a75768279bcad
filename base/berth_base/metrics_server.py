"""Serve the metrics of a program over HTTP, in its loop.

Every client that reaches the port may send anything. So the connections, the size of a request and the time of an
answer are bounded, and no client can take the memory that the heartbeat needs. Each answer closes its connection.
docs/decisions/0030-metrics-server.md compares libraries.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

from berth_base import sockets

PATH: Final = "/metrics"
MAX_CONNECTIONS: Final = 32
MAX_OF_PEER: Final = 4
"""Maximum number of connections of one address, so that one pod cannot keep Prometheus out."""
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


class _Connections:
    """Answers connections, a bounded number at a time."""

    def __init__(self, render: Render, refuse: Refuse, seconds: float) -> None:
        self._render, self._refuse, self._seconds = render, refuse, seconds
        self._open: Counter[str] = Counter()
        """Connections by the address of the client."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        peer = str((writer.get_extra_info("peername") or [""])[0])
        self._open[peer] += 1
        try:
            if self._open.total() <= MAX_CONNECTIONS and self._open[peer] <= MAX_OF_PEER:
                async with asyncio.timeout(self._seconds):
                    try:
                        head = await reader.readuntil(HEAD_END)
                    except asyncio.LimitOverrunError:
                        writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
                    else:
                        line, _, headers = head.partition(b"\r\n")
                        writer.write(await self._response(line.decode("latin-1"), _authorization(headers)))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            # The client is too slow, or gone: to close would wait until it has read the answer.
            writer.transport.abort()
        finally:
            self._open -= Counter((peer,))
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

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
