"""A dict of mutable values. Its copies share the values until one of them changes a value.

Copying each value would take most of the time of a copy of the Fleet, but a what-if changes few values.
"""

from collections.abc import Callable, Hashable
from typing import Protocol, Self, TypeVar


class Copyable(Protocol):
    """A value that can be copied."""

    def copy(self) -> Self:
        """Return an independent copy."""


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Copyable)


class CopyOnWrite(dict[K, V]):
    """Values that are changed only as `own` returns them, and removed only by `drop`."""

    def __init__(self, values: "CopyOnWrite[K, V] | tuple[()]" = ()) -> None:
        super().__init__(values)
        self._owned: set[K] = set()
        """The keys of the values that no copy shares."""

    def own(self, key: K, new: Callable[[], V]) -> V:
        """Return a key's value to be changed; a new one if there is none."""
        if key in self._owned:
            return self[key]
        self._owned.add(key)
        value = self.get(key)
        made = self[key] = new() if value is None else value.copy()
        return made

    def drop(self, key: K) -> None:
        """Remove a key, if it is there."""
        self._owned.discard(key)
        self.pop(key, None)

    def copy(self) -> Self:
        """Return an independent copy."""
        self._owned = set()
        return type(self)(self)
