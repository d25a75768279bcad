"""Record what changed since a cache last looked, for caches that are read less often than things change."""

from collections.abc import Hashable, Iterator
from typing import Generic, Self, TypeVar

K = TypeVar("K", bound=Hashable)


class ChangeLog(Generic[K]):
    """Keys in the order of their last change: one entry for each key, however often it changes."""

    def __init__(self) -> None:
        self._at: dict[K, int] = {}
        self.now = 0
        """The number of changes."""

    def note(self, key: K) -> None:
        """Record a change."""
        self.now += 1
        self._at.pop(key, None)
        self._at[key] = self.now

    def since(self, seen: int) -> Iterator[K]:
        """Yield the keys that changed after `now` was `seen`, the last one first."""
        for key, at in reversed(self._at.items()):
            if at <= seen:
                return
            yield key

    def clear(self) -> None:
        """Forget all changes. Call it when nothing depends on earlier ones."""
        self._at.clear()

    def __len__(self) -> int:
        """Return the number of keys that have changed."""
        return len(self._at)

    def copy(self) -> Self:
        """Return an independent copy."""
        new = type(self)()
        new._at, new.now = self._at.copy(), self.now  # noqa: SLF001 - of this class
        return new
