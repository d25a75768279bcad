"""The nodes that scored best in a decision, with the points of each score: why a pod was bound to its node."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.objects.visibility import NodeScore

Floats = npt.NDArray[np.float64]
Term = tuple[str, Floats]
"""Name of a score, and its weighted points for each row."""

NODES: Final = 3
"""The chosen node and its runners-up."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best nodes of a decision, the chosen one first."""

    rows: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    terms: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Name of each score, and its points for each of these nodes."""

    def scores(self) -> list[NodeScore]:
        """Return the points by node, to hundredths."""
        return [
            NodeScore(
                node=node,
                total=round(sum(points[place] for _, points in self.terms), 2),
                terms={name: round(points[place], 2) for name, points in self.terms},
            )
            for place, node in enumerate(self.nodes)
        ]


def rank(names: Sequence[str], totals: Floats, terms: Sequence[Term], *, tie: int = 0) -> Ranking:
    """Return the rows with the highest totals; -inf excludes a row.

    Among equal rows, the lowest comes first, so that the same fleet gives the same decision. Among several best rows,
    the row with the number `tie`, modulo their number, comes first.
    """
    left = totals.copy()
    rows: list[int] = []
    while len(rows) < NODES:
        row = int(left.argmax())
        if left[row] == -np.inf:
            break
        if tie and not rows:
            best = np.flatnonzero(left == left[row])
            row = int(best[tie % len(best)])
        rows.append(row)
        left[row] = -np.inf
    return Ranking(
        rows=tuple(rows),
        nodes=tuple(map(names.__getitem__, rows)),
        terms=tuple([(name, tuple(map(points.item, rows))) for name, points in terms]),
    )
