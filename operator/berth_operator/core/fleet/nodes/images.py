"""The container images of each node.

An image has the size that the first node reported, as in kube-scheduler.
"""

from collections.abc import Iterable
from typing import Self

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.arrays.keyed_masks import KeyedMasks

Mask = npt.NDArray[np.bool_]


class Images:
    """The images of all nodes."""

    def __init__(self, rows: int) -> None:
        self._sizes: dict[str, int] = {}
        self._nodes: KeyedMasks[str] = KeyedMasks(rows)

    def put(self, row: int, images: Iterable[tuple[str, int]]) -> None:
        """Replace a node's images: (name, bytes) of each."""
        sizes = dict(images)
        for name, size in sizes.items():
            self._sizes.setdefault(name, size)
        for name in self._nodes.put(row, tuple(sizes)):
            del self._sizes[name]

    def found(self, name: str) -> tuple[int, Mask] | None:
        """Return an image's size in bytes and the rows that have it; None if no node has it."""
        rows = self._nodes.masks.get(name)
        return None if rows is None else (self._sizes[name], rows)

    def copy(self) -> Self:
        """Return an independent copy."""
        return with_own(self, _sizes=self._sizes.copy(), _nodes=self._nodes.copy())

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        self._nodes.grow(rows)
