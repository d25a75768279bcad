"""Lists of names in messages, which are bounded."""

from collections.abc import Iterable
from typing import Final

SHOWN: Final = 5
"""Names that a message lists before it counts the others."""


def first_of(names: Iterable[str], shown: int = SHOWN, separator: str = ", ") -> str:
    """Return the first names, joined by the separator, and how many more there are: `a, b and 3 more`."""
    listed = list(names)
    more = len(listed) - shown
    text = separator.join(listed[:shown])
    return f"{text} and {more} more" if more > 0 else text
