"""How often an agent writes the fields of an object again that other field managers changed.

A program that writes the object all the time must not make the agent do the same. While foreign values stand, the
operator allocates no device of the node, so waiting is safe.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW: Final = 600.0
"""Seconds within which take-backs from one manager add up. After as many quiet seconds they are forgotten."""
AT_ONCE: Final = 3
"""Take-backs from one manager within the window before the agent waits."""
STEP: Final = 60.0
MAX_WAIT: Final = 600.0
"""Seconds: the first wait is one step, and each further one is a step longer, up to the maximum."""
MAX_MANAGERS: Final = 10
"""Managers that are counted separately; all others count as one."""
OTHERS: Final = "other"


@dataclass(slots=True)
class _Record:
    taken: deque[float] = field(default_factory=lambda: deque(maxlen=AT_ONCE))
    """When fields were taken back last."""
    waits: int = 0
    """Waits since the last quiet window."""


class TakeBacks:
    """The take-backs of one object; `now` is a reading of a monotonic clock in seconds."""

    def __init__(self) -> None:
        self._of: dict[str, _Record] = {}

    def wait(self, manager: str, now: float) -> float:
        """Return the seconds to wait before fields that a manager changed are taken back; 0 for at once."""
        record = self._record(manager)
        if record.taken and now - record.taken[-1] >= WINDOW:
            record.taken.clear()
            record.waits = 0
        is_often = len(record.taken) == AT_ONCE and now - record.taken[0] < WINDOW
        if not (record.waits or is_often):
            return 0.0
        record.waits += 1
        return min(record.waits * STEP, MAX_WAIT)

    def record(self, manager: str, now: float) -> None:
        """Record that fields are taken back from a manager."""
        self._record(manager).taken.append(now)

    def _record(self, manager: str) -> _Record:
        return self._of.setdefault(self.counted_as(manager), _Record())

    def counted_as(self, manager: str) -> str:
        """Return the name under which a manager counts."""
        return manager if manager in self._of or len(self._of) < MAX_MANAGERS else OTHERS
