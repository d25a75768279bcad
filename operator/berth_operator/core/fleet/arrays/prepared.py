"""Values that are computed once for each state of the Devices and of the measurements.

They do not depend on charges. `ColumnCache` serves columns that do: it repairs them row by row.
"""

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MAX: Final = 64
"""Maximum number of values: there is one for each set of weights of the profiles."""


class Prepared:
    """Values by key, valid until `clear`."""

    def __init__(self) -> None:
        self.version = 0
        """Counts the states; for keys of columns that are computed from prepared values."""
        self._values: dict[Hashable, Any] = {}

    def clear(self) -> None:
        """Drop all values, because a Device or a measurement changed."""
        self.version += 1
        self._values.clear()

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the value of a key, computed by `compute` if there is none."""
        value: T | None = self._values.get(key)
        if value is None:
            value = compute()
            if len(self._values) >= MAX:
                self._values.clear()
            self._values[key] = value
        return value
