"""The HTTP server: what it answers, and what a client cannot take from it."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from berth_base import metrics_server as server
from berth_base.metrics_server import MAX_CONNECTIONS, MAX_OF_PEER, MAX_REQUEST
from berth_base.start import StartError

ADDRESS = "127.0.0.1"
TEXT = b"berth_gpu_info 1.0\n"
SOON = 30.0
"""Seconds for an answer on a busy machine."""


async def render() -> bytes:
    return TEXT


def free_port() -> int:
    with socket.create_server((ADDRESS, 0)) as free:
        port: int = free.getsockname()[1]
    return port


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with server.serving(render, address=ADDRESS, port=free_port()) as number:
        yield number


async def ask(port: int, request: bytes) -> bytes:
    """Return the answer until the server closes the connection."""
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    try:
        writer.write(request)
        async with asyncio.timeout(SOON):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        await close(writer)


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def get(path: str = "/metrics", method: str = "GET", version: str = "HTTP/1.1") -> bytes:
    return f"{method} {path} {version}\r\nHost: a\r\nAccept: text/plain\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("request_text", "status", "body"),
    [
        pytest.param(get(), b"200 OK", TEXT, id="metrics"),
        pytest.param(get("/metrics?x=y"), b"200 OK", TEXT, id="a query is ignored"),
        pytest.param(get(version="HTTP/1.0"), b"200 OK", TEXT, id="HTTP 1.0"),
        pytest.param(get(method="HEAD"), b"200 OK", b"", id="HEAD"),
        pytest.param(get("/"), b"404 Not Found", b"metrics are served at /metrics\n", id="another path"),
        pytest.param(get(method="POST"), b"405 Method Not Allowed", b"", id="another method"),
        pytest.param(get(version="HTTP/2"), b"400 Bad Request", b"", id="another version"),
        pytest.param(b"\x16\x03\x01\r\n\r\n", b"400 Bad Request", b"", id="TLS"),
        pytest.param(
            b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 2 * MAX_REQUEST,
            b"431 Request Header Fields Too Large",
            b"",
            id="too long",
        ),
        pytest.param(get("/" + "a" * MAX_REQUEST), b"431 Request Header Fields Too Large", b"", id="a long path"),
    ],
)
async def test_each_request_gets_one_answer_and_the_end(
    port: int, request_text: bytes, status: bytes, body: bytes
) -> None:
    head, _, answered = (await ask(port, request_text)).partition(b"\r\n\r\n")
    assert head.splitlines()[0] == b"HTTP/1.1 " + status
    assert b"Connection: close" in head
    assert answered == body


async def test_an_answer_says_that_it_is_prometheus_text(port: int) -> None:
    assert b"Content-Type: text/plain; version=" in await ask(port, get())


async def test_the_connections_of_one_client_are_bounded_and_those_that_end_make_room(port: int) -> None:
    idle = [await asyncio.open_connection(ADDRESS, port) for _ in range(MAX_OF_PEER)]
    assert await ask(port, get()) == b""
    for _, writer in idle:
        await close(writer)
    async with asyncio.timeout(SOON):
        while not (await ask(port, get())).endswith(TEXT):
            pass


async def test_many_addresses_cannot_keep_prometheus_out(port: int) -> None:
    idle = [
        await asyncio.open_connection(ADDRESS, port, local_addr=(f"127.0.0.{number}", 0))
        for number in range(2, 2 + 2 * MAX_CONNECTIONS)
    ]
    for _ in range(3):
        assert (await ask(port, get())).endswith(TEXT)
    for _, writer in idle:
        await close(writer)


async def test_connections_that_are_being_answered_keep_their_places() -> None:
    """Test that new connections take the places of those that have sent no request."""
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def render_slowly() -> bytes:
        begun.release()
        await may_end.wait()
        return TEXT

    async with server.serving(render_slowly, address=ADDRESS, port=free_port()) as port:
        answers = [asyncio.create_task(ask(port, get())) for _ in range(MAX_OF_PEER)]
        async with asyncio.timeout(SOON):
            for _ in answers:
                await begun.acquire()
        idle = [
            await asyncio.open_connection(ADDRESS, port, local_addr=(f"127.0.0.{number}", 0))
            for number in range(2, 2 + 2 * MAX_CONNECTIONS)
        ]
        may_end.set()
        assert [answer.endswith(TEXT) for answer in await asyncio.gather(*answers)] == [True] * MAX_OF_PEER
        for _, writer in idle:
            await close(writer)


async def test_a_connection_that_loses_its_place_ends_the_work_for_its_answer() -> None:
    working = most = 0

    async def refuse(_: str) -> tuple[int, str] | None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        try:
            await asyncio.sleep(SOON)
        finally:
            working -= 1
        return None

    async with server.serving(render, address=ADDRESS, port=free_port(), refuse=refuse) as port:
        clients = []
        for number in range(2, 2 + 3 * MAX_CONNECTIONS):
            _, writer = await asyncio.open_connection(ADDRESS, port, local_addr=(f"127.0.0.{number}", 0))
            writer.write(get())
            clients.append(writer)
        await asyncio.sleep(0.5)
        assert (working, most <= MAX_CONNECTIONS + 1) == (MAX_CONNECTIONS, True)
        for writer in clients:
            await close(writer)


async def test_a_client_that_sends_nothing_more_is_hung_up_on() -> None:
    async with server.serving(render, address=ADDRESS, port=free_port(), seconds=0.1) as port:
        assert await ask(port, b"GET /metrics HTTP/1.1\r\n") == b""


async def test_a_client_that_does_not_read_is_hung_up_on() -> None:
    async def render_much() -> bytes:
        return TEXT * 10**6

    async def send_forever(client: socket.socket) -> None:
        while True:
            await loop.sock_sendall(client, get())

    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.settimeout(0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with server.serving(render_much, address=ADDRESS, port=free_port(), seconds=0.1) as port:
            await loop.sock_connect(client, (ADDRESS, port))
            # Writes succeed until the server has reset the connection: nothing waits to be read any more.
            async with asyncio.timeout(SOON):
                with pytest.raises(ConnectionError):
                    await send_forever(client)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        pytest.param(ADDRESS, "address already in use", id="taken"),
        pytest.param("192.0.2.1", "cannot assign requested address", id="not of this machine"),
    ],
)
async def test_where_it_cannot_listen_the_error_names_option_and_address(address: str, problem: str) -> None:
    with socket.create_server((ADDRESS, 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(StartError) as error:
            async with server.serving(render, address=address, port=number):
                pass
    assert str(error.value) == f"--metrics-port {number} on {address}: {problem}"


async def test_port_0_serves_nothing() -> None:
    async with server.serving(render, address=ADDRESS, port=0) as port:
        assert port == 0


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        ("", b"HTTP/1.1 401 Unauthorized"),
        ("Authorization: Bearer bad\r\n", b"HTTP/1.1 401 Unauthorized"),
        ("AUTHORIZATION:Bearer good\r\n", b"HTTP/1.1 200 OK"),
        ("X-Authorization: Bearer good\r\n", b"HTTP/1.1 401 Unauthorized"),
    ],
)
async def test_who_may_not_read_them_gets_the_reason(head: str, answer: bytes) -> None:
    async def refuse(authorization: str) -> tuple[int, str] | None:
        return None if authorization == "Bearer good" else (401, "a bearer token is required")

    async with server.serving(render, address=ADDRESS, port=free_port(), refuse=refuse) as number:
        response = await ask(number, f"GET /metrics HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode())
    assert response.startswith(answer)
    assert (b"WWW-Authenticate: Bearer" in response) == (b"401" in answer)
    assert (TEXT in response) == (b"200" in answer)
