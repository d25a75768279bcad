"""Bounded label values: the most frequent values, and one value for all others."""

import heapq
from collections.abc import Collection, Mapping
from typing import Final

MOST: Final = 50
"""Different values of a label that tenants or nodes choose, at most."""
OTHER: Final = "other"


def frequent(amounts: Mapping[str, float], most: int = MOST) -> Collection[str]:
    """Return the values with the highest amounts, at most `most`. Among equal values, the first by name win."""
    if len(amounts) <= most:
        return amounts.keys()
    least = heapq.nlargest(most, amounts.values())[-1]
    above = [value for value, amount in amounts.items() if amount > least]
    equal = [value for value, amount in amounts.items() if amount == least]
    return {*above, *heapq.nsmallest(most - len(above), equal)}
