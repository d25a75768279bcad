"""Accept connections, a bounded number at a time, for a server of the operator.

Every client that reaches the port may open connections. Each connection takes memory and the time of a handshake. So
one address gets only a share of the connections, unless a connection shows a client certificate that TLS has verified.
API servers show one to aggregated APIs, kube-scheduler shows one to the extender, and replicas show one to each other.
All other clients together get a part of the connections.

API servers show no certificate to webhooks, and a client without one is known only by its address. If there is no
place for a new connection, another one is closed, in the order of `State`: a silent one, then an idle one, of any
address. A new one, and then one that is being answered, is closed only for an address that has none, or fewer. None
that is being answered is closed while as many are new. In each state, the address with the most loses its oldest.

Other connections beyond the limits get one answer, so that the client learns why. If there are too many of these, they
are closed before the handshake. A connection that sends no whole head of a request in time is closed, too.
"""

import asyncio
import contextlib
import enum
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterator
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
"""Seconds for a handshake, for the head of a request, and for the request of a refused connection."""
IDLE_SECONDS: Final = 75.0
"""Seconds after a request in which the client takes the rest of the answer, and sends the head of the next request."""
NEW_SHARE: Final = 0.3
"""A connection is new for this share of the seconds for a head, and silent after it, if it has sent no whole head."""
IPV4: Final = "::ffff:"
"""How the addresses of IPv4 clients begin on a socket that has both families."""
PAUSE_SECONDS: Final = 1.0
"""After a connection could not be accepted."""
LOG_SECONDS: Final = 60.0
"""Seconds between two log lines about refused connections."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class State(enum.IntEnum):
    """What a connection does. The first states are closed first, if there is no place for a new connection."""

    SILENT = 0
    """It has sent no whole head in some seconds."""
    IDLE = 1
    """Its requests are answered."""
    NEW = 2
    """It has sent no whole head yet."""
    ANSWERED = 3
    """A request is being answered, or the client has not read the answer."""


class Connections:
    """The connections of a server.

    Attributes:
        served: number of connections that are served, or in their handshake.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None,
        limit: int,
        serve: Callable[[], asyncio.Protocol],
        refusal: bytes,
        count_refused: Callable[[], None],
        of_address: int | None = None,
        without_certificate: int | None = None,
        head_seconds: float = SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """Create the connections of a server.

        Args:
            tls: the server's TLS settings; None for plain connections.
            limit: connections that are served at once.
            serve: returns what answers a connection.
            refusal: what a connection beyond the limits gets after its first bytes.
            count_refused: called for each refused connection.
            of_address: connections of one address without a certificate; by default a quarter of the limit.
            without_certificate: connections of all clients without one; by default half of the limit.
            head_seconds: seconds for the head of a request.
            idle_seconds: seconds between two requests, and for reading an answer.
        """
        self._tls, self._limit, self._serve = tls, limit, serve
        self._refusal, self._count_refused = refusal, count_refused
        self._of_address = limit // SHARE if of_address is None else of_address
        self._max_unknown = limit // WITHOUT_CERTIFICATE if without_certificate is None else without_certificate
        self.head_seconds: Final = head_seconds
        self.idle_seconds: Final = idle_seconds
        self.served = self._refused = 0
        self._unknown: dict[_Connection, None] = {}
        """Connections without a client certificate, the oldest first."""
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
            if (connection := self._admit(address)) is None:
                accepted.close()
            else:
                handshake = loop.create_task(self._begin(accepted, connection))
                connection.handshake = handshake
                self._handshakes.add(handshake)
                handshake.add_done_callback(self._handshakes.discard)
            # One in each turn of the loop, however many there are.
            await asyncio.sleep(0)

    async def _begin(self, accepted: socket.socket, connection: "_Connection") -> None:
        """Do the handshake of a connection, and hand it over."""
        seconds = None if self._tls is None else SECONDS
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
            )
        except OSError as error:  # the client has gone, is too slow, or shows a certificate of no authority
            log.debug("handshake failed", address=connection.address, error=str(error) or repr(error))
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            if not connection.has_begun:
                self.ended(connection)

    def _admit(self, address: str) -> "_Connection | None":
        """Count a connection, and return what answers it; None if it must be closed at once."""
        own = [one for one in self._unknown if one.address == address]
        if len(own) >= self._of_address:
            has_place = self._displace(address, own)
        else:
            has_place = self.served < self._limit or self._displace(address, self._unknown)
        if has_place:
            self.served += 1
            admitted = _Connection(self, address, self._serve())
            self._unknown[admitted] = None
            return admitted
        self._report_refused(address)
        if self._refused >= MAX_REFUSED:
            return None
        self._refused += 1
        return _Connection(self, address, Refusal(self._refusal))

    def _displace(self, address: str, candidates: "Collection[_Connection]") -> bool:
        """Close one of the candidates for a new connection of an address, and return whether that made a place."""
        by_state: defaultdict[State, list[_Connection]] = defaultdict(list)
        for candidate in candidates:
            by_state[candidate.state].append(candidate)
        own = 0  # silent and idle ones do not count
        for state in State:
            of_address = Counter(candidate.address for candidate in by_state[state])
            if state >= State.NEW:
                own += of_address[address]
            victim = max(by_state[state], key=lambda one: (of_address[one.address], -one.since), default=None)
            if victim is not None and (not own or of_address[victim.address] > own + 1):
                self._report_refused(victim.address)
                victim.displace()
                return True
            if state is State.NEW and len(by_state[State.NEW]) >= len(by_state[State.ANSWERED]):
                break  # a flood of new ones ends no answer
        return False

    def _report_refused(self, address: str) -> None:
        self._count_refused()
        now = asyncio.get_running_loop().time()
        if self._logged_at is None or now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            log.warning("too many connections", address=address, served=self.served, limit=self._limit)

    def identified(self, connection: "_Connection") -> None:
        """Record that a connection has shown a certificate."""
        self._unknown.pop(connection, None)

    def unidentified(self, connection: "_Connection") -> asyncio.Protocol:
        """Record that a connection has shown no certificate in its handshake, and return what answers it."""
        if isinstance(connection.answer, Refusal):
            return connection.answer
        others = [one for one in self._unknown if one.has_begun and one is not connection]
        if self._without_certificate < self._max_unknown or self._displace(connection.address, others):
            self._without_certificate += 1
            return connection.answer
        self.served -= 1
        del self._unknown[connection]
        self._report_refused(connection.address)
        self._refused += 1
        return Refusal(self._refusal, SECONDS if self._refused <= MAX_REFUSED else 0.0)

    def ended(self, connection: "_Connection") -> None:
        """Record the end of a connection."""
        if connection.is_over:
            return
        connection.is_over = True
        if isinstance(connection.answer, Refusal):
            self._refused -= 1
            return
        self.served -= 1
        if not connection.is_known:
            self._unknown.pop(connection, None)
            self._without_certificate -= connection.has_begun


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
    """One connection: hands everything on after the handshake, and counts its end.

    Attributes:
        address: the client's.
        answer: what answers it.
        has_begun: whether the handshake has ended well.
        is_known: whether it has shown a client certificate.
        is_over: whether its end is counted.
        since: when it was accepted, or when its last request began or was answered, in seconds of the loop's clock.
        handshake: what waits for the handshake.
    """

    def __init__(self, connections: Connections, address: str, answer: asyncio.Protocol) -> None:
        self._connections, self.address, self.answer = connections, address, answer
        self.has_begun = self.is_known = self.is_over = False
        self.handshake: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._ending: asyncio.TimerHandle | None = None
        """Ends the connection if no whole head of a request comes in time."""
        self._has_data = True
        """Whether a head has begun since the last answer."""
        self._requests = 0
        """Requests that are being answered."""
        self._has_answered = self._is_unread = False
        self.since = asyncio.get_running_loop().time()

    @property
    def state(self) -> State:
        """What it does now."""
        if self._requests or self._is_unread:
            return State.ANSWERED
        if self._has_answered:
            return State.IDLE
        is_new = asyncio.get_running_loop().time() - self.since < NEW_SHARE * self._connections.head_seconds
        return State.NEW if is_new else State.SILENT

    def displace(self) -> None:
        """Close it at once, for another connection."""
        self._connections.ended(self)
        if self._transport is not None:
            self._transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Wait for no head of a request meanwhile."""
        loop = asyncio.get_running_loop()
        self._cancel_ending()
        self._requests += 1
        self.since = loop.time()
        try:
            yield
        finally:
            self._requests -= 1
            self._has_answered, self.since = True, loop.time()
            if not self._requests and not self.is_over:
                # Nothing shows whether a part of the next head is here. It gets no more time than an idle connection.
                self._has_data = False
                self._end_in(self._connections.idle_seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.is_over:  # it was displaced, and its handshake ended before the cancellation came
            self.answer = asyncio.Protocol()
            self._transport.abort()
            return
        self.has_begun, self.is_known = True, bool(transport.get_extra_info("peercert"))
        if self.is_known:
            self._connections.identified(self)
        else:
            self.answer = self._connections.unidentified(self)
        self._end_in(self._connections.head_seconds)
        self.answer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._requests and not self._has_data:
            self._has_data = True
            self._end_in(self._connections.head_seconds)
        self.answer.data_received(data)

    def eof_received(self) -> bool | None:
        return self.answer.eof_received()

    def pause_writing(self) -> None:
        self._is_unread = True
        self.answer.pause_writing()

    def resume_writing(self) -> None:
        self._is_unread = False
        self.answer.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._cancel_ending()
        self.answer.connection_lost(error)
        self._connections.ended(self)

    def _end_in(self, seconds: float) -> None:
        assert self._transport is not None  # noqa: S101 - it is connected
        self._cancel_ending()
        self._ending = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _cancel_ending(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None


def answering(transport: asyncio.BaseTransport | None) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a request is answered whose head has come; other transports have no bound."""
    # uvloop's transports are no instances of asyncio.Transport.
    protocol = None if transport is None else transport.get_protocol()
    return protocol.answering() if isinstance(protocol, _Connection) else contextlib.nullcontext()


def peer_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of a client; empty if it is not known."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]).removeprefix(IPV4) if peer else ""
