"""Node labels as columns of integers: one for each key that was looked up.

A column has the number of the label's value for each row, or `ABSENT` if the node does not have the label. A
requirement on a label is a short table from the numbers of values to yes or no. Its result for all nodes is this table
indexed by the column:

    zone          on rows 0 to 3:  [1, 2, 0, 1]           numbers: a=1, b=2
    zone In (a)   as a table:      [no, yes, no]          -> rows 0 and 3
"""

from collections.abc import Mapping
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from berth_api.values.caching import SizedCache
from berth_api.values.selectors import IN, Requirement
from berth_operator.core.fleet.arrays.columns import read_only
from berth_operator.core.fleet.arrays.copies import with_own

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.intp]

ABSENT: Final = 0
"""The number of the value of a label that a node does not have."""
MAX_CACHED: Final = 512
"""Maximum number of cached keys. They come from users' pods and have no other limit."""
MAX_TABLES: Final = 2**17
"""Maximum bytes of a key's cached tables: enough for 25 requirements on the name of 5,000 hosts."""


class LabelColumn:
    """The values of one label."""

    def __init__(self, key: str, labels: list[Mapping[str, str]]) -> None:
        self.key = key
        self.values: dict[str, int] = {}
        """Value -> its number, from 1; a value that no node has any more keeps its number."""
        self._numbers: Numbers = np.zeros(len(labels), np.intp)
        self.numbers = read_only(self._numbers)
        """The number of each row's value; read-only."""
        self._tables: SizedCache[Requirement, Mask] = SizedCache(MAX_TABLES)
        for row, labels_of_row in enumerate(labels):
            self.put(row, labels_of_row)

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        """Set a row's value from its node's labels."""
        value = labels.get(self.key)
        self._numbers[row] = ABSENT if value is None else self.values.setdefault(value, len(self.values) + 1)

    def copy(self) -> Self:
        """Return an independent copy."""
        numbers = self._numbers.copy()
        return with_own(
            self,
            values=self.values.copy(),
            numbers=read_only(numbers),
            _numbers=numbers,
            _tables=SizedCache(MAX_TABLES),
        )

    @property
    def is_stale(self) -> bool:
        """Return whether most values are of nodes that no longer exist."""
        return len(self.values) > 2 * len(self.numbers)

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        self._numbers = np.pad(self._numbers, (0, rows - len(self._numbers)))
        self.numbers = read_only(self._numbers)

    def meeting(self, requirement: Requirement) -> Mask:
        """Return the rows whose value meets a requirement on this label."""
        table = self._tables.get(requirement)
        if table is None or len(table) <= len(self.values):
            table = self._table(requirement)
            self._tables.put(requirement, table)
        mask: Mask = table[self.numbers]
        return mask

    def _table(self, requirement: Requirement) -> Mask:
        if requirement.operator != IN:
            accepted = (requirement.accepts(value) for value in (None, *self.values))
            return np.fromiter(accepted, np.bool_, len(self.values) + 1)
        # Look up the listed values instead of testing each known value: there are as many host names as nodes.
        table = np.zeros(len(self.values) + 1, np.bool_)
        table[[self.values[value] for value in requirement.values if value in self.values]] = True
        return table


class Labels:
    """The labels of all nodes."""

    def __init__(self, rows: int) -> None:
        self._rows: list[Mapping[str, str]] = [{}] * rows
        self._columns: dict[str, LabelColumn] = {}
        self.version = 0
        """Incremented by every change; caches that depend on labels compare it."""

    def __getitem__(self, row: int) -> Mapping[str, str]:
        """Return a node's labels."""
        return self._rows[row]

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        """Replace a node's labels."""
        self.version += self._rows[row] != labels
        self._rows[row] = labels
        for column in self._columns.values():
            column.put(row, labels)
        for key in [key for key, column in self._columns.items() if column.is_stale]:
            del self._columns[key]

    def copy(self) -> Self:
        """Return an independent copy."""
        columns = {key: column.copy() for key, column in self._columns.items()}
        return with_own(self, _rows=self._rows.copy(), _columns=columns)

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        self._rows += [{}] * (rows - len(self._rows))
        for column in self._columns.values():
            column.grow(rows)

    def column(self, key: str) -> LabelColumn:
        """Return a label's column. It is valid until the next change, so callers must not keep it."""
        column = self._columns.get(key)
        if column is None:
            if len(self._columns) >= MAX_CACHED:
                self._columns.clear()
            column = self._columns[key] = LabelColumn(key, self._rows)
        return column

    def meeting(self, requirement: Requirement) -> Mask:
        """Return the rows whose labels meet a requirement."""
        return self.column(requirement.key).meeting(requirement)
