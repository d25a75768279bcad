"""One turn of the scheduling loop, and the time that all may take whose decisions may take long.

A turn ends after `BATCH` units or `MAX_SECONDS`, so that binds and watches run. Two kinds of units get less:

* Costly ones, whose decision may take long by what somebody wrote into an object, get a tenth of the loop's time while
  other pods wait. Unused time is saved, so that a few of these decisions can run together. Their namespaces take turns
  by the time that they have taken (`core.queue.costly_lane`). Within a turn, all decisions about ResourceClaims may
  look at `CLAIM_WORK` devices.
* Parked ones that are decided again, only so that they show current reasons, get what `Review` allows.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from berth_operator.binding.review import Review
from berth_operator.binding.selectors.slow import SlowSelectors
from berth_operator.core.decision.gang import Gang
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster

BATCH: Final = 32
"""Decisions before the loop yields to binds and watches."""
MAX_SECONDS: Final = 0.005
"""Seconds after which the loop yields as well: few decisions take long, but any tenant can create 32 pods that do."""
SHARE: Final = 10.0
"""The loop's time, as a multiple of the time that costly decisions may take."""
MAX_SAVED: Final = 0.1
"""Seconds that are saved for costly decisions, and that may be owed."""
CLAIM_WORK: Final = 3_000
"""Devices that decisions about ResourceClaims may look at before the loop yields: some 6 ms."""
WORK_SECONDS: Final = 2e-6
"""About how long one takes."""
HINT_WORK: Final = 500
"""The same limit for a turn in which other pods wait and the time for claims is used up. It serves events alone."""
FULL_SECONDS: Final = 0.1
"""Seconds for which other namespaces come first if a decision's findings did not fit into memory."""


class Turn:
    """The turn: which unit may be decided now, and what its decision took."""

    def __init__(self, cluster: Cluster, *, cpu: Callable[[], float], slow: SlowSelectors | None = None) -> None:
        """Create it. `cpu` returns the seconds of CPU time of the loop's thread; `slow` as in `Scheduler`."""
        self._cluster, self._queue, self._clock, self._cpu = cluster, cluster.queue, cluster.clock, cpu
        self._work, self._slow, self.review = cluster.fleet.claims.supply.work, slow, Review(cluster)
        self._saved, self._saved_at = MAX_SAVED, self._clock()
        """Seconds that are left for costly decisions; less than 0 if too many were used."""
        self._left_after = 0.0
        """Work that was left when the last turn ended."""
        self._decided, self._ends_at = 0, 0.0

    def begin(self) -> None:
        """Begin a turn. What events took since the last one is paid first."""
        self._spend(WORK_SECONDS * max(0.0, self._left_after - self._work.left))
        self._work.refill(CLAIM_WORK if self._may_be_costly() else HINT_WORK)
        self._decided = 0

    def end(self) -> None:
        """End the turn."""
        self._left_after = self._work.left

    def next_unit(self) -> PendingPod | Gang | None:
        """Return the unit that may be decided now; None if there is none."""
        if not self._decided:
            self._ends_at = self._clock() + MAX_SECONDS
        return self._queue.pop(self._clock(), with_costly=self._work.left > 0 and self._may_be_costly())

    def is_over(self) -> bool:
        """Return whether others must run before another unit is decided. One unit is decided in each turn."""
        return self._decided >= BATCH or (self._decided > 0 and self._clock() >= self._ends_at)

    @contextlib.contextmanager
    def deciding(self, unit: PendingPod | Gang) -> Iterator[None]:
        """Return a context for the decision of a unit, whose time is recorded."""
        # The kernel may take the processor from a thread that asks for its CPU time.
        cpu_began = self._cpu() if self.review.measures() else None
        is_costly, began = self._cluster.is_costly(unit), self._clock()
        self._work.begin(unit.namespace)
        if self._slow is not None and self._cluster.needs_devices(unit):
            self._slow.begin()
        yield
        self._decided += 1
        if is_costly:
            now = self._clock()
            self._spend(now - began)
            self._queue.turns.take(unit.namespace, now - began + (FULL_SECONDS if self._work.is_full else 0.0), now)
        if cpu_began is not None:
            self.review.spend(unit.class_key, self._cpu() - cpu_began)

    @property
    def goes_on(self) -> bool:
        """Return whether something was left unfinished that gets further in the next turn."""
        return self._work.goes_on

    @property
    def is_complete(self) -> bool:
        """Return whether the decision is final: nothing was left unfinished."""
        return not self._work.unfinished

    def wait_for_selectors(self, unit: PendingPod | Gang) -> None:
        """Wake a parked unit when the selectors are evaluated for which its decision could not wait, if any."""
        if self._work.waits and self._slow is not None:
            self._slow.wait(unit.class_key)

    def _may_be_costly(self) -> bool:
        """Return whether units may be decided whose decision may take long.

        One of a higher priority than all others may be decided in advance.
        """
        now = self._clock()
        self._saved = min(MAX_SAVED, self._saved + (now - self._saved_at) / SHARE)
        self._saved_at = now
        if not self._queue.has_others() or self._saved > 0.0:
            return True
        return self._saved > -MAX_SAVED and self._queue.is_costly_first()

    def _spend(self, seconds: float) -> None:
        # Time for which no other pod waited is not owed for long.
        self._saved = max(self._saved - seconds, -MAX_SAVED)
