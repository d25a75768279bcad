"""Calls at real sockets whose other side is away, hangs, dies, or says a lot."""

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from berth_agent import rpc
from berth_agent.kubelet.podresources_grpc import PodResourcesListerStub
from berth_agent.kubelet.podresources_pb2 import (
    GetPodResourcesRequest,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from tests.pod_resources import PodResourcesServer

PATIENCE = 60.0
"""Far more than any answer takes."""


@pytest.fixture
def path() -> Iterator[Path]:
    """Give a path that is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="berth-") as folder:
        yield Path(folder) / "kubelet.sock"


@pytest.fixture
async def line(path: Path) -> AsyncIterator[rpc.Line]:
    made = rpc.Line(path)
    yield made
    made.close()


async def ask(line: rpc.Line, *, seconds: float = PATIENCE) -> ListPodResourcesResponse:
    return await rpc.call(PodResourcesListerStub(line.channel()).List, ListPodResourcesRequest(), seconds=seconds)


@asynccontextmanager
async def mute(path: Path, *, hangs_up: bool) -> AsyncIterator[None]:
    """Serve a socket that takes what is said, and says nothing."""
    taken: list[asyncio.StreamWriter] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        await reader.read(1)
        if hangs_up:
            writer.close()

    async with await asyncio.start_unix_server(take, path):
        yield
        for each in taken:
            each.close()


async def test_an_answer_is_bound_by_no_window(line: rpc.Line, path: Path) -> None:
    ids = [f"GPU-{number:036}" for number in range(1000)]
    with PodResourcesServer(path) as kubelet:
        kubelet.given = {("ns", f"pod-{number}", "main"): {"nvidia.com/gpu": ids} for number in range(100)}
        answer = await ask(line)
    assert answer.ByteSize() > 5_000_000
    assert [len(pod.containers[0].devices) for pod in answer.pod_resources] == [1000] * 100


async def test_nobody_is_waited_for_at_a_dead_socket(line: rpc.Line, path: Path) -> None:
    with pytest.raises(rpc.CallError, match="No such file"):
        await ask(line)
    async with mute(path, hangs_up=False):
        pass
    with pytest.raises(rpc.CallError, match="Connection refused"):
        await ask(line)


async def test_who_hangs_is_waited_for_so_long(line: rpc.Line, path: Path) -> None:
    async with mute(path, hangs_up=False):
        with pytest.raises(rpc.CallError, match=r"no answer within 0\.2 s"):
            await ask(line, seconds=0.2)


async def test_who_hangs_up_is_noticed_at_once_and_ends_that_call_alone(line: rpc.Line, path: Path) -> None:
    async with mute(path, hangs_up=True):
        with pytest.raises(rpc.CallError, match="Connection lost"):
            await ask(line)
    task = asyncio.current_task()
    # A later timeout would take it for somebody's wish that all of the task ends.
    assert task
    assert not task.cancelling()


async def test_who_hangs_up_before_the_first_word_ends_that_call_alone(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with hanging_up(listener):
            # In about one of fifteen the end is heard after the connection has been made, and before it is used.
            for _ in range(300):
                line = rpc.Line(path)
                with pytest.raises(rpc.CallError, match="Connection lost"):
                    await ask(line)
                line.close()


@contextmanager
def hanging_up(listener: socket.socket) -> Iterator[None]:
    """Take connections and close them at once."""

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_a_refusal_is_told_in_its_words(line: rpc.Line, path: Path) -> None:
    with PodResourcesServer(path), pytest.raises(rpc.CallError, match="told apart by nobody"):
        await rpc.call(PodResourcesListerStub(line.channel()).Get, GetPodResourcesRequest(), seconds=PATIENCE)


async def test_a_connection_serves_so_many_calls(line: rpc.Line) -> None:
    channels = [line.channel() for _ in range(2 * rpc.CALLS)]
    assert all(each is channels[0] for each in channels[: rpc.CALLS])
    assert all(each is channels[-1] for each in channels[rpc.CALLS :])
    assert channels[0] is not channels[-1]
