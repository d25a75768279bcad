"""Decide parked pods again from time to time, so that their status shows current reasons.

A pod is woken only by changes that may help it. Other changes can still make its reason out of date: a full node is
added, or a node is tainted. After a change, each parked class is woken once, one class at a time, and only while the
active queue is empty. Reviews take a twentieth of the loop's time at most.
"""

from collections.abc import Hashable
from typing import Final

from berth_operator.state.cache.cluster import Cluster

INTERVAL: Final = 4.0
"""Seconds between the starts of two reviews."""
SHARE: Final = 20.0
"""The pause before the next class, as a multiple of the time that deciding the last one took."""
MIN_PAUSE: Final = 0.005
MAX_PAUSE: Final = 10.0
"""Seconds between two classes."""


class Review:
    """Wakes parked classes whose failure may be out of date."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = cluster.version
        self._classes: list[Hashable] = []
        """Classes that were parked before the last change and are still to be woken."""
        self._next_review = self._next_class = cluster.clock()
        self._woken_at: float | None = None
        """When the last class was woken; None once it has been decided."""

    def wakes_one(self) -> bool:
        """Wake a class if one is due, and return whether one was; call it while the active queue is empty."""
        now = self._cluster.clock()
        if self._woken_at is not None:
            pause = SHARE * (now - self._woken_at)
            self._next_class = now + min(MAX_PAUSE, max(MIN_PAUSE, pause))
            self._woken_at = None
        if now < self._next_class or not (self._classes or self._begins(now)):
            return False
        self._woken_at = now
        self._cluster.queue.wake_class(self._classes.pop())
        return True

    def due_in(self) -> float:
        """Return the seconds until a class may be due; infinity if nothing has changed."""
        if self._classes:
            return self._next_class - self._cluster.clock()
        if self._version == self._cluster.version:
            return float("inf")
        return max(self._next_review, self._next_class) - self._cluster.clock()

    def _begins(self, now: float) -> bool:
        """Begin a review if anything has changed since the last one; return whether there are classes to wake."""
        if now < self._next_review or self._version == self._cluster.version:
            return False
        self._version, self._next_review = self._cluster.version, now + INTERVAL
        # The longest parked comes first, from the end of the list.
        self._classes = self._cluster.queue.parked_before(self._version)[::-1]
        return bool(self._classes)
