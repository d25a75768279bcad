"""Values that are looked up far more often than they are made: hashed once, and of equal ones a single one kept."""

from collections.abc import Hashable
from dataclasses import fields
from functools import lru_cache
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def hash_of(value: Any) -> int:
    """Give the hash of all fields of a dataclass that are compared: to be kept, since computing it takes a while."""
    return hash(tuple(getattr(value, field.name) for field in fields(value) if field.compare))


def intern(value: K) -> K:
    """Give of equal values the one that was here first.

    A fleet of equal things keeps it once, and a look-up that finds the very same value need not compare it.
    """
    earliest: K = _earliest(value)
    return earliest


@lru_cache(maxsize=8192)
def _earliest(value: Hashable) -> Any:
    return value
