"""Measurements of a running GPU."""

import enum
import math
from dataclasses import dataclass
from typing import Final


class Quantity(enum.IntEnum):
    """What is measured, and the index of its column."""

    FREE_MEMORY = 0
    """Bytes."""
    MULTIPROCESSORS = 1
    """Share of the time in which a kernel ran, 0 to 1. The next two metrics are such shares, too."""
    ENCODER = 2
    DECODER = 3
    POWER = 4
    """Watts; so is the next one."""
    POWER_LIMIT = 5
    USED_MEMORY = 6
    """Bytes; read only where the free memory is unknown."""


Values = tuple[float, ...]
"""A value for each `Quantity`; NaN if it is unknown."""

UNKNOWN: Final = math.nan
RATIOS: Final = (Quantity.MULTIPROCESSORS, Quantity.ENCODER, Quantity.DECODER)
MEMORY: Final = (Quantity.FREE_MEMORY, Quantity.USED_MEMORY)
MAX_WATTS: Final = 10_000.0
"""More than any GPU can draw."""
TOLERANCE: Final = 0.05
"""A value that exceeds its range by at most this fraction is a rounding error, and is set to the end of the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSample:
    """One measurement of a GPU."""

    uuid: str
    node: str = ""
    """The node that the source names; empty if it names none."""
    age: float
    """Seconds since it was measured."""
    values: Values


def bounded(values: Values, memory: int) -> Values:
    """Return the values within their physical range, NaN for values outside. `memory` is the card's memory in bytes.

    If the free memory is unknown, it is computed from the used memory.
    """
    within = [_within(value, _upper(quantity, memory)) for quantity, value in zip(Quantity, values, strict=True)]
    if math.isnan(within[Quantity.FREE_MEMORY]):
        within[Quantity.FREE_MEMORY] = memory - within[Quantity.USED_MEMORY]
    return tuple(within)


def _upper(quantity: Quantity, memory: int) -> float:
    if quantity in MEMORY:
        return float(memory)
    return 1.0 if quantity in RATIOS else MAX_WATTS


def _within(value: float, upper: float) -> float:
    # NaN fails the comparison as well.
    if not -TOLERANCE * upper <= value <= (1 + TOLERANCE) * upper:
        return UNKNOWN
    return min(max(value, 0.0), upper)
