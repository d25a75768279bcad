"""Take turns among namespaces: next is the namespace whose claims have taken the least time recently."""

from typing import Final

HALVED: Final = 10.0
"""Seconds after which used time counts half."""
NEGLIGIBLE: Final = 1e-4
"""Seconds that are forgotten."""


class NamespaceTurns:
    """The time that was recently taken for the claims of each namespace."""

    def __init__(self) -> None:
        self._taken: dict[str, float] = {}
        self._halved_at = 0.0

    def taken(self, namespace: str) -> float:
        """Return the seconds that a namespace has used. Older use counts less."""
        return self._taken.get(namespace, 0.0)

    def take(self, namespace: str, seconds: float, now: float) -> None:
        """Record time for a namespace; `now` is a monotonic clock in seconds."""
        if now - self._halved_at >= HALVED:
            halves = 0.5 ** min(64.0, (now - self._halved_at) // HALVED)
            self._taken = {name: left for name, taken in self._taken.items() if (left := taken * halves) > NEGLIGIBLE}
            self._halved_at = now
        self._taken[namespace] = self._taken.get(namespace, 0.0) + seconds
