"""Values that are computed over many turns of the operator's loop and cached within a memory limit."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

PATIENCE: Final = 64
"""New values that are refused for each kept value, until a value that was not used meanwhile gives way."""


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    used_at: int = 0


class Kept(Generic[K, V]):
    """Values by key, the least recently used first.

    At the bound, a new value is refused rather than replacing an unfinished one. If each took the other's place, no
    value would ever be finished.
    """

    def __init__(self, is_unfinished: Callable[[V], bool] = lambda _: False) -> None:
        self._is_unfinished = is_unfinished
        self._entries: dict[K, _Entry[V]] = {}
        self._refused = 0
        """How many values were refused."""

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, key: K) -> V | None:
        """Return a value, which does not count as a use."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def use(self, key: K, create: Callable[[], V], most: int) -> V | None:
        """Return a value, created if it is missing; None if `most` values are unfinished."""
        entry = self._entries.pop(key, None)
        if entry is None:
            if not self._make_room(most):
                self._refused += 1
                return None
            entry = _Entry(create())
        entry.used_at = self._refused
        self._entries[key] = entry
        return entry.value

    def put(self, key: K, value: V) -> None:
        """Keep a value, whatever the bound."""
        self._entries[key] = _Entry(value, self._refused)

    def newest(self, number: int) -> Iterator[tuple[K, V]]:
        """Yield the values that were used last, the oldest first."""
        for key in [*islice(reversed(self._entries), number)][::-1]:
            yield key, self._entries[key].value

    def clear(self) -> None:
        """Remove all values."""
        self._entries.clear()

    def _make_room(self, most: int) -> bool:
        while len(self._entries) >= most:
            idle_since = self._refused - PATIENCE * len(self._entries)
            removable = (
                key
                for key, entry in self._entries.items()
                if entry.used_at < idle_since or not self._is_unfinished(entry.value)
            )
            key = next(removable, None)
            if key is None:
                return False
            del self._entries[key]
        return True
