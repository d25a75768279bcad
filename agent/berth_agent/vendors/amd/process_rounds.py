"""Lists the processes of the cards in rounds of their own, so that no reading of the cards waits for them."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from berth_agent.inventory.plugins import in_thread
from berth_agent.vendors.amd.cards import Card
from berth_agent.vendors.amd.processes import Listed
from berth_api.plugins import in_one_line

PERIOD: Final = 9.0
"""Seconds between the beginnings of two rounds, at least: a little less than between two readings. Metrics may be read
more often. The largest round takes 0.6 s of CPU time."""
FIRST: Final = 1.0
"""Seconds for which the first reading waits for the first round: without it, cards would look unused after a start."""
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
        self._cards: tuple[tuple[int, str], ...] = ()
        """Minors and ids of the cards that the round in progress looks at."""
        self._last = Listed({}, NOT_YET)
        self._last_cards: tuple[tuple[int, str], ...] = ()
        self._is_first = True

    async def of(self, cards: Sequence[Card]) -> Listed:
        """Return the processes of these cards as the last round listed them, and begin the next one.

        The mapping is another object only after another round.
        """
        self._collect()
        if self._round is None and self._clock() >= self._began + PERIOD:
            self._began, self._cards = self._clock(), _identities(cards)
            self._round = in_thread(partial(self._read, tuple(cards)))
        if self._is_first and self._round:
            self._is_first = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._round)), FIRST)
            self._collect()
        # A minor may be another card's now.
        listed = self._last if self._last_cards == _identities(cards) else Listed({}, NOT_YET)
        hangs = self._round is not None and self._clock() >= self._began + PATIENCE
        return listed._replace(problem=HANGS) if hangs else listed

    def _collect(self) -> None:
        """Take the result of a round that has ended."""
        if self._round is None or not self._round.done():
            return
        result, self._round = self._round.result(), None
        if isinstance(result, BaseException):
            problem = f"the processes that use cards cannot be read: {in_one_line(result)}"
            result = Listed(self._last.by_minor if self._last_cards == self._cards else {}, problem)
        self._last, self._last_cards = result, self._cards


def _identities(cards: Sequence[Card]) -> tuple[tuple[int, str], ...]:
    return tuple((card.minor, card.id) for card in cards)
