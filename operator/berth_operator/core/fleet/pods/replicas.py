"""The number of replicas of each controller on each node, without terminating pods.

The rows of all replicas are always known. A controller's line of counts is computed when it is first read, then updated
by every charge and release. It is dropped when it is the least recently used line.
"""

from collections import Counter
from typing import Final, Self

from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.arrays.copy_on_write import CopyOnWrite
from berth_operator.core.fleet.arrays.tally import Counts, Tally

MAX_CONTROLLERS: Final = 1024
"""Maximum number of controllers with a line of counts: 20 MB at 5,000 nodes."""


class Replicas:
    """The placed replicas of all controllers, by the controller's UID."""

    def __init__(self, rows: int) -> None:
        self._rows: CopyOnWrite[str, Counter[int]] = CopyOnWrite()
        """Controller -> row -> number of its replicas there."""
        self._tally: Tally[str] = Tally(rows)

    def place(self, row: int, controller: str, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) a replica on a row."""
        rows = self._rows.own(controller, Counter)
        rows[row] += sign
        if not rows[row]:
            del rows[row]
            if not rows:
                self._rows.drop(controller)
        if (line := self._tally.lines.get(controller)) is not None:
            self._tally.counts[line, row] += sign

    def count(self, controller: str) -> Counts:
        """Return the number of a controller's replicas per row; read-only."""
        line = self._tally.touch(controller)
        if line is None:
            line = self._add_line(controller)
        return self._tally.line(line)

    def copy(self) -> Self:
        """Return an independent copy."""
        return with_own(self, _rows=self._rows.copy(), _tally=self._tally.copy())

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        self._tally.grow(rows)

    def _add_line(self, controller: str) -> int:
        if len(self._tally) >= MAX_CONTROLLERS:
            self._tally.drop(next(iter(self._tally.lines)))
        line, rows = self._tally.add(controller), self._rows.get(controller, Counter())
        self._tally.counts[line, list(rows)] = list(rows.values())
        return line
