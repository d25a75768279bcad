"""Decide parked pods again, so that their status shows current reasons.

A pod is woken only by changes that may help it. Other changes can still make its reason outdated: for example, a full
node is added, or a node is tainted. So each parked class is woken once after changes, the longest parked first, one
class at a time, and only while the active queue is empty. The review begins as soon as nothing has changed for `CALM`
seconds. While changes go on, it begins every `INTERVAL` seconds.

The review counts the CPU time of deciding these classes, and nothing between the decisions. It may take a twentieth of
the loop's time. Unused time is saved, up to `MAX_SAVED` seconds. `KEPT` of these are used only while nothing changes.
They are enough to decide a thousand classes at once after a storm of changes.
"""

from collections.abc import Hashable
from typing import Final

from berth_operator.state.cache.cluster import Cluster

CALM: Final = 0.3
"""Seconds without a change after which the reasons are reviewed at once."""
INTERVAL: Final = 4.0
"""Seconds between the starts of two reviews while the state keeps changing."""
SHARE: Final = 20.0
"""The loop's time, as a multiple of the time that reviews may take."""
MAX_SAVED: Final = 0.5
"""Seconds of deciding that are saved for later at most."""
KEPT: Final = 0.25
"""Seconds of these that are not used while the state keeps changing."""
MIN_PAUSE: Final = 0.005
MAX_PAUSE: Final = 10.0
"""Seconds until the next class, once the time is used up."""


class Review:
    """Wakes parked classes whose failure may be out of date."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._version = cluster.waker.version
        self._classes: list[Hashable] = []
        """Classes that were parked before the last change and are still to be woken."""
        self._woken: set[Hashable] = set()
        """Classes whose decisions are being measured."""
        self._next_review = self._saved_at = cluster.clock()
        self._saved = MAX_SAVED
        """Seconds of deciding that are left at `_saved_at`; negative if too many were used."""

    def wakes_one(self) -> bool:
        """Wake a class if one is due, and return whether one was; call it while the active queue is empty."""
        self._woken.clear()
        now = self._cluster.clock()
        if self._pause(now):
            return False
        if not self._classes:
            if self._version == self._cluster.waker.version or now < self._begins_at():
                return False
            # Begin a review. The longest parked comes first, from the end of the list.
            self._version, self._next_review = self._cluster.waker.version, now + INTERVAL
            self._classes = self._cluster.queue.parked_before(self._version)[::-1]
            if not self._classes:
                return False
        self._wake(self._classes.pop())
        return True

    def renew(self, class_key: Hashable) -> None:
        """Wake a class whose failure is too old for a pod that joins it, if there is time for it."""
        if not self._pause(self._cluster.clock()):
            self._wake(class_key)

    def measures(self) -> bool:
        """Return whether a class is woken whose decision is to be measured."""
        return bool(self._woken)

    def spend(self, class_key: Hashable, seconds: float) -> None:
        """Record how long a unit took to decide."""
        if class_key in self._woken:
            self._saved = max(self._saved - seconds, -MAX_PAUSE / SHARE)

    def due_in(self) -> float:
        """Return the seconds until a class may be due; infinity if nothing has changed."""
        now = self._cluster.clock()
        if self._classes:
            return self._pause(now)
        if self._version == self._cluster.waker.version:
            return float("inf")
        return max(self._begins_at() - now, self._pause(now))

    def _wake(self, class_key: Hashable) -> None:
        self._woken.add(class_key)
        self._cluster.queue.wake_class(class_key)

    def _pause(self, now: float) -> float:
        """Return the seconds until there is time to decide a class; 0 if there is."""
        self._saved = min(MAX_SAVED, self._saved + (now - self._saved_at) / SHARE)
        self._saved_at = now
        until_calm = max(0.0, self._cluster.waker.changed_at + CALM - now)
        return min(_until_left(self._saved - KEPT), max(until_calm, _until_left(self._saved)))

    def _begins_at(self) -> float:
        return min(self._next_review, self._cluster.waker.changed_at + CALM)


def _until_left(saved: float) -> float:
    """Return the seconds until some time is saved; 0 if some is."""
    return 0.0 if saved > 0.0 else max(MIN_PAUSE, -SHARE * saved)
