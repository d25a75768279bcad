"""The agent's calls of the process that makes partitions: over the real socket, on the simulated NVML."""

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson
import pytest

from berth_agent.vendor import Placement, RefusedError, UnansweredError
from berth_agent.vendors.nvidia.partitions.client import PATIENCE, PartitionClient
from berth_agent.vendors.nvidia.partitions.keeper import PartitionKeeper
from berth_agent.vendors.nvidia.partitions.record import PartitionRecord
from berth_agent.vendors.nvidia.partitions.server import NAME, PartitionServer
from tests.nvml import mig_profiles
from tests.nvml.fixture import NvmlFixture, h100, with_profiles
from tests.nvml.probe import Machine

HALF: Final = Placement(profile=9, start=4, size=4)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose sockets have short paths."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextmanager
def served(fixture: NvmlFixture, folder: Path, *, calls: int) -> Iterator[None]:
    record = PartitionRecord(fixture.folder / "record")
    keeper = PartitionKeeper(record, boot="boot-1", library_path=fixture.library, sleep=lambda _: None)
    server = PartitionServer(keeper, folder=folder)

    def serve() -> None:
        for _ in range(calls):
            server.serve_one()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
        thread.join()
    finally:
        server.close()


async def test_each_call_reaches_the_process(machine: Machine, folder: Path) -> None:
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80), with_profiles(h100(1), mig_profiles.H100_80))
    fixture.lose(1)
    uuid = fixture.gpus[0].uuid
    client = PartitionClient(folder)
    with served(fixture, folder, calls=8):
        # Calls of several claims at once come one after another.
        device, other = await asyncio.gather(
            client.make("claim-1/gpu", card=uuid, placement=HALF),
            client.make("claim-2/gpu", card=uuid, placement=Placement(profile=19, start=0, size=1)),
        )
        assert {device[:4], other[:4]} == {"MIG-"}
        with pytest.raises(RefusedError, match="occupies memory slice 4"):
            await client.make("claim-3/gpu", card=uuid, placement=Placement(profile=14, start=4, size=2))
        listed = await client.list()
        [card] = listed.cards
        assert (card.card, card.is_partitioned, card.changes_at_once, card.foreign) == (uuid, True, True, ())
        assert card.made["claim-1/gpu"] == HALF
        assert {profile.name for profile in card.profiles} == {profile.name for profile in mig_profiles.H100_80}
        assert listed.problems == ("card 1: GPU is lost",)
        await client.destroy("claim-1/gpu")
        await client.destroy("claim-2/gpu")
        await client.clear(uuid)
        [card] = (await client.list()).cards
        assert (card.is_partitioned, card.made) == (False, {})


async def test_a_socket_that_another_program_removed_is_made_again(machine: Machine, folder: Path) -> None:
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    client = PartitionClient(folder)
    with served(fixture, folder, calls=1):
        shutil.rmtree(folder)
        with pytest.raises(UnansweredError):
            await client.list()
        async with asyncio.timeout(20):
            while not (folder / NAME).exists():  # noqa: ASYNC110 - another thread makes it
                await asyncio.sleep(0.1)
        assert len((await client.list()).cards) == 1


async def test_a_call_that_was_given_up_is_not_performed(machine: Machine, folder: Path) -> None:
    fixture = machine(with_profiles(h100(), mig_profiles.H100_80))
    place = {"profile": HALF.profile, "start": HALF.start, "size": HALF.size}
    call = {"call": "make", "key": "claim-1/gpu", "card": fixture.gpus[0].uuid, **place}
    with served(fixture, folder, calls=3):
        first, second = (socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2))
        with first:
            # The process waits for its line.
            first.connect(str(folder / NAME))
            with second:
                second.connect(str(folder / NAME))
                second.sendall(orjson.dumps(call) + b"\n")
        [card] = (await PartitionClient(folder).list()).cards
    assert card.made == {}


@pytest.mark.looptime
async def test_a_process_that_does_not_answer_ends_the_call(folder: Path) -> None:
    client = PartitionClient(folder)
    with pytest.raises(RefusedError, match="No such file or directory"):
        await client.destroy("claim-1/gpu")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(str(folder / NAME))
        silent.listen()
        began = asyncio.get_running_loop().time()
        # The second call waits for the first one, and not longer than it.
        calls = [client.destroy(key) for key in ("claim-1/gpu", "claim-2/gpu")]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert [str(error).endswith("did not answer within 30 s") for error in errors] == [True, True]
        assert asyncio.get_running_loop().time() - began == pytest.approx(PATIENCE)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "does not answer"),
        (b"{", "does not answer"),
        (b"{\n", "does not answer"),
        (b"[]\n", r"answered \[\]"),
        (b'{"device": "../../x"}\n', "of another version"),
        (b'{"error": "no room"}\n', "^no room$"),
    ],
)
async def test_an_answer_that_is_none_is_refused(folder: Path, answer: bytes, problem: str) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, folder / NAME):
        with pytest.raises(RefusedError, match=problem):
            await PartitionClient(folder).make("claim-1/gpu", card="GPU-1", placement=HALF)
