"""Bounded lists of names in messages."""

from collections.abc import Iterable
from typing import Final

SHOWN: Final = 5
"""Names that a message lists before it counts the others; a single other is listed, too."""


def first_of(names: Iterable[str], shown: int = SHOWN, separator: str = ", ") -> str:
    """Return the first names, joined by the separator, and how many more there are: `a, b and 3 more`."""
    listed = list(names)
    more = len(listed) - shown
    return f"{separator.join(listed[:shown])} and {more} more" if more > 1 else separator.join(listed)
