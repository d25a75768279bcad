"""Copies that share all that is not named."""

import copy
from typing import TypeVar

T = TypeVar("T")


def with_own(original: T, **parts: object) -> T:
    """Return a copy of an object that has these attributes as its own, and all others in common with it."""
    new = copy.copy(original)
    vars(new).update(parts)
    return new
