"""A mask of nodes for each key that any node has, for example a taint or an image."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.columns import all_read_only, read_only
from berth_operator.core.fleet.arrays.copies import with_own

Mask = npt.NDArray[np.bool_]
K = TypeVar("K", bound=Hashable)


class KeyedMasks(Generic[K]):
    """The rows that have each key. A key that no row has is dropped; keys with a timestamp would accumulate."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._own: dict[K, Mask] = {}
        self._shown: dict[K, Mask] = {}
        self._keys: dict[int, frozenset[K]] = {}
        """Row -> its keys; only rows that have some."""

    @property
    def masks(self) -> Mapping[K, Mask]:
        """Return the mask of each key, in the order in which the keys were added; read-only."""
        return self._shown

    def put(self, row: int, keys: Sequence[K]) -> Sequence[K]:
        """Replace the keys of a row, and return the keys that no row has any more."""
        before = self._keys.pop(row, frozenset())
        for key in keys:
            if key not in before:
                self._mask(key)[row] = True
        if keys:
            self._keys[row] = frozenset(keys)
        return [key for key in before.difference(keys) if self._remove(key, row)]

    def copy(self) -> Self:
        """Return an independent copy."""
        own = {key: mask.copy() for key, mask in self._own.items()}
        return with_own(self, _own=own, _shown=all_read_only(own), _keys=self._keys.copy())

    def grow(self, rows: int) -> None:
        """Enlarge to this number of rows."""
        self._own = {key: np.pad(mask, (0, rows - self._rows)) for key, mask in self._own.items()}
        self._shown, self._rows = all_read_only(self._own), rows

    def _mask(self, key: K) -> Mask:
        if key not in self._own:
            self._own[key] = np.zeros(self._rows, np.bool_)
            self._shown[key] = read_only(self._own[key])
        return self._own[key]

    def _remove(self, key: K, row: int) -> bool:
        """Remove a key from a row, and return whether no other row has it."""
        mask = self._own[key]
        mask[row] = False
        if mask.any():
            return False
        del self._own[key], self._shown[key]
        return True
