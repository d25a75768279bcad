"""The bodies of requests, and how long a request may take, on a real server."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import cast

import pytest
from aiohttp import web

from berth_operator.apis.serving.bodies import MAX_WAITING, Bodies, BodyError, answer_in_time
from berth_operator.apis.serving.connections import Connections
from tests.component.apis.conftest import Run
from tests.component.apis.test_connections import until

MIB = 2**20
HOST = "127.0.0.1"
SOON = 30.0


class Site:
    """A server that returns the length of each body, after a pause that a request may name."""

    def __init__(self, bodies: Bodies, *, head_seconds: float = 10.0) -> None:
        self.bodies, self.head_seconds, self.port = bodies, head_seconds, 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["Site"]:
        application = web.Application(middlewares=[answer_in_time])
        application.router.add_post("/", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1, auto_decompress=False)
        await runner.setup()
        connections = Connections(
            tls=None,
            limit=64,
            of_address=64,
            without_certificate=64,
            serve=cast("web.Server", runner.server),
            refusal=b"",
            count_refused=lambda: None,
            head_seconds=self.head_seconds,
        )
        try:
            async with connections.listening(HOST, 0) as self.port:
                yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            size = await self.bodies.read(request, len)
            await asyncio.sleep(float(request.query.get("pause", "0")))
            return web.Response(text=str(size))
        except BodyError as error:
            return web.Response(status=error.status, text=str(error))

    async def post(
        self, announced: int, sent: int, *, number: int = 1, path: str = "/", head: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a part of a body from one of the addresses of loopback."""
        reader, writer = await asyncio.open_connection(HOST, self.port, local_addr=(f"127.0.0.{number}", 0))
        writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {announced}\r\n{head}\r\n".encode())
        writer.write(b"x" * sent)
        await writer.drain()
        return reader, writer


async def status(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(SOON):
        return int((await reader.readline()).split()[1])


async def until_in_flight(site: Site, size: int) -> None:
    await until(lambda: site.bodies.in_flight >= size)


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with Site(Bodies(seconds=0.3)).serving() as site:
        streams = [await site.post(8_000_000, 900_000) for _ in range(3)]
        assert [await status(reader) for reader, _ in streams] == [408] * 3
        assert site.bodies.in_flight == 0
        for _, writer in streams:
            writer.close()


@pytest.mark.parametrize(("announced", "sent"), [(MIB + 1, 0), (MIB, MIB)])
async def test_a_body_has_a_bound(announced: int, sent: int) -> None:
    async with Site(Bodies(max_bytes=MIB)).serving() as site:
        reader, writer = await site.post(announced, sent)
        assert await status(reader) == (200 if sent else 413)
        writer.close()
    assert site.bodies.in_flight == 0


async def test_the_address_with_the_most_bytes_gives_up_its_oldest_body() -> None:
    async with Site(Bodies(max_in_flight=4 * MIB)).serving() as site:
        large = [await site.post(2 * MIB, MIB, number=2) for _ in range(2)]
        await until_in_flight(site, 2 * MIB)
        other = await site.post(2 * MIB, 1_500_000, number=3)
        await until_in_flight(site, 2 * MIB + 1_500_000)
        # An API server's reviews, more than there is space for.
        reader, writer = await site.post(900_000, 900_000, number=4)
        assert await status(reader) == 200
        assert await status(large[0][0]) == 429
        assert site.bodies.in_flight == MIB + 1_500_000
        for _, each in (*large, other, (reader, writer)):
            each.close()


async def test_a_body_that_waits_for_its_answer_takes_no_space() -> None:
    async with Site(Bodies(max_in_flight=MIB)).serving() as site:
        first = [await site.post(MIB, MIB, number=2, path="/?pause=1") for _ in range(3)]
        await asyncio.sleep(0.3)
        reader, writer = await site.post(1000, 1000, number=3)
        assert await status(reader) == 200
        assert [await status(each) for each, _ in first] == [200] * 3
        for each in (writer, *(each for _, each in first)):
            each.close()


async def test_a_body_waits_for_space_where_no_other_is_to_be_given_up() -> None:
    async with Site(Bodies(max_in_flight=2 * MIB)).serving() as site:
        first, second = [await site.post(MIB + 300_000, MIB, number=2) for _ in range(2)]
        second[1].write(b"x" * 200_000)
        await until_in_flight(site, 2 * MIB + 1)
        first[1].write(b"x" * 300_000)
        assert await status(first[0]) == 200
        second[1].write(b"x" * 100_000)
        assert await status(second[0]) == 200
        for _, writer in (first, second):
            writer.close()


async def test_where_all_bodies_would_wait_one_goes_on() -> None:
    async with Site(Bodies(max_in_flight=4 * MIB)).serving() as site:
        streams = [await site.post(2 * MIB, MIB + 400_000, number=2) for _ in range(3)]
        for _, writer in streams:
            writer.write(b"x" * (MIB - 400_000))
        assert [await status(reader) for reader, _ in streams] == [200] * 3
        for _, writer in streams:
            writer.close()


async def test_a_body_that_finds_no_space_in_time_is_refused() -> None:
    async with Site(Bodies(max_in_flight=4 * MIB, seconds=1.0)).serving() as site:
        first = await site.post(2 * MIB, 1000, number=2)
        await asyncio.sleep(0.5)
        second = await site.post(5 * MIB, 4 * MIB - 1000, number=2)
        await until_in_flight(site, 4 * MIB)
        first[1].write(b"x" * 1000)
        assert [await status(reader) for reader, _ in (first, second)] == [429, 408]
        for _, writer in (first, second):
            writer.close()
    assert site.bodies.in_flight == 0


async def test_slow_bodies_make_space_for_a_larger_one_of_another_address() -> None:
    async with Site(Bodies(max_in_flight=8 * MIB, seconds=2.0)).serving() as site:
        slow = [await site.post(MIB, 700_000, number=number) for number in range(10, 21)]
        await until_in_flight(site, 11 * 700_000)
        reader, writer = await site.post(2 * MIB, 2 * MIB, number=2)
        assert await status(reader) == 200
        assert sorted({await status(each) for each, _ in slow}) == [408, 429]
        for _, each in (*slow, (reader, writer)):
            each.close()


async def test_few_bodies_wait() -> None:
    async with Site(Bodies(max_in_flight=MIB, seconds=60.0)).serving() as site:
        streams = [await site.post(MIB, MIB // 2, number=2) for _ in range(MAX_WAITING + 3)]
        await until_in_flight(site, MIB)
        answered = [asyncio.create_task(status(reader)) for reader, _ in streams]
        done, _ = await asyncio.wait(answered, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [429]
        for task, (_, writer) in zip(answered, streams, strict=True):
            task.cancel()
            writer.close()


@pytest.mark.parametrize(
    "request_text",
    [
        pytest.param(b"Content-Length: 5000\r\n\r\nxx", id="a part"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n5\r\nxx", id="a part of a chunk"),
    ],
)
async def test_a_client_that_goes_in_the_middle_of_a_body_is_not_logged(
    request_text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with Site(Bodies()).serving() as site:
        for _ in range(5):
            _, writer = await asyncio.open_connection(HOST, site.port)
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\n" + request_text)
            await asyncio.sleep(0.05)
            writer.transport.abort()
        reader, writer = await site.post(1, 1)
        assert await status(reader) == 200
        writer.close()
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.DEBUG] == []
    assert site.bodies.in_flight == 0


@pytest.mark.parametrize(("coding", "answer"), [("gzip", 415), ("deflate", 415), ("identity", 200)])
async def test_an_encoded_body_is_refused(coding: str, answer: int) -> None:
    async with Site(Bodies()).serving() as site:
        reader, writer = await site.post(10, 10, head=f"Content-Encoding: {coding}\r\n")
        assert await status(reader) == answer
        writer.close()


def test_half_a_head_is_given_up_and_a_slow_answer_is_not(run: Run) -> None:
    run(half_a_head_and_a_slow_answer())


async def half_a_head_and_a_slow_answer() -> None:
    # A busy machine may take long between a connection and its head.
    head_seconds = 2.0
    async with Site(Bodies(), head_seconds=head_seconds).serving() as site:
        half = await asyncio.open_connection(HOST, site.port)
        half[1].write(b"POST / HTTP/1.1\r\nHost: a\r\n")
        reader, writer = await site.post(10, 10, path=f"/?pause={1.5 * head_seconds}")
        async with asyncio.timeout(SOON):
            with contextlib.suppress(ConnectionError):
                assert await half[0].read() == b""
        assert await status(reader) == 200
        # The connection stays for further requests, whose heads have the same time.
        await asyncio.sleep(1.5 * head_seconds)
        await reader.readuntil(b"10")
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        assert await status(reader) == 200
        writer.write(b"POST / HT")
        async with asyncio.timeout(SOON):
            with contextlib.suppress(ConnectionError):
                await reader.read()
        for each in (writer, half[1]):
            each.close()
