"""The share of the loop's time that decisions about ResourceClaims may take while other pods wait: a tenth.

Unused time is saved, so that a few of these decisions can run together.
"""

from collections.abc import Callable
from typing import Final

SHARE: Final = 10.0
"""The loop's time, as a multiple of the time that they may take."""
MAX_SAVED: Final = 0.1
"""Seconds that are saved, and that may be owed."""


class ClaimShare:
    """Seconds that are saved; less than 0 if too many were used."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._saved, self._saved_at = MAX_SAVED, clock()

    def is_left(self) -> bool:
        """Return whether there is time for a decision."""
        now = self._clock()
        self._saved = min(MAX_SAVED, self._saved + (now - self._saved_at) / SHARE)
        self._saved_at = now
        return self._saved > 0.0

    def spend(self, seconds: float) -> None:
        """Record a decision's duration. Time for which no other pod waited is not owed for long."""
        self._saved = max(self._saved - seconds, -MAX_SAVED)
