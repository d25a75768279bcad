"""The last sample of a node's cards, renewed on request.

However often a sample is requested, the cards are sampled at most once in MIN_INTERVAL. While a driver call hangs, one
sample is in progress, and no caller waits for it longer than PATIENCE.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from berth_agent.readings import CardSample

MIN_INTERVAL: Final = 1.0
"""Seconds between the beginnings of two samples."""
PATIENCE: Final = 1.0
"""Seconds to wait for a sample; Prometheus waits ten for an answer."""
MAX_AGE: Final = 30.0
"""Seconds after which a sample is shown no longer: older values are no measurement of now."""

Take = Callable[[], Awaitable[Mapping[str, CardSample]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the cards measured at one moment."""

    cards: Mapping[str, CardSample] = field(default_factory=dict)
    """Cards by UUID."""
    at: float = 0.0
    """Unix time in seconds."""


class Sampler:
    """Takes samples, one at a time."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._task: asyncio.Task[None] | None = None
        self._began = float("-inf")
        self._taken = float("-inf")
        self._last = Sample()

    async def current(self) -> Sample:
        """Return a sample that is as fresh as possible; an empty one if there is none that is fresh enough."""
        now = asyncio.get_running_loop().time()
        if self._task is None and now - self._began >= MIN_INTERVAL:
            self._began = now
            self._task = asyncio.create_task(self._renew())
        if self._task:
            await asyncio.wait([self._task], timeout=PATIENCE)
        return self._last if asyncio.get_running_loop().time() - self._taken <= MAX_AGE else Sample()

    async def _renew(self) -> None:
        try:
            cards = await self._take()
            self._last = Sample(cards=cards, at=time.time())
            # Values are of the time when they were read, not of that when reading began: it may have hung before.
            self._taken = asyncio.get_running_loop().time()
        finally:
            self._task = None
