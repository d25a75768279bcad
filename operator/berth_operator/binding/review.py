"""Have parked pods decided again now and then, so that the reasons that they show are those of the present.

A pod is woken only by what may help it. Its reason may change all the same: a node joins that has no room, or another
is tainted. After anything has changed each parked kind is woken once, a kind at a time, and only while there is nothing
else to decide. It takes a twentieth of the loop's time at most.
"""

from collections.abc import Hashable
from typing import Final

from berth_operator.state.cluster import Cluster

INTERVAL: Final = 4.0
"""Seconds from the beginning of a review to that of the next one."""
SHARE: Final = 20.0
"""How many times as long as it took to decide a kind the next one is left alone."""
SHORTEST_PAUSE: Final = 0.005
LONGEST_PAUSE: Final = 10.0
"""Seconds between two kinds."""


class Review:
    """Wakes parked kinds whose failure may be out of date."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = cluster.version
        self._kinds: list[Hashable] = []
        """Those parked before anything changed that are still to be woken."""
        self._next_review = self._next_kind = cluster.clock()
        self._woken_at: float | None = None
        """When the last kind was woken, until it has been decided."""

    def wakes_one(self) -> bool:
        """Wake a kind, if there is one and it is time; to be called when there is nothing to decide."""
        now = self._cluster.clock()
        if self._woken_at is not None:
            pause = SHARE * (now - self._woken_at)
            self._next_kind = now + min(LONGEST_PAUSE, max(SHORTEST_PAUSE, pause))
            self._woken_at = None
        if now < self._next_kind or not (self._kinds or self._begins(now)):
            return False
        self._woken_at = now
        self._cluster.queue.wake_kind(self._kinds.pop())
        return True

    def due_in(self) -> float:
        """Return the seconds until there may be a kind to wake; infinity if nothing has changed."""
        if self._kinds:
            return self._next_kind - self._cluster.clock()
        if self._version == self._cluster.version:
            return float("inf")
        return max(self._next_review, self._next_kind) - self._cluster.clock()

    def _begins(self, now: float) -> bool:
        """Begin a review if anything has changed since the last one began; return whether there are kinds to wake."""
        if now < self._next_review or self._version == self._cluster.version:
            return False
        self._version, self._next_review = self._cluster.version, now + INTERVAL
        # The longest parked comes first, from the end of the list.
        self._kinds = self._cluster.queue.parked_before(self._version)[::-1]
        return bool(self._kinds)
