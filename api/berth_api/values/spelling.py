"""Suggest the probable meaning of a misspelt name."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Final

LIKELY: Final = 0.7
"""The least similarity (0 to 1) for a suggestion where the name is wrong in any case: `gpu-mem` for `gpu-memory`."""
ALMOST_SURE: Final = 0.85
"""The least similarity where the name may be right: `device-alocate-hint`, not another annotation of Koordinator."""
MAX_LENGTH: Final = 317
"""Characters of the longest name of an annotation, label or resource. Longer names are not compared."""
SURE: Final = 0.9
"""The least similarity of whole names of the form `berth-scheduler`, whose second half is common."""


def closest(name: str, known: Iterable[str], similarity: float = LIKELY) -> str:
    """Return the known name that is most similar to a name, ignoring case; empty if none is similar enough."""
    if len(name) > MAX_LENGTH:
        return ""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=similarity)
    return by_lower[matches[0]] if matches else ""


def question(short: str, known: Sequence[str], prefix: str) -> str:
    """Return which known name an unknown one may mean, or all of them; the names are without their prefix."""
    if nearest := closest(short, known):
        return f"did you mean {nearest}?"
    return f"not known; allowed after {prefix} are {', '.join(known)}"
