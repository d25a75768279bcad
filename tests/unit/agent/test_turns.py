"""Two agents of one node: at any time one serves, the next one's driver is registered before the first is gone."""

import asyncio
import contextlib
import fcntl
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from berth_agent.dra.endpoint import TURN_SECONDS, DriverEndpoint
from berth_agent.turns import ALONE_SECONDS, LATE_SECONDS, REMINDER_SECONDS, REPLACED_SECONDS, Turn
from berth_agent.vendor import RefusedError
from tests.unit.agent.dra.test_preparation import Node

pytestmark = pytest.mark.looptime


class Driver:
    """The driver of an agent, which kubelet registers after some seconds."""

    def __init__(self, name: str, log: list[str], *, seconds: float) -> None:
        self._name, self._log, self._seconds = name, log, seconds
        self._is_registered = asyncio.Event()

    async def run(self) -> None:
        await asyncio.sleep(self._seconds)
        self._log.append(f"{self._name} is registered")
        self._is_registered.set()

    async def until_registered(self) -> None:
        await self._is_registered.wait()


class Agents:
    """Agents of one node, and what they do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[str] = []

    async def run(self, name: str, end: asyncio.Event, *, register_seconds: float = 1.0, leave: bool = True) -> None:
        with Turn(self.folder) as turn:
            async with asyncio.TaskGroup() as tasks:
                await turn.come(Driver(name, self.log, seconds=register_seconds), tasks)
                self.log.append(f"{name} serves")
                await end.wait()
                if leave:
                    await turn.leave()
                self.log.append(f"{name} is gone")


async def test_the_next_agent_registers_before_the_old_one_is_gone_and_serves_after_it(tmp_path: Path) -> None:
    agents, ends = Agents(tmp_path), [asyncio.Event() for _ in range(3)]
    running = [asyncio.create_task(agents.run(str(number), end)) for number, end in enumerate(ends)]
    await asyncio.sleep(60)
    assert agents.log == ["0 serves", "0 is registered"]
    ends[0].set()
    await asyncio.sleep(60)
    # A third one waits.
    assert agents.log[2:] == ["1 is registered", "0 is gone", "1 serves"]
    # The agent does not wait for a next one that has ended.
    running[2].cancel()
    await asyncio.sleep(1)
    ends[1].set()
    await asyncio.gather(*running, return_exceptions=True)
    assert agents.log[5:] == ["1 is gone"]


@pytest.mark.parametrize("is_folder", [False, True])
async def test_locks_that_another_program_removed_are_taken_again(tmp_path: Path, *, is_folder: bool) -> None:
    """Two agents at a time would overwrite each other's checkpoints."""
    folder = tmp_path / "state"
    with Turn(folder) as first, Turn(folder) as second:
        async with asyncio.TaskGroup() as tasks:
            await first.come(None, tasks)
            keeping = tasks.create_task(first.keep())
            coming = tasks.create_task(second.come(None, tasks))
            await asyncio.sleep(1)
            if is_folder:
                shutil.rmtree(folder)
            else:
                for file in folder.iterdir():
                    file.unlink()
            await asyncio.sleep(ALONE_SECONDS - 5)
            assert not coming.done()
            with Turn(folder) as third:
                late = tasks.create_task(third.come(None, tasks))
                await asyncio.sleep(1)
                assert not late.done()
                late.cancel()
            keeping.cancel()
            first.__exit__(None, None, None)
            await coming


@pytest.mark.parametrize("case", ["killed", "kubelet is away"])
async def test_an_agent_that_dies_or_a_kubelet_that_is_away_delays_the_next_one_little(
    tmp_path: Path, case: str
) -> None:
    agents, ends = Agents(tmp_path), [asyncio.Event(), asyncio.Event()]
    first = asyncio.create_task(agents.run("0", ends[0], leave=case != "killed"))
    await asyncio.sleep(10)
    seconds = 1.0 if case == "killed" else 120.0
    second = asyncio.create_task(agents.run("1", ends[1], register_seconds=seconds))
    await asyncio.sleep(10)
    ends[0].set()
    await asyncio.sleep(2 * REPLACED_SECONDS)
    assert agents.log[-1] == "1 serves"
    ends[1].set()
    await asyncio.gather(first, second)


async def test_an_agent_without_a_driver_waits_for_a_process_that_cannot_end_only_for_a_while(tmp_path: Path) -> None:
    with Turn(tmp_path) as stuck, Turn(tmp_path) as turn:
        async with asyncio.TaskGroup() as tasks:
            await stuck.come(None, tasks)
            waiting = asyncio.create_task(turn.come(None, tasks))
            await asyncio.sleep(ALONE_SECONDS - 1)
            assert not waiting.done()
            await asyncio.sleep(2)
            assert waiting.done()


async def test_an_agent_with_a_driver_waits_for_a_process_that_cannot_end_and_says_what_to_do(tmp_path: Path) -> None:
    agents, end = Agents(tmp_path), asyncio.Event()
    with contextlib.ExitStack() as hung, capture_logs() as logs:
        for name in ("stays.lock", "serves.lock"):
            fcntl.flock(hung.enter_context((tmp_path / name).open("w")), fcntl.LOCK_EX)
        waiting = asyncio.create_task(agents.run("1", end))
        errors = []
        for seconds in (LATE_SECONDS - 1, 2, REMINDER_SECONDS, REMINDER_SECONDS):
            await asyncio.sleep(seconds)
            errors.append(sum("drain and reboot the node" in entry["event"] for entry in logs))
        assert (errors, agents.log) == ([0, 1, 2, 3], [])
        hung.close()
        await asyncio.sleep(2 * REPLACED_SECONDS)
        assert agents.log == ["1 is registered", "1 serves"]
        logs.clear()
        await asyncio.sleep(2 * REMINDER_SECONDS)
        assert logs == []
    end.set()
    await waiting


async def test_without_a_folder_the_agent_serves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    agents, end = Agents(tmp_path / "file" / "below"), asyncio.Event()
    end.set()
    await agents.run("0", end)
    assert agents.log[:2] == ["0 serves", "0 is gone"]


@pytest.mark.parametrize("call", ["prepare", "unprepare"])
async def test_calls_wait_for_the_turn_of_the_agent(tmp_path: Path, call: str) -> None:
    node = Node(tmp_path)
    key = node.allocate("one", "gpu-0")
    endpoint = DriverEndpoint(tmp_path)
    calls: Callable[..., Awaitable[object]] = getattr(endpoint, call)
    with pytest.raises(RefusedError, match="an earlier agent of this node still runs"):
        await calls(key)
    waiting = asyncio.ensure_future(calls(key))
    await asyncio.sleep(TURN_SECONDS / 2)
    assert not waiting.done()
    endpoint.begin(node.restart())
    await waiting
    await endpoint.close()
    # It is another agent's turn.
    late = asyncio.ensure_future(calls(key))
    await asyncio.sleep(60)
    assert not late.done()
    late.cancel()
