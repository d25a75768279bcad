"""Lists the processes of the cards in rounds of their own, so that no reading of the cards waits for them."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from berth_agent.inventory.plugins import in_thread
from berth_agent.readings import Process
from berth_agent.vendors.amd.cards import Card
from berth_agent.vendors.amd.processes import Listed
from berth_api.plugins import in_one_line

PERIOD: Final = 9.0
"""Seconds between the beginnings of two rounds, at least: a little less than between two readings. Metrics may be read
more often. The largest round takes 0.6 s of CPU time."""
LOOKED_FOR: Final = 1.0
"""Seconds for which a reading with cards that no round has looked at waits for the round in progress: without it, these
cards would look unused."""
PATIENCE: Final = 15.0
"""Seconds after which a round that has not ended is reported. A file of KFD's can hang in the driver."""
NOT_YET: Final = "the processes that use cards are not read yet"
HANGS: Final = "the processes that use cards are not read again: the last attempt does not end"


class ProcessRounds:
    """The processes of the last round that ended. At most one round runs at a time, in a thread."""

    def __init__(
        self, read: Callable[[Sequence[Card]], Listed], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._clock = clock
        self._round: Future[Listed | BaseException] | None = None
        self._began = float("-inf")
        self._cards: _Identities = ()
        """The cards that the round in progress looks at."""
        self._last = Listed(None, NOT_YET)
        self._last_cards: _Identities = ()
        self._answer = self._last
        """What the last round shows of the cards of the last call."""
        self._answer_cards: _Identities = ()

    async def of(self, cards: Sequence[Card]) -> Listed:
        """Return the processes of these cards as the last round listed them, and begin the next one.

        The mapping is another object only after another round, or for other cards. It is None before a round has
        succeeded, and while one hangs: processes of the round before may have ended, and others have their numbers.
        """
        self._collect()
        identities = _identities(cards)
        if self._round is None and (identities != self._cards or self._clock() >= self._began + PERIOD):
            self._began, self._cards = self._clock(), identities
            self._round = in_thread(partial(self._read, tuple(cards)))
        if self._round and self._clock() >= self._began + PATIENCE:
            return Listed(None, HANGS)
        if self._round and not set(identities) <= set(self._last_cards):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._round)), LOOKED_FOR)
            self._collect()
        if self._answer_cards != identities:
            self._answer, self._answer_cards = self._of(identities), identities
        return self._answer

    def _of(self, cards: "_Identities") -> Listed:
        """Return what the last round shows of these cards. A minor may be another card's now."""
        if self._last.by_minor is None:
            return self._last
        known = [minor for minor, card in cards if (minor, card) in self._last_cards]
        by_minor = {minor: self._last.by_minor[minor] for minor in known if minor in self._last.by_minor}
        return Listed(by_minor, self._last.problem if len(known) == len(cards) else NOT_YET)

    def _collect(self) -> None:
        """Take the result of a round that has ended. What the round before showed stays if this one failed."""
        if self._round is None or not self._round.done():
            return
        result, self._round = self._round.result(), None
        if isinstance(result, BaseException):
            problem = f"the processes that use cards cannot be read: {in_one_line(result)}"
            self._last = self._last._replace(problem=problem)
            self._answer = self._answer._replace(problem=problem)
        else:
            self._last, self._last_cards = self._completed(result), self._cards
            self._answer, self._answer_cards = self._of(self._cards), self._cards

    def _completed(self, result: Listed) -> Listed:
        """Return a round's result with what the round before listed of the processes that this one omitted.

        A process that was looked at in part keeps the larger memory.
        """
        if result.by_minor is None or not result.omitted:
            return result
        earlier = self._of(self._cards).by_minor or {}
        by_minor: dict[int, tuple[Process, ...]] = {}
        for minor, listed in result.by_minor.items():
            by_pid = {process.pid: process for process in listed}
            for process in earlier.get(minor, ()):
                read = by_pid.get(process.pid)
                if process.pid in result.omitted and (read is None or read.memory < process.memory):
                    by_pid[process.pid] = process
            by_minor[minor] = tuple(by_pid.values())
        return result._replace(by_minor=by_minor)


_Identities = tuple[tuple[int, str], ...]
"""Minors and ids of cards."""


def _identities(cards: Sequence[Card]) -> _Identities:
    return tuple((card.minor, card.id) for card in cards)
