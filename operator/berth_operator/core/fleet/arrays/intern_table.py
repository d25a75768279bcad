"""Numbers for values that many cards and nodes share, so that columns can hold them.

A predicate on values (for example, whether a selector matches labels) is evaluated once for each different value. Its
result for all cards is then one look-up in a short table.
"""

from collections.abc import Hashable, Iterator
from typing import Final, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from berth_api.allocation.partitions import Table
from berth_api.request import WHOLE_CARD
from berth_api.values.selectors import Labels, LabelSelector
from berth_operator.core.fleet.arrays.columns import sealed
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.values.inventory import Functions, Links

K = TypeVar("K", bound=Hashable)
Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.int32]

Wiring = tuple[tuple[int, int, Links], ...]
"""(slot, minor, links) of each card of a node; empty if no card has links."""

MAX_SELECTORS: Final = 512
"""Maximum number of selectors whose results are cached. They come from users' pods, so their number has no limit."""


class Interner(Generic[K]):
    """Values numbered in the order of their first use; equal values have the same number, which never changes."""

    def __init__(self, *values: K) -> None:
        self._numbers: dict[K, int] = {value: number for number, value in enumerate(values)}
        self._values = list(values)

    def number(self, value: K) -> int:
        """Return a value's number, assigning one if the value is new."""
        known = self._numbers.get(value)
        if known is not None:
            return known
        self._values.append(value)
        return self._numbers.setdefault(value, len(self._numbers))

    def find(self, value: K) -> int:
        """Return a value's number; -1 if it has none."""
        return self._numbers.get(value, -1)

    def copy(self) -> Self:
        """Return a copy that can grow independently."""
        return with_own(self, _numbers=self._numbers.copy(), _values=self._values.copy())

    def __getitem__(self, number: int) -> K:
        return self._values[number]

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class InternTable:
    """The interned values of a Fleet's cards; except for models, 0 is the number of the empty value."""

    def __init__(self) -> None:
        self.models: Interner[str] = Interner()
        self.bars: Interner[str] = Interner("")
        """Reasons why cards are not given by name."""
        self.kinds: Interner[str] = Interner(WHOLE_CARD)
        """Kinds of the cards' subdevices; equal for cards whose units are alike."""
        self.instance_memory: Interner[tuple[tuple[str, int], ...]] = Interner(())
        """(resource, bytes) of the MIG instances of cards."""
        self.switches: Interner[str] = Interner("")
        """PCIe switches. Only switches of one node can be compared."""
        self.labels: Interner[Labels] = Interner(())
        self.functions: Interner[Functions] = Interner(())
        self.wirings: Interner[Wiring] = Interner(())
        self.tables: Interner[Table] = Interner(())
        """Partition tables of nodes."""
        self._selected: dict[LabelSelector, Mask] = {}
        self._offering: dict[LabelSelector, Bits] = {}

    def copy(self) -> Self:
        """Return a copy that can grow independently."""
        own = {name: part.copy() for name, part in vars(self).items() if isinstance(part, Interner | dict)}
        return with_own(self, **own)

    def selected(self, selector: LabelSelector) -> Mask:
        """Return, for each set of labels, whether a selector matches it: shape (sets of labels,)."""
        mask = self._selected.get(selector)
        if mask is None or len(mask) != len(self.labels):
            if len(self._selected) >= MAX_SELECTORS:
                self._selected.clear()
            mask = np.fromiter((selector.matches(dict(labels)) for labels in self.labels), np.bool_, len(self.labels))
            self._selected[selector] = sealed(mask)
        return mask

    def offering(self, selector: LabelSelector) -> Bits:
        """Return, for each list of groups of virtual functions, a bit mask of the groups that a selector matches."""
        bits = self._offering.get(selector)
        if bits is None or len(bits) != len(self.functions):
            if len(self._offering) >= MAX_SELECTORS:
                self._offering.clear()
            matches = (_matching(groups, selector) for groups in self.functions)
            bits = self._offering[selector] = sealed(np.fromiter(matches, np.int32, len(self.functions)))
        return bits


def _matching(groups: Functions, selector: LabelSelector) -> int:
    """Return a bit mask of the groups that have virtual functions and match a selector."""
    matching = (bool(functions) and selector.matches(dict(labels)) for labels, functions in groups)
    return sum(1 << place for place, matches in enumerate(matching) if matches)
