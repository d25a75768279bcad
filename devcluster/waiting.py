"""Wait for conditions, always with a deadline, and never by guessing a time.

A wait that runs out continues for twice its deadline, to learn which of two things happened. If the condition then
becomes true, it is late, for example on a busy machine. If it never becomes true, it has been lost. Both raise a
`WaitError`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

T = TypeVar("T")

POLL_SECONDS: Final = 0.05
LONGEST_POLL_SECONDS: Final = 0.25
SHARE: Final = 20
"""The longer it has waited, the less often it asks, because an API server answers: after a twentieth of the wait."""
PATIENCE: Final = 120.0
"""Seconds: a hundred times what most conditions take, for machines that are slow or busy."""
GRACE: Final = 2.0
"""How much longer a wait goes on after its deadline, in deadlines."""


class WaitError(TimeoutError):
    """A condition did not become true before its deadline.

    Attributes:
        late: whether it became true within the grace after it.
    """

    def __init__(self, message: str, *, late: bool) -> None:
        super().__init__(message)
        self.late = late


def until(
    condition: Callable[[], T],
    *,
    deadline: float = PATIENCE,
    what: str,
    poll: float = POLL_SECONDS,
    details: Callable[[], str] | None = None,
) -> T:
    """Return the first truthy answer of `condition`.

    Raises:
        WaitError: it took longer than `deadline` seconds; with `details` of that moment.
    """
    timer = _Timer(poll)
    while not (answer := condition()) and timer.asked_at <= deadline * (1 + GRACE):
        with timer.pause() as seconds:
            time.sleep(seconds)
    _judge(answer, timer.asked_at, deadline, what, details)
    return answer


async def until_async(
    condition: Callable[[], Coroutine[Any, Any, T]],
    *,
    deadline: float = PATIENCE,
    what: str,
    poll: float = POLL_SECONDS,
) -> T:
    """Do the same in an event loop, for a condition that awaits its answer."""
    timer = _Timer(poll)
    while not (answer := await condition()) and timer.asked_at <= deadline * (1 + GRACE):
        with timer.pause() as seconds:
            await asyncio.sleep(seconds)
    _judge(answer, timer.asked_at, deadline, what, None)
    return answer


def within(condition: Callable[[], T], *, seconds: float, poll: float = POLL_SECONDS) -> T:
    """Return the first truthy answer of `condition`, or its last one after some seconds: both are answers."""
    timer = _Timer(poll)
    while not (answer := condition()) and timer.asked_at <= seconds:
        with timer.pause() as pause:
            time.sleep(pause)
    return answer


@contextlib.asynccontextmanager
async def limit(what: str, *, deadline: float = PATIENCE) -> AsyncIterator[None]:
    """Limit how long a block may take that waits for something itself, such as the next line of a stream."""
    timer = _Timer(POLL_SECONDS)
    try:
        async with asyncio.timeout(deadline * (1 + GRACE)) as allowed:
            yield
    except TimeoutError:
        if not allowed.expired():
            raise
        _judge("", timer.waited, deadline, what, None)
    _judge("done", timer.waited, deadline, what, None)


class _Timer:
    """The time of one wait, less what its sleeps took longer than they should have.

    That is how long the machine kept the waiter from running, and it keeps everything else waiting as well.
    """

    def __init__(self, poll: float) -> None:
        self._poll, self._began, self._overslept = poll, time.monotonic(), 0.0
        self.asked_at = 0.0
        """When the condition was evaluated last: its evaluation may take long, which makes no answer late."""

    @property
    def waited(self) -> float:
        return time.monotonic() - self._began - self._overslept

    @contextlib.contextmanager
    def pause(self) -> Iterator[float]:
        """Yield how many seconds to sleep before the next evaluation."""
        seconds = max(self._poll, min(self.waited / SHARE, LONGEST_POLL_SECONDS))
        began = time.monotonic()
        yield seconds
        self._overslept += max(0.0, time.monotonic() - began - seconds)
        self.asked_at = self.waited


def _judge(answer: object, waited: float, deadline: float, what: str, details: Callable[[], str] | None) -> None:
    """Raise a WaitError if the answer is falsy, or truthy only after the deadline."""
    if answer and waited <= deadline:
        return
    end = "it was late" if answer else f"the last answer was {answer!r}"
    message = f"waited {deadline:g} s, and up to {waited:.1f} s, for {what}; {end}"
    raise WaitError("\n".join(filter(None, [message, details() if details else ""])), late=bool(answer))
