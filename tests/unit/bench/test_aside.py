"""Work that runs during a benchmark ends in order, whether the benchmark or the work itself ends first."""

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.bench import aside
from tests.bench.aside import Aside
from tests.certificates import Authority

HEADERS = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


class Ended(Aside):
    """Ends by itself at once."""

    def __init__(self, name: str = "ended") -> None:
        super().__init__(name, deadline=60.0)
        self.is_over = threading.Event()

    @property
    def is_ready(self) -> bool:
        return self.is_over.is_set()

    async def work(self) -> None:
        self.is_over.set()


class Endless(Aside):
    """Waits in two tasks until it is cancelled."""

    def __init__(self) -> None:
        super().__init__("endless", deadline=60.0)
        self.begun = 0
        self.cancelled = 0

    @property
    def is_ready(self) -> bool:
        return self.begun == 2

    async def work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(self._wait())

    async def _wait(self) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


class Failing(Ended):
    """Fails at once."""

    def __init__(self) -> None:
        super().__init__("failing")

    async def work(self) -> None:
        raise ConnectionResetError


def test_work_that_ended_by_itself_is_closed_in_order() -> None:
    # It is closed while its loop still lets sockets close: an error of the thread would fail this test.
    for _ in range(5):
        with Ended() as work:
            pass
        work.check()


def test_all_tasks_of_the_work_are_cancelled() -> None:
    with Endless() as work:
        pass
    work.check()
    assert work.cancelled == 2


def test_work_that_fails_is_reported_when_it_is_opened() -> None:
    with pytest.raises(RuntimeError, match="failing of the benchmark ended") as error, Failing():
        pass
    assert isinstance(error.value.__cause__, ConnectionResetError)


def test_a_watch_leaves_no_connection_though_the_server_answers_no_shutdown(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def watch(port: int) -> None:
        connector = aiohttp.TCPConnector(ssl=authority.client())
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            aside.watch(session, f"https://127.0.0.1:{port}/", {}) as response,
        ):
            assert await response.content.read(1) == b"x"

    with _silent_server(authority) as port:
        asyncio.run(watch(port))
        # Warnings are errors here, also those of what was not closed.
        gc.collect()


@contextmanager
def _silent_server(authority: Authority) -> Iterator[int]:
    """Serve one request, then do nothing until the client has closed its connection."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority.issue("127.0.0.1"))

    def serve() -> None:
        with listening, tls.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.recv(1000)
            connection.sendall(HEADERS + b"x")
            over.wait()

    over = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        over.set()
        thread.join()
