"""A cache of columns that recomputes only the rows that changed.

A decision changes one row. A filter's or a score's result for a row often depends only on that row and on a part of the
request that many classes share, for example an amount of cpu or a number of cards. So almost all of a column is still
valid for the next decision.

Rows with equal fingerprints have equal results. Nodes are often equal, and equal pods fill them in equal steps. So most
changed rows become equal to an earlier row, whose result is then reused.
"""

from collections.abc import Callable, Hashable, Iterable
from hashlib import blake2b
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from berth_api.values.caching import size_of
from berth_operator.core.fleet.arrays.columns import read_only

Rows = slice | npt.NDArray[np.intp]
"""The rows to compute."""
Values = npt.NDArray[Any]
T = TypeVar("T")

ALL: Final = slice(None)
MAX_BYTES: Final = 2**25
"""Maximum size of all cached columns with their keys: at 5,000 rows, 6,000 masks or 800 scores. If it were smaller than
the columns of the waiting classes, each column would evict the column that is needed next."""
MAX_FINGERPRINTS: Final = 64
"""Maximum number of fingerprints whose value a column remembers."""
REMEMBERED_BYTES: Final = 200
"""Bytes of a fingerprint and of the entry that holds its value, without the value itself."""
MAX_ROW_VALUES: Final = 4096
"""Maximum number of results of single rows, for all keys together."""
MAX_ROW_BYTES: Final = 2**24
"""Maximum size of their keys, which have parts of users' requests."""
WEIGHED: Final = 32
"""One of this many keys of single rows is weighed for all: weighing each would take as long as most of the decision."""
MIN_LOOKUPS: Final = 200
LOOKUPS_PER_HIT: Final = 4
"""After MIN_LOOKUPS, fingerprints are used only while at least one of this many look-ups is a hit."""
SKIPPED: Final = 1000
"""Look-ups that are skipped before MIN_LOOKUPS are tried again: after a start nearly none are hits."""
MAX_OF_NODES: Final = 16
"""Maximum number of values that depend on nodes but not on charges."""
MAX_ROWS_ONE_BY_ONE: Final = 4
"""Up to this number of changed rows are looked up one by one. More rows are computed together."""


def only(row: int) -> slice:
    """Return a single row as a slice, which picks it without a copy."""
    return slice(row, row + 1)


def pick(values: Values, rows: Rows) -> Values:
    """Return these rows of an array whose first axis is the rows; the result may be a view.

    Picking is most of the cost of a repair, and `take` needs a third of the time of indexing.
    """
    return values[rows] if isinstance(rows, slice) else values.take(rows, 0)


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


class _Memo:
    """Values of rows by fingerprint."""

    def __init__(self, max_values: int) -> None:
        self._max_values, self._values = max_values, dict[Hashable, Any]()
        self._lookups = self._hits = self._skipped = self._puts = self._bytes = 0

    def pays(self) -> bool:
        """Return whether to look up: enough look-ups are hits. In a fleet without equal nodes none are."""
        if self._lookups < MIN_LOOKUPS or LOOKUPS_PER_HIT * self._hits >= self._lookups:
            return True
        self._skipped += 1
        if self._skipped == SKIPPED:
            self._lookups = self._hits = self._skipped = 0
        return False

    def get(self, fingerprint: Hashable) -> Any:
        """Return the value of a row with the same fingerprint; None if there is none."""
        value = self._values.get(fingerprint)
        self._lookups += 1
        self._hits += value is not None
        return value

    def put(self, fingerprint: Hashable, value: Any) -> None:
        """Remember a value; if the memo is full, clear it first."""
        if len(self._values) >= self._max_values or self._bytes > MAX_ROW_BYTES:
            self._values.clear()
            self._bytes = 0
        self._puts += 1
        if self._puts % WEIGHED == 0:
            self._bytes += WEIGHED * size_of((fingerprint, value))
        self._values[fingerprint] = value


class _CachedColumn:
    def __init__(self, key: Hashable, values: Values, seen: int, *, alike: bool) -> None:
        self.values, self.seen, self.alike = values, seen, alike
        """`seen`: the number of changes that the values include; `alike`: rows with equal fingerprints are equal."""
        self.size = values.nbytes + size_of(key)
        self.shown = read_only(values)
        self.memory, self.remembered = _Memo(MAX_FINGERPRINTS), 0


class ColumnCache:
    """The cached columns, and the rows that changed."""

    def __init__(self, static_key: Callable[[int], Hashable], dynamic_key: Callable[[int], bytes]) -> None:
        """Set the functions that together return everything that columns may read of a row.

        The static key of a row is valid until `alter`, the dynamic key until `move`.
        """
        self._static_key, self._dynamic_key = static_key, dynamic_key
        self._static_digests: dict[int, bytes] = {}
        """Row -> digest of its static key, as far as computed."""
        self._fingerprints: dict[int, bytes] = {}
        """Row -> fingerprint, as far as computed since the row changed: a digest, as the keys of a node with many cards
        have tens of kilobytes."""
        self._row_values = _Memo(MAX_ROW_VALUES)
        self._of_nodes: dict[Hashable, Any] = {}
        """Key -> value, valid until a node or an inventory changes."""
        self._kept: dict[Hashable, _CachedColumn] = {}
        """Key -> column; the least recently used one comes first."""
        self._size = 0
        """Bytes of all cached columns."""
        self._moved: list[int] = []
        self._dropped = 0
        """Number of changes that were removed from the start of `_moved`."""

    def move(self, row: int) -> None:
        """Record that a row's charges changed."""
        self._moved.append(row)
        self._fingerprints.pop(row, None)

    def alter(self, row: int) -> None:
        """Record that a row's node or inventory changed."""
        self._static_digests.pop(row, None)
        self._of_nodes.clear()
        self.move(row)

    def forget(self) -> None:
        """Drop all columns, because the number of rows changed."""
        self._kept.clear()
        self._fingerprints.clear()
        self._of_nodes.clear()
        self._size = 0

    @property
    def size(self) -> int:
        """Return the bytes of all columns, with their keys and what they remember."""
        return self._size

    @property
    def changes(self) -> int:
        """Return the number of changes so far."""
        return self._dropped + len(self._moved)

    def moved_since(self, changes: int) -> list[int] | None:
        """Return the rows that changed after a number of changes; None if they are no longer known."""
        return None if changes < self._dropped else self._moved[changes - self._dropped :]

    def column(self, key: Hashable, compute: Callable[[Rows], Values], *, alike: bool = True) -> Values:
        """Return the column of a key, computed by `compute`; read-only.

        Args:
            key: names the column, and everything that it is computed from except the rows.
            compute: returns the values of rows.
            alike: whether rows with equal fingerprints have equal values. They do not if the values depend on
            measurements, or on which cards a row has.
        """
        changes = self.changes
        kept = self._kept.pop(key, None)
        if kept is None or kept.seen < self._dropped:
            self._size -= 0 if kept is None else kept.size
            kept = _CachedColumn(key, compute(ALL), changes, alike=alike)
            self._evict(kept)
        # Before the repair, in which a plug-in may fail.
        self._kept[key] = kept
        if kept.seen < changes:
            self._repair(kept, compute)
            kept.seen = changes
        return kept.shown

    def of_nodes(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `compute` for all rows; it must not be None.

        It reads no charges, unless it follows them by `moved_since`.
        """
        value: T | None = self._of_nodes.get(key)
        if value is None:
            value = compute()
            if len(self._of_nodes) >= MAX_OF_NODES:
                self._of_nodes.clear()
            self._of_nodes[key] = value
        return value

    def of_row(self, row: int, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `compute` for one row; it must not be None."""
        if not self._row_values.pays():
            return compute()
        place = (key, self._fingerprint(row))
        answer: T | None = self._row_values.get(place)
        if answer is None:
            self._row_values.put(place, answer := compute())
        return answer

    def _repair(self, kept: _CachedColumn, compute: Callable[[Rows], Values]) -> None:
        """Recompute the rows that changed; all rows if more than half did, because picking them would cost more."""
        rows = set(self._moved[kept.seen - self._dropped :])
        if one_by_one := kept.alike and len(rows) <= MAX_ROWS_ONE_BY_ONE and kept.memory.pays():
            rows -= {row for row in rows if self._restore(kept, row)}
            if not rows:
                return
        picked = np.fromiter(rows, np.intp, len(rows)) if 2 * len(rows) < len(kept.values) else ALL
        kept.values[picked] = compute(picked)
        if one_by_one:
            self._remember(kept, rows)

    def _restore(self, kept: _CachedColumn, row: int) -> bool:
        """Set a row to the value of a row with the same fingerprint; return whether there was one."""
        values = kept.memory.get(self._fingerprint(row))
        if values is not None:
            kept.values[row] = values
        return values is not None

    def _remember(self, kept: _CachedColumn, rows: Iterable[int]) -> None:
        for row in rows:
            kept.memory.put(self._fingerprint(row), value := kept.values[row].copy())
            if kept.remembered < MAX_FINGERPRINTS:
                kept.remembered += 1
                kept.size += REMEMBERED_BYTES + value.nbytes
                self._size += REMEMBERED_BYTES + value.nbytes

    def _fingerprint(self, row: int) -> bytes:
        if (fingerprint := self._fingerprints.get(row)) is None:
            fingerprint = self._fingerprints[row] = _digest(self._static_digest(row) + self._dynamic_key(row))
        return fingerprint

    def _static_digest(self, row: int) -> bytes:
        if (digest := self._static_digests.get(row)) is None:
            digest = self._static_digests[row] = _digest(repr(self._static_key(row)).encode())
        return digest

    def _evict(self, added: _CachedColumn) -> None:
        self._size += added.size
        while self._size > MAX_BYTES and self._kept:
            self._size -= self._kept.pop(next(iter(self._kept))).size
        rows = len(added.values)
        if len(self._moved) > 2 * rows:
            # A column that missed this many changes is cheaper to compute than to repair.
            self._dropped += len(self._moved) - rows
            del self._moved[:-rows]
