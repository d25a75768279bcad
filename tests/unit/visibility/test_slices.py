"""The API shares the scheduler's loop by slices of rendering, turns of watches, and a budget of requests."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.visibility.slices import CHUNK, MAX_WAITING, PAUSE, SLICE, Sending, Slices, TurnBudget, Turns
from tests.unit.visibility.iterations import iterations

pytestmark = pytest.mark.looptime


def slowly(count: int) -> Iterator[int]:
    """Yield numbers, each after half a slice of work."""
    for number in range(count):
        ends_at = time.thread_time() + SLICE / 2
        while time.thread_time() < ends_at:
            pass
        yield number


async def test_others_have_their_turns_between_slices() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    slices = Slices()
    assert [number async for number in slices.of(slowly(20))] == list(range(20))
    task.cancel()
    assert 6 <= turns <= 20
    assert slices.spent >= 10 * SLICE


async def test_rows_of_one_kind_are_rendered_in_an_iteration_of_the_loop() -> None:
    turns, worked = Turns(), dict[int, set[int]]()

    async def render(kind: int) -> None:
        async for _ in Slices(turns).of(slowly(20)):
            worked.setdefault(now(), set()).add(kind)

    async with iterations() as now:
        await asyncio.gather(*map(render, range(3)))
    assert all(len(kinds) == 1 for kinds in worked.values())
    assert len(worked) >= 3 * 6


async def test_one_watch_writes_in_an_iteration_of_the_loop() -> None:
    turns, written = Turns(), list[tuple[int, int]]()
    kinds = [Sending(turns) for _ in range(2)]

    async def write(data: bytes) -> None:
        written.append((now(), len(data)))

    async with iterations() as now:
        await asyncio.gather(*(kinds[each % 2].paced(write)(bytes(2 * CHUNK + 1)) for each in range(5)))
    assert len({at for at, _ in written}) == len(written) == 15
    assert sorted(size for _, size in written) == [1] * 5 + [CHUNK] * 10
    assert [each.sent for each in kinds] == [3 * (2 * CHUNK + 1), 2 * (2 * CHUNK + 1)]


async def test_a_pause_follows_each_piece_of_work() -> None:
    clock = asyncio.get_running_loop().time
    budget, began = TurnBudget(clock), list[float]()

    async def work() -> None:
        async with budget.turn():
            began.append(clock())
            await asyncio.sleep(1)
            budget.spend(1)

    await asyncio.gather(*(work() for _ in range(3)))
    assert began == pytest.approx([0, 1 + PAUSE, 2 + 2 * PAUSE])


async def test_few_wait_for_their_turn() -> None:
    budget = TurnBudget(asyncio.get_running_loop().time)

    async def work() -> None:
        async with budget.turn():
            await asyncio.sleep(1)

    results = await asyncio.gather(*(work() for _ in range(MAX_WAITING + 2)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, StatusError)]
    assert [(int(each.code), each.retry_after) for each in refused] == [(429, 1)] * 2
    # Those that were served no longer count.
    await work()
