"""Columns computed row by row, kept, and computed anew for those rows alone that have moved since.

A decision moves one row. What a filter or a score says of a row often depends on nothing but that row and a part of
the request which many classes share (so much cpu, so many cards), so nearly all of it still stands at the next one.
"""

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Rows = slice | npt.NDArray[np.intp]
"""The rows that are asked for."""
Values = npt.NDArray[Any]

ALL: Final = slice(None)
MOST: Final = 2**25
"""Bytes of columns kept: at 5,000 rows 6,000 masks or 800 scores. With room for fewer than the classes that wait, each
would push out the one that is asked for next."""


class _Kept:
    def __init__(self, values: Values, seen: int) -> None:
        self.values, self.seen = values, seen
        """`seen`: how many moves it has taken in."""
        self.shown = values.view()
        self.shown.flags.writeable = False


class Rowwise:
    """The kept columns, and which rows have moved."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept] = {}
        """The longest unused comes first."""
        self._size = 0
        """Bytes of all of them."""
        self._moved: list[int] = []
        self._dropped = 0
        """Moves that are no longer in the list."""

    def move(self, row: int) -> None:
        """Say that a row is no longer what it was."""
        self._moved.append(row)

    def forget(self) -> None:
        """Drop all columns: the number of rows has changed."""
        self._kept.clear()
        self._size = 0

    def column(self, key: Hashable, compute: Callable[[Rows], Values]) -> Values:
        """Give a column, as `compute` has it for these rows."""
        now = self._dropped + len(self._moved)
        kept = self._kept.pop(key, None)
        if kept is None or kept.seen < self._dropped:
            self._size -= 0 if kept is None else kept.values.nbytes
            kept = _Kept(compute(ALL), now)
            self._make_room(kept.values)
        elif kept.seen < now:
            rows = self._since(kept)
            kept.values[rows] = compute(rows)
            kept.seen = now
        self._kept[key] = kept
        return kept.shown

    def _since(self, kept: _Kept) -> Rows:
        """Give the rows that have moved since; all, where they are so many that picking them costs more."""
        rows = set(self._moved[kept.seen - self._dropped :])
        return np.fromiter(rows, np.intp, len(rows)) if 2 * len(rows) < len(kept.values) else ALL

    def _make_room(self, values: Values) -> None:
        self._size += values.nbytes
        while self._size > MOST and self._kept:
            self._size -= self._kept.pop(next(iter(self._kept))).values.nbytes
        if len(self._moved) > 2 * len(values):
            # A column that has missed so many moves costs less to compute than to repair.
            self._dropped += len(self._moved) - len(values)
            del self._moved[: -len(values)]
