"""Read the bodies of requests, a bounded number of bytes at a time.

Every client that reaches the port may send anything, or only a part of what it announced. If all bodies together
exceed their bound, the body that is furthest behind a fixed pace is given up. If all others keep the pace, the address
with the most bytes in incomplete bodies loses its oldest one, or waits if the new bytes are its own. So the small
bodies of an API server are read, however many bytes other addresses hold.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeVar

import structlog
from aiohttp import ClientError, hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from berth_operator.apis.serving.connections import answering, peer_of

MAX_BYTES: Final = 8 * 2**20
"""Bytes of a body. An object on the API server has 1.5 MiB, and a review has it twice."""
MAX_IN_FLIGHT: Final = 32 * 2**20
"""Bytes of all bodies. Beyond them, one body may go on where all others wait, and each of these holds a chunk."""
SECONDS: Final = 10.0
"""Seconds for a body to arrive."""
IDENTITY: Final = "identity"
"""The content coding of plain bytes."""
MAX_WAITING: Final = 32
"""Bodies that wait for others to end. Each holds a chunk."""
PAUSE_SECONDS: Final = 0.02
"""While a body waits."""

Parsed = TypeVar("Parsed")
log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class BodyError(Exception):
    """A body is not read. The text shows why.

    Attributes:
        status: the HTTP status to answer.
    """

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True, eq=False)
class _Body:
    address: str
    begun: float
    """Loop time; later by the time for which it has waited."""
    size: int = 0
    reading: asyncio.Timeout | None = None
    """Its deadline; None once it is complete."""
    is_displaced: bool = False
    waits_since: float | None = None


class Bodies:
    """The bodies of a server's requests.

    Attributes:
        in_flight: bytes of all bodies.
    """

    def __init__(
        self, *, max_bytes: int = MAX_BYTES, max_in_flight: int = MAX_IN_FLIGHT, seconds: float = SECONDS
    ) -> None:
        """Set the bounds of a body, of all bodies, and of the time in which a body arrives."""
        self._max_bytes, self._max_in_flight, self._seconds = max_bytes, max_in_flight, seconds
        self._pace = max_in_flight / seconds
        """Bytes per second of a body. A body that is slower may be given up for others."""
        self.in_flight = 0
        self._bodies: dict[_Body, None] = {}
        """The oldest first."""

    async def read(self, request: web.Request, parse: Callable[[bytes], Parsed]) -> Parsed:
        """Return what is parsed from the body of a request, which must not hold the body.

        The body counts until then, so an answer that waits for other programs takes no space.

        Raises:
            BodyError: the body is encoded, too large, too slow, incomplete, or there is no space for it.
        """
        if request.headers.get(hdrs.CONTENT_ENCODING, IDENTITY).lower() != IDENTITY:
            raise BodyError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")
        if (request.content_length or 0) > self._max_bytes:
            raise self._too_large()
        body = _Body(peer_of(request.transport), asyncio.get_running_loop().time())
        self._bodies[body] = None
        try:
            return parse(await self._received(body, request))
        finally:
            del self._bodies[body]
            self._count(body, -body.size)

    async def _received(self, body: _Body, request: web.Request) -> bytes:
        try:
            async with asyncio.timeout(self._seconds) as body.reading:
                received = await self._chunks(body, request)
        except TimeoutError as error:
            if body.is_displaced or body.waits_since is not None:
                raise self._too_many() from error
            raise BodyError(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not arrive within {self._seconds:g} s"
            ) from error
        except (ConnectionError, ClientError, HttpProcessingError) as error:
            log.debug("body not received", address=body.address, error=str(error) or repr(error))
            raise BodyError(HTTPStatus.BAD_REQUEST, "the body is not complete") from error
        body.reading = None
        return received

    async def _chunks(self, body: _Body, request: web.Request) -> bytes:
        chunks = []
        async for chunk in request.content.iter_any():
            chunks.append(chunk)
            self._count(body, len(chunk))
            if body.size > self._max_bytes:
                raise self._too_large()
            # What has come whole takes least if it goes on.
            if self.in_flight > self._max_in_flight and not request.content.is_eof():
                await self._make_space(body)
        return b"".join(chunks)

    def _count(self, body: _Body, size: int) -> None:
        body.size += size
        self.in_flight += size

    async def _make_space(self, newest: _Body) -> None:
        """Drop bodies, or wait, until all together are within the bound. One body always goes on.

        Raises:
            BodyError: too many bodies wait.
        """
        loop = asyncio.get_running_loop()
        while self.in_flight > self._max_in_flight:
            if (victim := self._victim(newest, loop.time())) is not None:
                victim.is_displaced = True
                self._count(victim, -victim.size)
                assert victim.reading is not None  # noqa: S101 - it is incomplete
                victim.reading.reschedule(loop.time())
                continue
            others = [body for body in self._incomplete() if body is not newest]
            waiting = sum(body.waits_since is not None for body in others)
            if waiting == len(others):
                break
            if newest.waits_since is None:
                if waiting >= MAX_WAITING:
                    raise self._too_many()
                newest.waits_since = loop.time()
            await asyncio.sleep(PAUSE_SECONDS)
        if newest.waits_since is not None:
            newest.begun += loop.time() - newest.waits_since
            newest.waits_since = None

    def _victim(self, newest: _Body, now: float) -> _Body | None:
        """Return the body to give up for the newest one; None if that must wait.

        The newest may be behind its pace only because the loop was busy.
        """

        def lag(body: _Body) -> float:
            """Return how many bytes a body is behind its pace."""
            until = now if body.waits_since is None else body.waits_since
            return self._pace * (until - body.begun) - body.size

        incomplete, of_address = self._incomplete(), Counter[str]()
        for body in incomplete:
            of_address[body.address] += body.size
        slowest = max(incomplete, key=lag, default=newest)
        if slowest is not newest and lag(slowest) > 0:
            return slowest
        # The first of equal values is the oldest.
        largest = max(incomplete, key=lambda body: of_address[body.address], default=newest)
        return None if largest.address == newest.address else largest

    def _incomplete(self) -> list[_Body]:
        """Return the bodies that are to be received further."""
        return [
            body
            for body in self._bodies
            if body.reading is not None and not body.reading.expired() and not body.is_displaced
        ]

    def _too_large(self) -> BodyError:
        return BodyError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {self._max_bytes} bytes, which is the most"
        )

    def _too_many(self) -> BodyError:
        return BodyError(HTTPStatus.TOO_MANY_REQUESTS, "too many bytes of requests at once, try again later")


@web.middleware
async def answer_in_time(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer a request whose head has come; `Connections` closes connections on which none comes."""
    with answering(request.transport):
        return await handler(request)
