"""Columns computed row by row, kept, and computed anew for those rows alone that have moved since.

A decision moves one row. What a filter or a score says of a row often depends on nothing but that row and a part of
the request which many classes share (so much cpu, so many cards), so nearly all of it still stands at the next one.

What is said of one row holds for every row that looks the same. Nodes are often equal, and are filled by equal pods in
equal steps, so most rows that move look as another one did before: then nothing is computed at all.
"""

from collections.abc import Callable, Hashable, Iterable
from hashlib import blake2b
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.columns import read_only

Rows = slice | npt.NDArray[np.intp]
"""The rows that are asked for."""
Values = npt.NDArray[Any]
T = TypeVar("T")

ALL: Final = slice(None)
MAX_BYTES: Final = 2**25
"""Bytes of columns kept: at 5,000 rows 6,000 masks or 800 scores. With room for fewer than the classes that wait, each
would push out the one that is asked for next."""
MAX_FINGERPRINTS: Final = 64
"""Looks of which a column remembers what is said."""
MAX_ANSWERS: Final = 4096
"""What is remembered of single rows, for all questions together."""
MIN_LOOKUPS: Final = 200
LOOKUPS_PER_HIT: Final = 4
"""After so many rows looking goes on if it was known what to say of one in so many."""
MAX_ROWS_ONE_BY_ONE: Final = 4
"""So many rows at most are looked at one by one; more are computed side by side."""


def only(row: int) -> slice:
    """Return a row as one that is asked for alone: nothing is copied to pick it."""
    return slice(row, row + 1)


def pick(values: Values, rows: Rows) -> Values:
    """Return what these rows have of an array whose first axis is the rows; it may be a view of the array.

    Picking is most of what a repair costs, and `take` does it in a third of the time that an index needs.
    """
    return values[rows] if isinstance(rows, slice) else values.take(rows, 0)


class _Memo:
    """What was said of rows, by their looks."""

    def __init__(self, most: int) -> None:
        self._most, self._values = most, dict[Hashable, Any]()
        self._lookups = self._hits = 0

    @property
    def pays(self) -> bool:
        """Return whether looking at rows pays: in a fleet where no two are alike it never does."""
        return self._lookups < MIN_LOOKUPS or LOOKUPS_PER_HIT * self._hits >= self._lookups

    def recall(self, fingerprint: Hashable) -> Any:
        """Return what was said of a row that looked the same; None if there was none."""
        value = self._values.get(fingerprint)
        self._lookups += 1
        self._hits += value is not None
        return value

    def remember(self, fingerprint: Hashable, value: Any) -> None:
        """Keep what is said; too much is forgotten at once."""
        if len(self._values) >= self._most:
            self._values.clear()
        self._values[fingerprint] = value


class _CachedColumn:
    def __init__(self, values: Values, seen: int) -> None:
        self.values, self.seen = values, seen
        """`seen`: how many moves it has taken in."""
        self.shown = read_only(values)
        self.memory = _Memo(MAX_FINGERPRINTS)


class ColumnCache:
    """The kept columns, and which rows have moved."""

    def __init__(self, static_key: Callable[[int], Hashable], dynamic_key: Callable[[int], bytes]) -> None:
        """The two give, together, all that columns may read of a row; its nature stands until it is altered."""
        self._static_key, self._dynamic_key = static_key, dynamic_key
        self._static_digests: dict[int, bytes] = {}
        """Digests of natures, once somebody asked."""
        self._fingerprints: dict[int, bytes] = {}
        """Of rows that have not moved since."""
        self._answers = _Memo(MAX_ANSWERS)
        self._kept: dict[Hashable, _CachedColumn] = {}
        """The longest unused comes first."""
        self._size = 0
        """Bytes of all of them."""
        self._moved: list[int] = []
        self._dropped = 0
        """Moves that are no longer in the list."""

    def move(self, row: int) -> None:
        """Say that a row is no longer what it was."""
        self._moved.append(row)
        self._fingerprints.pop(row, None)

    def alter(self, row: int) -> None:
        """Say that a row is to be of another nature."""
        self._static_digests.pop(row, None)
        self.move(row)

    def forget(self) -> None:
        """Drop all columns: the number of rows has changed."""
        self._kept.clear()
        self._fingerprints.clear()
        self._size = 0

    def column(self, key: Hashable, compute: Callable[[Rows], Values]) -> Values:
        """Return a column, as `compute` has it for these rows."""
        now = self._dropped + len(self._moved)
        kept = self._kept.pop(key, None)
        if kept is None or kept.seen < self._dropped:
            self._size -= 0 if kept is None else kept.values.nbytes
            kept = _CachedColumn(compute(ALL), now)
            self._evict(kept.values)
        # Before the repair, in which a plug-in may fail.
        self._kept[key] = kept
        if kept.seen < now:
            self._repair(kept, compute)
            kept.seen = now
        return kept.shown

    def of_row(self, row: int, key: Hashable, compute: Callable[[], T]) -> T:
        """Return what `compute` finds out about one row; never None."""
        if not self._answers.pays:
            return compute()
        place = (key, self._fingerprint(row))
        answer: T | None = self._answers.recall(place)
        if answer is None:
            self._answers.remember(place, answer := compute())
        return answer

    def _repair(self, kept: _CachedColumn, compute: Callable[[Rows], Values]) -> None:
        """Compute the rows that have moved since; all, where they are so many that picking them costs more."""
        rows = set(self._moved[kept.seen - self._dropped :])
        if alike := len(rows) <= MAX_ROWS_ONE_BY_ONE and kept.memory.pays:
            rows -= {row for row in rows if self._restore(kept, row)}
            if not rows:
                return
        picked = np.fromiter(rows, np.intp, len(rows)) if 2 * len(rows) < len(kept.values) else ALL
        kept.values[picked] = compute(picked)
        if alike:
            self._remember(kept, rows)

    def _restore(self, kept: _CachedColumn, row: int) -> bool:
        """Say of a row what was said of one that looked the same, if there was one."""
        values = kept.memory.recall(self._fingerprint(row))
        if values is not None:
            kept.values[row] = values
        return values is not None

    def _remember(self, kept: _CachedColumn, rows: Iterable[int]) -> None:
        for row in rows:
            kept.memory.remember(self._fingerprint(row), kept.values[row].copy())

    def _fingerprint(self, row: int) -> bytes:
        if (fingerprint := self._fingerprints.get(row)) is None:
            fingerprint = self._fingerprints[row] = self._digest(row) + self._dynamic_key(row)
        return fingerprint

    def _digest(self, row: int) -> bytes:
        if (digest := self._static_digests.get(row)) is None:
            text = repr(self._static_key(row)).encode()
            digest = self._static_digests[row] = blake2b(text, digest_size=16).digest()
        return digest

    def _evict(self, values: Values) -> None:
        self._size += values.nbytes
        while self._size > MAX_BYTES and self._kept:
            self._size -= self._kept.pop(next(iter(self._kept))).values.nbytes
        if len(self._moved) > 2 * len(values):
            # A column that missed this many changes is cheaper to compute than to repair.
            self._dropped += len(self._moved) - len(values)
            del self._moved[: -len(values)]
