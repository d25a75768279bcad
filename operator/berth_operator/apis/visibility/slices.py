"""Take turns with the scheduler, in whose event loop this API runs."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from berth_operator.apis.aggregated.statuses import too_many
from berth_operator.apis.aggregated.watch import Write

SLICE: Final = 0.001
"""Seconds of processor time for which rendering may block the loop. Other programs on the machine do not count."""
MAX_WAITING: Final = 64
"""Requests that wait for their turn. Further requests are refused."""
PAUSE: Final = 9.0
"""The pause after a piece of work, as a multiple of the time that it took."""
CHUNK: Final = 2**17
"""Bytes that are encrypted and written at once, in well below a millisecond."""

T = TypeVar("T")


class Turns:
    """Lets one of several pieces of work begin in an iteration of the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def next(self) -> None:
        """Wait for an iteration in which nothing else begins."""
        async with self._turn:
            await asyncio.sleep(0)


class Slices:
    """Iterates in slices of the loop's time.

    Attributes:
        spent: seconds of the processor that the slices took.
    """

    def __init__(self, turns: Turns | None = None) -> None:
        """Create it with the turns that its slices wait for; others share them."""
        self.spent = 0.0
        self._turns = turns or Turns()

    async def of(self, values: Iterator[T]) -> AsyncIterator[T]:
        """Yield values, and let the loop do other work in between."""
        await self._turns.next()
        began = time.thread_time()
        for value in values:
            yield value
            if (taken := time.thread_time() - began) > SLICE:
                self.spent += taken
                await self._turns.next()
                began = time.thread_time()
        self.spent += time.thread_time() - began


class TurnBudget:
    """Work that clients cause: one piece at a time, each followed by a pause that is a multiple of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._resume_at = -math.inf

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and hold it.

        Raises:
            StatusError: too many wait.
        """
        if self._waiting >= MAX_WAITING:
            raise too_many("too many requests, try again later", retry_after=1)
        self._waiting += 1
        try:
            async with self._turn:
                if (seconds := self._resume_at - self._clock()) > 0:
                    await asyncio.sleep(seconds)
                yield
        finally:
            self._waiting -= 1

    def spend(self, seconds: float) -> None:
        """Record what work took."""
        self._resume_at = max(self._resume_at, self._clock()) + PAUSE * seconds


class Sending:
    """Lets one watch write at a time, because a change wakes all watches.

    Attributes:
        sent: bytes written so far.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.sent = 0

    def paced(self, write: Write) -> Write:
        """Return a function that writes in chunks, at most one of all watches in one iteration of the loop."""

        async def paced(data: bytes) -> None:
            for first in range(0, len(data), CHUNK):
                await self._turns.next()
                chunk = data[first : first + CHUNK]
                self.sent += len(chunk)
                await write(chunk)

        return paced


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTurns:
    """The turns that rows of all kinds share."""

    rendering: Turns = field(default_factory=Turns)
    writing: Turns = field(default_factory=Turns)
