"""Caches bounded by bytes, for data parsed from objects of users and nodes.

If objects may be large, a limit on the number of entries is no bound: 4,096 specs of a megabyte are four gigabytes.
"""

import sys
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_SHARE: Final = 8
"""An entry larger than one of this many parts of a cache is not kept, because it would evict most of the others."""


_WITHOUT_PARTS: Final = frozenset({int, str, bytes, float, bool, type(None)})


def compact(data: bytes) -> bytes:
    """Return a compact copy of an orjson result that is kept: orjson leaves it in a buffer of 4 KiB or more.

    `sys.getsizeof` does not count the rest of the buffer, so a cache of such keys would exceed its limit many times.
    """
    return bytes(memoryview(data))


class HashedTuple(tuple[V, ...]):  # noqa: SLOT001 - a tuple cannot have slots of its own
    """A large tuple that is looked up often: its hash and its size are computed once."""

    _hash: int | None = None
    _size: int | None = None

    def __hash__(self) -> int:
        """Return the hash of all parts."""
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash

    @property
    def size(self) -> int:
        """Return about how many bytes it takes, with all that it refers to."""
        if self._size is None:
            self._size = size_of(tuple(self))
        return self._size


def size_of(value: object) -> int:
    """Return about how many bytes a value takes, with all that it refers to.

    What is referred to twice counts twice, so the result is an upper bound.
    """
    total, left = 0, [value]
    while left:
        part = left.pop()
        if type(part) in _WITHOUT_PARTS:
            total += sys.getsizeof(part)
        elif isinstance(part, HashedTuple):
            total += part.size
        else:
            # An array that is a view reports no data of its own.
            total += sys.getsizeof(part) + getattr(part, "nbytes", 0)
            if isinstance(part, tuple | list | frozenset | set):
                parts = list(part)
            elif isinstance(part, dict):
                parts = [*part, *part.values()]
            else:
                parts = [getattr(part, name) for name in getattr(type(part), "__dataclass_fields__", ())]
            left.extend(parts)
    return total


class SizedCache(Generic[K, V]):
    """Values by key. The least recently used values are dropped once all values take more than a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._entries: dict[K, tuple[V, int]] = {}
        """Key -> (value, bytes of both); the least recently used one comes first."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Return the bytes of all entries."""
        return self._bytes

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if there is none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._entries[key] = entry
        return entry[0]

    def put(self, key: K, value: V, size: int | None = None) -> None:
        """Keep a value, in place of the key's last one. `size` is in bytes, by default of key and value."""
        size, before = size_of((key, value)) if size is None else size, self._entries.pop(key, None)
        self._bytes -= 0 if before is None else before[1]
        if size * MAX_SHARE > self._max_bytes:
            return
        while self._bytes + size > self._max_bytes:
            self._bytes -= self._entries.pop(next(iter(self._entries)))[1]
        self._entries[key] = value, size
        self._bytes += size

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self._bytes = 0


class CachedFunction(Generic[P, V]):
    """A function whose results are kept, as by `functools.lru_cache`, up to a number of bytes."""

    def __init__(self, function: Callable[P, V], max_bytes: int) -> None:
        self.__doc__ = function.__doc__
        self.uncached: Final = function
        self.cache: Final[SizedCache[Any, V]] = SizedCache(max_bytes)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """Return the result for these arguments."""
        key = (args, *kwargs.items()) if kwargs else args
        value = self.cache.get(key)
        if value is None:
            value = self.uncached(*args, **kwargs)
            self.cache.put(key, value)
        return value


def sized_cache(max_bytes: int) -> Callable[[Callable[P, V]], CachedFunction[P, V]]:
    """Return a decorator for a pure function that never returns None and whose arguments are hashable."""
    return lambda function: CachedFunction(function, max_bytes)
