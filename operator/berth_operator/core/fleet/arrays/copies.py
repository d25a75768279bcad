"""Shallow copies with some attributes replaced."""

import copy
from typing import TypeVar

T = TypeVar("T")


def with_own(original: T, **parts: object) -> T:
    """Return a shallow copy of an object with these attributes replaced; all others are shared."""
    new = copy.copy(original)
    vars(new).update(parts)
    return new
