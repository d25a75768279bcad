"""Which node has which container images.

An image counts with the size that the first node told of it, as in kube-scheduler.
"""

from collections.abc import Iterable
from typing import Self

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.copies import with_own

Mask = npt.NDArray[np.bool_]


class Images:
    """The images of all nodes."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._sizes: dict[str, int] = {}
        self._nodes: dict[str, Mask] = {}
        self._of: dict[int, frozenset[str]] = {}

    def put(self, row: int, images: Iterable[tuple[str, int]]) -> None:
        """Replace what is told of a node's images: (name, bytes) of each."""
        sizes = dict(images)
        before, now = self._of.get(row, frozenset()), frozenset(sizes)
        for name in now - before:
            self._sizes.setdefault(name, sizes[name])
            self._nodes.setdefault(name, np.zeros(self._rows, np.bool_))[row] = True
        for name in before - now:
            self._nodes[name][row] = False
            if not self._nodes[name].any():
                del self._nodes[name], self._sizes[name]
        self._of[row] = now
        if not now:
            del self._of[row]

    def found(self, name: str) -> tuple[int, Mask] | None:
        """Give an image's size and the rows that have it, if any."""
        rows = self._nodes.get(name)
        return None if rows is None else (self._sizes[name], rows)

    def copy(self) -> Self:
        """Give images that can change without these."""
        nodes = {name: mask.copy() for name, mask in self._nodes.items()}
        return with_own(self, _sizes=self._sizes.copy(), _of=self._of.copy(), _nodes=nodes)

    def grow(self, rows: int) -> None:
        """Make room for more nodes."""
        self._nodes = {name: np.pad(mask, (0, rows - self._rows)) for name, mask in self._nodes.items()}
        self._rows = rows
