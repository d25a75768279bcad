"""A token bucket that limits the rate of writes."""

from collections.abc import Callable


class Bucket:
    """Fills with `rate` tokens a second, up to the tokens of one second. A write takes one token."""

    def __init__(self, *, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._tokens, self._at = rate, clock()

    def delay(self) -> float:
        """Take a token and return the seconds to wait before using it."""
        self._fill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    def take(self) -> bool:
        """Take a token if there is one; return whether there was."""
        self._fill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
