"""TLS connections on both kinds of event loop: how many are served, and what others get."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from berth_operator.apis.serving import connections
from berth_operator.apis.serving.connections import MAX_REFUSED, Connections
from tests.component.apis.conftest import Run
from tests.stand_ins.certificates import Authority

LIMIT = 8
OF_ADDRESS = LIMIT // connections.SHARE
REFUSAL = b"too many"
GREETING = b"hello"
GONE = (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


class Site:
    """A server, and clients with and without a certificate."""

    def __init__(self, folder: Path, head_seconds: float = connections.SECONDS) -> None:
        authority = Authority(folder)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(authority.issue("127.0.0.1"))
        tls.verify_mode = ssl.CERT_OPTIONAL
        tls.load_verify_locations(authority.file)
        # A client of TLS 1.3 learns only later that its certificate was refused.
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
        self.known, self.unknown = authority.client(authority.issue("client")), authority.client()
        self.foreign = authority.client(Authority(folder, "another").issue("client"))
        self.refused = self.port = 0
        self.connections = Connections(
            tls=tls,
            limit=LIMIT,
            serve=Echo,
            refusal=REFUSAL,
            count_refused=self._count,
            head_seconds=head_seconds,
        )

    def _count(self) -> None:
        self.refused += 1

    async def open(self, tls: ssl.SSLContext | None) -> Stream:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)

    async def open_from(self, number: int, *, is_plain: bool = False) -> Stream:
        """Open a connection without a certificate, or without TLS, from one of the addresses of loopback."""
        tls = None if is_plain else self.unknown
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, local_addr=(f"127.0.0.{number}", 0))

    async def answer(self, tls: ssl.SSLContext) -> bytes:
        """Return what a new connection gets, and close it."""
        reader, writer = await self.open(tls)
        writer.write(GREETING)
        try:
            return await reader.readexactly(len(GREETING))
        finally:
            close(writer)


def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once; an aborted stream still warns that it was not closed."""
    writer.transport.abort()
    writer.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.01)


def test_one_address_gets_a_share_without_a_certificate_and_all_with_one(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        site = Site(tmp_path)
        async with site.connections.listening("127.0.0.1", 0) as site.port:
            streams = [await site.open(site.unknown) for _ in range(OF_ADDRESS)]
            await until(lambda: site.connections.served == OF_ADDRESS)
            assert await site.answer(site.unknown) == REFUSAL[: len(GREETING)]
            assert site.refused == 1
            close(streams.pop()[1])
            await until(lambda: site.connections.served < OF_ADDRESS)
            for number in range(OF_ADDRESS, LIMIT + 1):
                streams.append(await site.open(site.known))
                await until(lambda count=number: site.connections.served == count)  # type: ignore[misc]
            assert await site.answer(site.known) == REFUSAL[: len(GREETING)]
            reader, writer = streams[-1]
            writer.write(GREETING)
            assert await reader.readexactly(len(GREETING)) == GREETING
            for _, writer in streams:
                close(writer)
            await until(lambda: site.connections.served == 0)
            assert await site.answer(site.unknown) == GREETING

    run(check())


def test_clients_without_a_certificate_leave_half_of_the_connections_to_the_others(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        site = Site(tmp_path)
        async with site.connections.listening("127.0.0.1", 0) as site.port:
            streams = [await site.open_from(number) for number in range(2, 2 + LIMIT)]
            await until(lambda: site.refused == LIMIT // 2)
            assert site.connections.served == LIMIT // 2
            assert await site.answer(site.known) == GREETING
            for _, writer in streams:
                close(writer)
            await until(lambda: site.connections.served == 0)
            assert await site.answer(site.unknown) == GREETING

    run(check())


def test_a_new_address_gets_the_place_of_the_address_with_the_most(run: Run, tmp_path: Path) -> None:
    """Test what an API server without a certificate needs: many pods hold all connections."""

    async def check() -> None:
        site = Site(tmp_path)
        async with site.connections.listening("127.0.0.1", 0) as site.port:
            held = [await site.open_from(number) for number in (2, 3) for _ in range(OF_ADDRESS)]
            await until(lambda: site.connections.served == LIMIT // 2)
            assert await site.answer(site.unknown) == GREETING
            assert site.connections.served <= LIMIT // 2
            # Only the oldest was closed.
            assert await closed(held[0])
            for reader, writer in held[1:]:
                writer.write(GREETING)
                assert await reader.readexactly(len(GREETING)) == GREETING
                close(writer)
            close(held[0][1])
            await until(lambda: site.connections.served == 0)

    run(check())


def test_a_new_address_gets_the_place_of_a_handshake_that_does_not_begin(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        site = Site(tmp_path)
        async with site.connections.listening("127.0.0.1", 0) as site.port:
            held = [await site.open_from(number, is_plain=True) for number in range(2, 6) for _ in range(OF_ADDRESS)]
            await until(lambda: site.connections.served == LIMIT)
            assert await site.answer(site.known) == GREETING
            assert await site.answer(site.unknown) == GREETING
            for _, writer in held:
                close(writer)
            await until(lambda: site.connections.served == 0)

    run(check())


def test_a_connection_without_a_whole_head_is_closed_and_one_that_is_answered_is_not(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        site = Site(tmp_path, head_seconds=0.3)
        async with site.connections.listening("127.0.0.1", 0) as site.port:
            silent, half = await site.open(site.unknown), await site.open(site.unknown)
            half[1].write(b"GET / HT")
            async with asyncio.timeout(30):
                assert await closed(silent)
                assert await half[0].read() == b"GET / HT"
            await until(lambda: site.connections.served == 0)
            for _, writer in (silent, half):
                close(writer)

    run(check())


async def closed(stream: Stream) -> bool:
    try:
        return await stream[0].read() == b""
    except ConnectionError:
        return True


def test_handshakes_that_fail_or_do_not_begin_are_counted_until_they_end(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        site = Site(tmp_path)
        async with site.connections.listening("127.0.0.1", 0) as site.port:
            with pytest.raises(GONE):
                await site.answer(site.foreign)
            await until(lambda: site.connections.served == 0)
            silent = [await site.open(None) for _ in range(OF_ADDRESS)]
            await until(lambda: site.connections.served == OF_ADDRESS)
            assert await site.answer(site.unknown) == REFUSAL[: len(GREETING)]
            for _, writer in silent:
                close(writer)
            await until(lambda: site.connections.served == 0)
            assert await site.answer(site.unknown) == GREETING

    run(check())


def test_connections_that_do_not_take_their_refusal_are_few(run: Run, tmp_path: Path) -> None:
    async def check() -> None:
        site = Site(tmp_path)
        async with site.connections.listening("127.0.0.1", 0) as site.port:
            streams = [await site.open(None) for _ in range(OF_ADDRESS + MAX_REFUSED)]
            await until(lambda: site.refused == MAX_REFUSED)
            with pytest.raises(GONE):
                await site.answer(site.known)
            assert site.refused == MAX_REFUSED + 1
            for _, writer in streams:
                close(writer)
            await until(lambda: site.connections.served == 0)
            assert await site.answer(site.unknown) == GREETING

    run(check())


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - with a socket for both families
def test_an_ipv4_client_is_logged_by_its_ipv4_address(run: Run, tmp_path: Path, address: str) -> None:
    async def check() -> None:
        site = Site(tmp_path)
        async with site.connections.listening(address, 0) as site.port:
            streams = [await site.open(None) for _ in range(OF_ADDRESS + 1)]
            await until(lambda: site.refused == 1)
            for _, writer in streams:
                close(writer)
            await until(lambda: site.connections.served == 0)

    with capture_logs() as logs:
        run(check())
    [line] = [line for line in logs if line["event"] == "too many connections"]
    assert line["address"] == "127.0.0.1"
