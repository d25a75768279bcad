"""Arrays that only their owner writes.

The owner keeps its arrays as attributes of one private object. Read-only views of them are the owner's own attributes
of the same names (`show`). A view costs nothing to read and shows what the owner writes. A new view is needed only if
the array is replaced, which happens when rows, slots or resources are added.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.copies import with_own

Array = npt.NDArray[Any]
A = TypeVar("A", bound=np.generic)
C = TypeVar("C")
K = TypeVar("K", bound=Hashable)


def read_only(values: npt.NDArray[A]) -> npt.NDArray[A]:
    """Return a read-only view of an array."""
    view = values.view()
    view.setflags(write=False)
    return view


def all_read_only(own: Mapping[K, npt.NDArray[A]]) -> dict[K, npt.NDArray[A]]:
    """Return read-only views of arrays by key."""
    return {key: read_only(values) for key, values in own.items()}


def sealed(values: npt.NDArray[A]) -> npt.NDArray[A]:
    """Make an array read-only, for its owner too, and return it."""
    values.setflags(write=False)
    return values


def show(own: object, to: object) -> None:
    """Set attributes of `to` to read-only views of the arrays that `own` has under the same names."""
    vars(to).update({name: read_only(values) for name, values in vars(own).items()})


def each_by(own: C, change: Callable[[Array], Array]) -> C:
    """Return a copy of an object whose attributes are arrays, with `change` applied to each array."""
    return with_own(own, **{name: change(values) for name, values in vars(own).items()})
