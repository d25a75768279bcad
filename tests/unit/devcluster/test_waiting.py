"""Waits that run out: a condition that was only late differs from one that never became true."""

from collections.abc import Callable

import pytest

from devcluster import waiting


def answers(*values: int) -> Callable[[], int]:
    """Return a condition with these answers, the last one again and again."""
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize(
    ("condition", "deadline", "late"),
    [
        (answers(1), 0.0, None),
        (answers(0, 0, 1), 60.0, None),
        (answers(0, 1), 0.0, True),
        (answers(0), 0.0, False),
    ],
)
def test_a_wait_is_in_time_or_late_or_vain(condition: Callable[[], int], deadline: float, late: bool | None) -> None:
    if late is None:
        assert waiting.until(condition, deadline=deadline, what="x", poll=0.001) == 1
        return
    with pytest.raises(waiting.WaitError, match=r"for x; .*\nthe queue") as raised:
        waiting.until(condition, deadline=deadline, what="x", poll=0.001, details=lambda: "the queue")
    assert raised.value.late is late


async def test_the_same_in_an_event_loop() -> None:
    condition = answers(0, 3, 0)

    async def answer() -> int:
        return condition()

    assert await waiting.until_async(answer, what="x", poll=0.001) == 3
    with pytest.raises(waiting.WaitError) as raised:
        await waiting.until_async(answer, what="x", deadline=0.0, poll=0.001)
    assert not raised.value.late


def test_a_wait_whose_end_is_an_answer_never_fails() -> None:
    assert waiting.within(answers(0, 2), seconds=60, poll=0.001) == 2
    assert waiting.within(answers(0), seconds=0, poll=0.001) == 0


def test_the_delay_of_the_machine_extends_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    # Each sleep takes ten seconds longer than it should: those are no seconds of the condition.
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds + 10))
    assert waiting.until(answers(*[0] * 10, 1), deadline=5.0, what="x") == 1


async def test_a_block_that_takes_longer_than_its_limit_is_late_or_vain() -> None:
    async with waiting.limit("x"):
        pass
    with pytest.raises(waiting.WaitError) as raised:
        async with waiting.limit("x", deadline=-1.0):
            pass
    assert raised.value.late
