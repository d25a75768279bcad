"""Accept TLS connections, a bounded number at a time, for a server in the scheduler's process.

Every client that reaches the port may open connections. Each connection takes memory and the time of a handshake. So
one address gets only a share of the connections, unless a connection shows a client certificate that TLS has verified.
The API server and replicas show one. All other clients together get half of the connections. A connection beyond the
limits gets one answer, so that the client learns why. If there are too many of these, they are closed before the
handshake.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final, NoReturn, cast

import structlog

from berth_base import sockets

SHARE: Final = 4
"""One address gets at most a quarter of the connections, as long as it has not shown a certificate on them."""
WITHOUT_CERTIFICATE: Final = 2
"""All clients without a certificate get at most half of the connections, as their addresses may be many."""
MAX_REFUSED: Final = 32
"""Connections that wait for a refusal. Further connections are closed at once."""
SECONDS: Final = 10.0
"""Seconds for a handshake, and for the request of a refused connection."""
IPV4: Final = "::ffff:"
"""How the addresses of IPv4 clients begin on a socket that has both families."""
PAUSE_SECONDS: Final = 1.0
"""After a connection could not be accepted."""
LOG_SECONDS: Final = 60.0
"""Seconds between two log lines about refused connections."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Connections:
    """The connections of a server.

    Attributes:
        served: number of connections that are served, or in their handshake.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext,
        limit: int,
        serve: Callable[[], asyncio.Protocol],
        refusal: bytes,
        count_refused: Callable[[], None],
    ) -> None:
        """Create the connections of a server.

        Args:
            tls: the server's TLS settings.
            limit: connections that are served at once.
            serve: returns what answers a connection.
            refusal: what a connection beyond the limits gets after its first bytes.
            count_refused: called for each refused connection.
        """
        self._tls, self._limit, self._serve = tls, limit, serve
        self._refusal, self._count_refused = refusal, count_refused
        self.served = self._refused = 0
        self._unknown: Counter[str] = Counter()
        """Connections without a client certificate, by the address of the client."""
        self._without_certificate = 0
        """The same after their handshakes, of all addresses."""
        self._logged_at: float | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, address: str, port: int) -> AsyncIterator[int]:
        """Accept connections until the end, and yield the port; connections that are served then remain.

        Raises:
            OSError: the address and port cannot be listened on.
        """
        with sockets.listener(address, port) as listener:
            listener.settimeout(0)
            accepting = asyncio.create_task(self._accept(listener))
            try:
                yield int(listener.getsockname()[1])
            finally:
                for task in (accepting, *self._handshakes):
                    task.cancel()
                # The socket must not be closed while somebody waits for it.
                await asyncio.wait([accepting])

    async def _accept(self, listener: socket.socket) -> NoReturn:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except OSError as error:  # such as too many open files
                log.warning("connection not accepted", error=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            address = str(peer[0]).removeprefix(IPV4)
            if (answer := self._admit(address)) is None:
                accepted.close()
            else:
                handshake = loop.create_task(self._begin(accepted, address, answer))
                self._handshakes.add(handshake)
                handshake.add_done_callback(self._handshakes.discard)
            # One in each turn of the loop, however many there are.
            await asyncio.sleep(0)

    async def _begin(self, accepted: socket.socket, address: str, answer: asyncio.Protocol) -> None:
        """Do the handshake of a connection, and hand it over."""
        connection = _Connection(self, address, answer)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=SECONDS
            )
        except OSError as error:  # the client has gone, is too slow, or shows a certificate of no authority
            log.debug("handshake failed", address=address, error=str(error) or repr(error))
        finally:
            if not connection.has_begun:
                self.ended(address, answer, is_known=False, has_begun=False)

    def _admit(self, address: str) -> asyncio.Protocol | None:
        """Count a connection, and return what answers it; None if it must be closed at once."""
        if self.served < self._limit and self._unknown[address] < self._limit // SHARE:
            self.served += 1
            self._unknown[address] += 1
            return self._serve()
        self._report_refused(address)
        if self._refused >= MAX_REFUSED:
            return None
        self._refused += 1
        return Refusal(self._refusal)

    def _report_refused(self, address: str) -> None:
        self._count_refused()
        now = asyncio.get_running_loop().time()
        if self._logged_at is None or now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.warning("too many connections", address=address, served=self.served, limit=self._limit)

    def identified(self, address: str, answer: asyncio.Protocol) -> None:
        """Record that a connection has shown a certificate."""
        if not isinstance(answer, Refusal):
            self._unknown -= Counter((address,))

    def unidentified(self, address: str, answer: asyncio.Protocol) -> asyncio.Protocol:
        """Record that a connection has shown no certificate in its handshake, and return what answers it."""
        if isinstance(answer, Refusal):
            return answer
        if self._without_certificate < self._limit // WITHOUT_CERTIFICATE:
            self._without_certificate += 1
            return answer
        self.served -= 1
        self._unknown -= Counter((address,))
        self._report_refused(address)
        self._refused += 1
        return Refusal(self._refusal, SECONDS if self._refused <= MAX_REFUSED else 0.0)

    def ended(self, address: str, answer: asyncio.Protocol, *, is_known: bool, has_begun: bool = True) -> None:
        """Record the end of a connection."""
        if isinstance(answer, Refusal):
            self._refused -= 1
            return
        self.served -= 1
        if not is_known:
            self._unknown -= Counter((address,))
            self._without_certificate -= has_begun


class Refusal(asyncio.Protocol):
    """Answers the first bytes of a connection, and closes it, after some seconds at the latest."""

    def __init__(self, answer: bytes, seconds: float = SECONDS) -> None:
        self._answer, self._seconds = answer, seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a request: a client may drop an answer that comes before it."""
        self._transport = cast("asyncio.Transport", transport)
        self._ending = asyncio.get_running_loop().call_later(self._seconds, self._transport.abort)

    def data_received(self, _data: bytes) -> None:
        """Answer."""
        if not self._transport.is_closing():
            self._transport.write(self._answer)
            self._transport.close()

    def connection_lost(self, _error: Exception | None) -> None:
        """Clean up."""
        self._ending.cancel()


class _Connection(asyncio.Protocol):
    """One connection after its handshake: hands everything on, and counts its end.

    Attributes:
        has_begun: whether the handshake has ended well.
    """

    def __init__(self, connections: Connections, address: str, answer: asyncio.Protocol) -> None:
        self._connections, self._address, self._answer = connections, address, answer
        self.has_begun = self._is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.has_begun, self._is_known = True, bool(transport.get_extra_info("peercert"))
        if self._is_known:
            self._connections.identified(self._address, self._answer)
        else:
            self._answer = self._connections.unidentified(self._address, self._answer)
        self._answer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._answer.data_received(data)

    def eof_received(self) -> bool | None:
        return self._answer.eof_received()

    def pause_writing(self) -> None:
        self._answer.pause_writing()

    def resume_writing(self) -> None:
        self._answer.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._answer.connection_lost(error)
        self._connections.ended(self._address, self._answer, is_known=self._is_known)
