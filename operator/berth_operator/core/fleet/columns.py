"""Arrays that their owner writes and that all others only read.

The owner keeps its arrays as the attributes of one object, and has read-only views of them under the same names
(`show`). A view costs its readers nothing, and shows what the owner writes. It has to be made again only when the array
is replaced: when there are more rows, slots or resources.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.copies import with_own

Array = npt.NDArray[Any]
A = TypeVar("A", bound=np.generic)
C = TypeVar("C")
K = TypeVar("K", bound=Hashable)


def read_only(values: npt.NDArray[A]) -> npt.NDArray[A]:
    """Return a view of an array through which nothing can be written."""
    view = values.view()
    view.setflags(write=False)
    return view


def all_read_only(own: Mapping[K, npt.NDArray[A]]) -> dict[K, npt.NDArray[A]]:
    """Return read-only views of arrays by key."""
    return {key: read_only(values) for key, values in own.items()}


def sealed(values: npt.NDArray[A]) -> npt.NDArray[A]:
    """Return an array after making it read-only for its owner, too."""
    values.setflags(write=False)
    return values


def show(own: object, to: object) -> None:
    """Return `to` read-only views of the arrays that are the attributes of `own`, under the same names."""
    vars(to).update({name: read_only(values) for name, values in vars(own).items()})


def each_by(own: C, change: Callable[[Array], Array]) -> C:
    """Return a copy of an object whose attributes are arrays, with what `change` makes of each."""
    return with_own(own, **{name: change(values) for name, values in vars(own).items()})
