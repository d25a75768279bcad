"""How long to wait after failures in a row: twice as long each time, up to a bound."""

from dataclasses import dataclass
from typing import Final

MAX_DOUBLINGS: Final = 32
"""Further ones change nothing: the longest pause is reached, and a float would overflow after a thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff:
    """The first and the longest pause, in seconds."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after this many failures in a row; 0 after none."""
        if failures <= 0:
            return 0.0
        return min(self.first * 2.0 ** min(failures - 1, MAX_DOUBLINGS), self.longest)

    def following(self, pause: float) -> float:
        """Return the pause that follows another one; the first if there was none, which is 0."""
        return min(2 * pause, self.longest) if pause else self.first
