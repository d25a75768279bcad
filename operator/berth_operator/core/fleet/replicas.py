"""How many replicas of each controller are on each node, of those that are not terminating.

Which they are is always known; a line of counts is made for a controller when a pod of it is decided, kept current from
then on, and dropped when it has not been asked for longest.
"""

from collections import Counter
from typing import Final, Self

from berth_operator.core.fleet.copies import with_own
from berth_operator.core.fleet.tally import Counts, Tally

MOST: Final = 1024
"""Controllers whose replicas are counted at once: 20 MB at 5,000 nodes."""


class Replicas:
    """The placed replicas of all controllers, each known by its UID."""

    def __init__(self, rows: int) -> None:
        self._rows: dict[str, Counter[int]] = {}
        """Controller -> row -> number of its replicas there."""
        self._tally: Tally[str] = Tally(rows)

    def place(self, row: int, controller: str, sign: int) -> None:
        """Count one more replica on a row, or one less."""
        rows = self._rows.setdefault(controller, Counter())
        rows[row] += sign
        if not rows[row]:
            del rows[row]
            if not rows:
                del self._rows[controller]
        if (line := self._tally.lines.get(controller)) is not None:
            self._tally.counts[line, row] += sign

    def count(self, controller: str) -> Counts:
        """Return the number of a controller's replicas per row; read-only."""
        line = self._tally.touch(controller)
        if line is None:
            line = self._add_line(controller)
        return self._tally.line(line)

    def copy(self) -> Self:
        """Return replicas that can change without these."""
        rows = {controller: rows.copy() for controller, rows in self._rows.items()}
        return with_own(self, _rows=rows, _tally=self._tally.copy())

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        self._tally.grow(rows)

    def _add_line(self, controller: str) -> int:
        if len(self._tally) >= MOST:
            self._tally.drop(next(iter(self._tally.lines)))
        line, rows = self._tally.add(controller), self._rows.get(controller, Counter())
        self._tally.counts[line, list(rows)] = list(rows.values())
        return line
