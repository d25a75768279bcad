"""Values that are looked up much more often than they are created: hashed once, and equal values stored once."""

from collections.abc import Hashable
from dataclasses import fields
from typing import Any, Final, TypeVar

from berth_api.values.caching import sized_cache

K = TypeVar("K", bound=Hashable)

MAX_BYTES: Final = 2**23


def hash_of(value: Any) -> int:
    """Return the hash of all compared fields of a dataclass; callers keep it, because it is slow to compute."""
    return hash(tuple(getattr(value, field.name) for field in fields(value) if field.compare))


def intern(value: K) -> K:
    """Return the earliest of equal values.

    Equal nodes, pods and cards then share one value, and a lookup that finds the identical object skips `__eq__`.
    """
    earliest: K = _earliest(value)
    return earliest


@sized_cache(MAX_BYTES)
def _earliest(value: Hashable) -> Any:
    return value
