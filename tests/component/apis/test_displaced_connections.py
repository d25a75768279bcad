"""Which connections a full server closes for new ones, and when it closes idle ones, on both kinds of event loop."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

from aiohttp import web

from berth_operator.apis.serving import connections
from berth_operator.apis.serving.bodies import answer_in_time
from berth_operator.apis.serving.connections import NEW_SHARE, Connections
from tests.component.apis.conftest import Run
from tests.component.apis.test_connections import until
from tests.stand_ins.certificates import Authority

HOST = "127.0.0.1"
LIMIT = 8
API_SERVER = 250
"""The last number of its address."""
SOON = 10.0
OK, REFUSED = 200, 429
TURNS = 12

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Site:
    """A plain server that answers quick requests at once, and slow ones after an event."""

    def __init__(
        self,
        *,
        limit: int = LIMIT,
        of_address: int | None = None,
        head_seconds: float = connections.SECONDS,
        idle_seconds: float = connections.IDLE_SECONDS,
    ) -> None:
        self.finish, self.port = asyncio.Event(), 0
        self.answered = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._limit, self._of_address = limit, limit if of_address is None else of_address
        self._head_seconds, self._idle_seconds = head_seconds, idle_seconds

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Site"]:
        application = web.Application(middlewares=[answer_in_time])
        application.router.add_get("/quick", self._quick)
        application.router.add_get("/slow", self._slow)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        self.connections = Connections(
            tls=None,
            limit=self._limit,
            of_address=self._of_address,
            without_certificate=self._limit,
            serve=cast("web.Server", runner.server),
            refusal=b"HTTP/1.1 429 Too Many Requests\r\n\r\n",
            count_refused=lambda: None,
            head_seconds=self._head_seconds,
            idle_seconds=self._idle_seconds,
        )
        try:
            async with self.connections.listening(HOST, 0) as self.port:
                yield self
        finally:
            self.finish.set()
            for writer in self._writers:
                writer.transport.abort()
                writer.close()
            await runner.cleanup()

    async def _quick(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _slow(self, _: web.Request) -> web.Response:
        self.answered += 1
        await self.finish.wait()
        return web.Response()

    async def open(self, number: int, path: str = "", more: str = "") -> Stream:
        """Open a connection from one of the addresses of loopback, and send a request, if a path is given."""
        reader, writer = await asyncio.open_connection(HOST, self.port, local_addr=(f"127.0.0.{number}", 0))
        self._writers.append(writer)
        if path:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n{more}".encode())
        return reader, writer

    async def open_idle(self, number: int) -> Stream:
        stream = await self.open(number, "/quick")
        assert await status(stream) == OK
        return stream

    async def open_slow(self, number: int) -> Stream:
        """Return once the request is being answered."""
        before = self.answered
        stream = await self.open(number, "/slow")
        await until(lambda: self.answered > before)
        return stream


async def status(stream: Stream) -> int:
    async with asyncio.timeout(SOON):
        head = await stream[0].readuntil(b"\r\n\r\n")
    return int(head.split()[1])


async def closed(stream: Stream) -> bool:
    """Return whether a connection ends."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(SOON):
            await stream[0].read()
    return True


def is_open(stream: Stream) -> bool:
    return not stream[0].at_eof() and stream[0].exception() is None


def test_idle_connections_of_many_addresses_keep_no_client_out(run: Run) -> None:
    async def check() -> None:
        async with Site().serving() as site:
            idle = [await site.open_idle(number) for number in range(2, 2 + LIMIT)]
            reviews = [await site.open(API_SERVER, "/slow") for _ in range(LIMIT // 2)]
            await until(lambda: site.answered == len(reviews))
            site.finish.set()
            assert [await status(review) for review in reviews] == [OK] * len(reviews)
            for stream in idle[: LIMIT // 2]:
                assert await closed(stream)
            assert all(is_open(stream) for stream in idle[LIMIT // 2 :])

    run(check())


def test_requests_that_are_answered_stay_while_others_open_connections(run: Run) -> None:
    async def check() -> None:
        limit = 32
        async with Site(limit=limit).serving() as site:
            reviews = [await site.open_slow(API_SERVER) for _ in range(8)]
            idle = [await site.open_idle(API_SERVER) for _ in range(4)]
            for number in range(2, 12):
                for _ in range(4):
                    await site.open(number)
            for stream in idle:
                assert await closed(stream)
            site.finish.set()
            assert [await status(review) for review in reviews] == [OK] * len(reviews)

    run(check())


def test_an_address_takes_requests_from_one_that_has_more_of_them(run: Run) -> None:
    async def check() -> None:
        async with Site().serving() as site:
            held = [await site.open_slow(2) for _ in range(LIMIT)]
            reviews = [await site.open_slow(API_SERVER) for _ in range(LIMIT // 2)]
            for stream in held[: LIMIT // 2]:
                assert await closed(stream)
            assert await status(await site.open(API_SERVER, "/quick")) == REFUSED
            site.finish.set()
            assert [await status(stream) for stream in reviews] == [OK] * len(reviews)

    run(check())


def test_an_address_gives_up_its_own_idle_connections(run: Run) -> None:
    async def check() -> None:
        async with Site(of_address=2).serving() as site:
            answered, idle = await site.open_slow(2), await site.open_idle(2)
            new = await site.open_slow(2)
            assert await closed(idle)
            assert await status(await site.open(2, "/quick")) == REFUSED
            site.finish.set()
            assert [await status(answered), await status(new)] == [OK, OK]

    run(check())


def test_a_silent_connection_is_closed_before_idle_ones(run: Run) -> None:
    async def check() -> None:
        head_seconds = 3.0
        async with Site(head_seconds=head_seconds).serving() as site:
            idle = [await site.open_idle(2) for _ in range(LIMIT - 1)]
            silent = await site.open(3)
            await until(lambda: site.connections.served == LIMIT)
            await asyncio.sleep(head_seconds * NEW_SHARE)
            assert await status(await site.open(API_SERVER, "/quick")) == OK
            assert await closed(silent)
            assert all(is_open(stream) for stream in idle)

    run(check())


def test_half_a_head_after_a_request_is_given_up_like_an_idle_connection(run: Run) -> None:
    async def check() -> None:
        async with Site(idle_seconds=0.3).serving() as site:
            for more in ("", "GET /quick HT"):
                stream = await site.open(2, "/quick", more)
                assert await status(stream) == OK
                assert await closed(stream)
            await until(lambda: site.connections.served == 0)

    run(check())


def test_a_handshake_that_ends_while_it_is_displaced_is_counted_once(run: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue(HOST))
    errors: list[str] = []

    async def check() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context)))
        served = Connections(
            tls=tls,
            limit=1,
            of_address=1,
            without_certificate=1,
            serve=asyncio.Protocol,
            refusal=b"",
            count_refused=lambda: None,
        )
        async with served.listening(HOST, 0) as port:
            # In one of these turns the displaced handshake ends before its task is cancelled.
            for turns in range(TURNS):
                with client_from(2) as first, client_from(3) as second:
                    first.connect((HOST, port))
                    last = await all_but_the_end(first, authority.client())
                    second.connect((HOST, port))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    with contextlib.suppress(ConnectionError):
                        first.send(last)
                    await asyncio.sleep(0.02)
                await until(lambda: not served.served)
                assert (served._refused, served._without_certificate, len(served._unknown), errors) == (0, 0, 0, [])

    run(check())


def client_from(number: int) -> socket.socket:
    client = socket.socket()
    client.bind((f"127.0.0.{number}", 0))
    return client


async def all_but_the_end(client: socket.socket, context: ssl.SSLContext) -> bytes:
    """Do a handshake without the client's last flight, and return it."""
    client.settimeout(0)
    loop, incoming, outgoing = asyncio.get_running_loop(), ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=HOST)
    while True:
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            await loop.sock_sendall(client, outgoing.read())
            received = await loop.sock_recv(client, 2**16)
            assert received, "the server has closed the connection"
            incoming.write(received)
        else:
            return outgoing.read()
