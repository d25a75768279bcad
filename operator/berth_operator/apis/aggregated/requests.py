"""Handle every request to an aggregated API: authenticate it, and answer failures as Status objects.

A client that reads its watch too slowly is disconnected. For each client the server holds only the kernel's buffer and
one write buffer.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import orjson
import structlog
from aiohttp import web

from berth_client.errors import CallError
from berth_client.reviews import User
from berth_operator.apis.aggregated.statuses import StatusError, not_found, too_many, unavailable
from berth_operator.apis.aggregated.watch import Watch, Write
from berth_operator.apis.serving.connections import answering

WATCH_SECONDS: Final = (1800.0, 3600.0)
"""Range of a watch's duration, if the client names none; drawn at random, so that watches do not all end at once."""
JSON: Final = "application/json"
PART: Final = 2**17
"""Bytes of a list that are written at once."""
REQUEST_CONNECTIONS: Final = 112
"""Connections in addition to the connections of watches. Each API server keeps up to 25 idle connections."""
PROBES: Final = ("/healthz", "/livez", "/readyz")
USER: Final = web.RequestKey("user", User)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What clients may take."""

    watches: int
    watches_of_user: int
    """One user cannot take all watches."""
    write_seconds: float = 10.0
    """Seconds for which the client of a watch may stop reading."""


class OpenWatches:
    """Counts the watches that are served.

    Attributes:
        by_user: user -> number of watches.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.by_user: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self.by_user.values())

    @contextlib.contextmanager
    def one_of(self, user: str) -> Iterator[None]:
        """Count a watch of a user.

        Raises:
            StatusError: there are too many.
        """
        if len(self) >= self._limits.watches or self.by_user.get(user, 0) >= self._limits.watches_of_user:
            raise too_many("too many watches, try again later")
        self.by_user[user] = self.by_user.get(user, 0) + 1
        try:
            yield
        finally:
            self.by_user[user] -= 1
            if not self.by_user[user]:
                del self.by_user[user]


async def answer(
    request: web.Request, handler: Handler, authenticate: Callable[[web.Request], Awaitable[User]]
) -> web.StreamResponse:
    """Authenticate, handle the request, and return every failure as a Status; probes need no user."""
    with answering(request.transport):
        return await _answer(request, handler, authenticate)


async def _answer(
    request: web.Request, handler: Handler, authenticate: Callable[[web.Request], Awaitable[User]]
) -> web.StreamResponse:
    try:
        if request.path not in PROBES:
            request[USER] = await authenticate(request)
        return await handler(request)
    except StatusError as failure:
        return refusal(failure)
    except CallError as error:
        return refusal(unavailable(f"the API server does not answer: {error}"))
    except web.HTTPException as error:
        code = HTTPStatus(error.status)
        if code is HTTPStatus.NOT_FOUND:
            refused = not_found("the server could not find the requested resource")
        elif code is HTTPStatus.METHOD_NOT_ALLOWED:
            message = f"the server does not allow {request.method} on the requested resource"
            refused = StatusError(code, "MethodNotAllowed", message)
        elif code is HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            # Python 3.13 has another name for it than Kubernetes.
            refused = StatusError(code, "RequestEntityTooLarge", error.reason or code.phrase)
        else:
            refused = StatusError(code, code.phrase.replace(" ", ""), error.reason or code.phrase)
        return refusal(refused)


async def serve_watch(
    request: web.Request, watch: Watch, write_seconds: float, pace: Callable[[Write], Write] = lambda write: write
) -> web.StreamResponse:
    """Serve a watch until its time is over, the client disconnects, or it cannot continue.

    `pace` may delay its writes.
    """
    response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
    await response.prepare(request)

    async def write(data: bytes) -> None:
        async with asyncio.timeout(write_seconds):
            await response.write(data)

    try:
        await watch.run(pace(write))
    except (TimeoutError, ConnectionError) as error:
        log.info("watch closed", path=request.path, user=request[USER].name, error=str(error) or "slow reader")
        if request.transport is not None:
            request.transport.abort()
    return response


async def send_list(
    request: web.Request, body: bytes, write_seconds: float, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Send a list in parts, so that a client that does not read keeps it in memory only for `write_seconds`."""
    if len(body) <= PART or request.method == "HEAD":
        return as_json(body, headers=headers)
    response = web.StreamResponse(headers={"Content-Type": JSON, "Content-Length": str(len(body)), **(headers or {})})
    await response.prepare(request)
    try:
        for first in range(0, len(body), PART):
            async with asyncio.timeout(write_seconds):
                await response.write(body[first : first + PART])
    except (TimeoutError, ConnectionError) as error:
        log.info("list broken off", path=request.path, user=request[USER].name, error=str(error) or "slow reader")
        if request.transport is not None:
            request.transport.abort()
    return response


def duration(seconds: float) -> float:
    """Return the length of a watch whose client requests `seconds`; 0 means no particular length."""
    return seconds or random.uniform(*WATCH_SECONDS)  # noqa: S311 - no secret


def as_json(body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer."""
    return web.Response(body=body, status=status, content_type=JSON, headers=headers)


def refusal(failure: StatusError) -> web.Response:
    """Return the answer of a request that fails."""
    headers = {"Retry-After": str(failure.retry_after)} if failure.retry_after else {}
    return as_json(orjson.dumps(failure.status), failure.code, headers)


def raw_refusal(failure: StatusError) -> bytes:
    """Return the same as bytes, for a connection that is not served."""
    body = orjson.dumps(failure.status)
    lines = (
        f"HTTP/1.1 {failure.code} {failure.code.phrase}",
        f"Content-Type: {JSON}",
        f"Content-Length: {len(body)}",
        f"Retry-After: {failure.retry_after}",
        "Connection: close",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + body
