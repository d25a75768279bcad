"""Placed pods as columns, and what they hold of cards, so that questions about all of them are array expressions.

The columns are made when somebody first asks and brought up to date when somebody asks again; who never preempts pays
for no more than one look at an empty set a charge.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from berth_operator.core.fleet.cards import Column, Indices, Mask
from berth_operator.core.fleet.copies import with_own
from berth_operator.core.values.charge import Charge

if TYPE_CHECKING:
    from berth_operator.core.fleet.fleet import Fleet

Amounts = tuple[tuple[str, int], ...]
Handles = tuple[str, ...]
"""What is held by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What pods hold of the cards of one type: those of pod i from `first[i]`, `number[i]` of them."""

    first: Indices
    number: Indices
    slots: Indices
    kinds: Indices
    """Which column of `amounts` each takes: there are few different ones."""
    amounts: Column
    """Shape (resources, kinds)."""
    unknown: Mask
    """Pods that may hold any card."""
    functions: Mapping[int, Handles]
    """Part -> the virtual functions that are held with it, if any are."""

    def of(self, pods: Indices) -> tuple[Indices, Indices]:
        """Return the parts of some pods, and for each of them the place of its pod among those."""
        number = self.number[pods]
        places = np.repeat(np.arange(len(pods)), number)
        before = np.cumsum(number) - number
        return self.first[pods][places] + np.arange(len(places)) - before[places], places

    def joined(self, more: "Parts") -> "Parts":
        """Return these and those of other pods, which come after."""
        return Parts(
            first=np.concatenate((self.first, more.first + len(self.slots))),
            number=np.concatenate((self.number, more.number)),
            slots=np.concatenate((self.slots, more.slots)),
            kinds=np.concatenate((self.kinds, more.kinds + self.amounts.shape[1])),
            amounts=_hstack(self.amounts, more.amounts),
            unknown=np.concatenate((self.unknown, more.unknown)),
            functions={**self.functions, **{len(self.slots) + part: each for part, each in more.functions.items()}},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPods:
    """Pods by number."""

    charges: Sequence[Charge]
    rows: Indices
    priority: Column
    started: Column
    terminating: Mask
    kinds: Indices
    """Which column of `amounts` each takes."""
    amounts: Column
    """Shape (resources, kinds)."""
    parts: Mapping[str, Parts]
    """By device type."""

    @classmethod
    def of(cls, fleet: "Fleet", charges: Sequence[Charge]) -> "PlacedPods":
        """Return pods that are placed in a Fleet."""
        rows = np.fromiter((fleet.rows[each.node] for each in charges), np.intp, len(charges))
        kinds, amounts = _amounts(fleet.resources, [each.resources for each in charges])
        return cls(
            charges=charges,
            rows=rows,
            priority=np.fromiter((each.priority for each in charges), np.int64, len(charges)),
            started=np.fromiter((each.started for each in charges), np.int64, len(charges)),
            terminating=np.fromiter((each.terminating for each in charges), np.bool_, len(charges)),
            kinds=kinds,
            amounts=amounts,
            parts={kind: _parts(fleet, kind, charges, rows) for kind in fleet.cards},
        )

    def joined(self, more: "PlacedPods") -> "PlacedPods":
        """Return these and other pods, which come after."""
        return PlacedPods(
            charges=[*self.charges, *more.charges],
            rows=np.concatenate((self.rows, more.rows)),
            priority=np.concatenate((self.priority, more.priority)),
            started=np.concatenate((self.started, more.started)),
            terminating=np.concatenate((self.terminating, more.terminating)),
            kinds=np.concatenate((self.kinds, more.kinds + self.amounts.shape[1])),
            amounts=_hstack(self.amounts, more.amounts),
            parts={kind: parts.joined(more.parts[kind]) for kind, parts in self.parts.items()},
        )


class PlacedPodsCache:
    """The occupants of a Fleet."""

    def __init__(self) -> None:
        self._all: PlacedPods | None = None
        self._number: dict[str, int] = {}
        """UID -> number; pods that are gone keep theirs until all is made anew, but nobody has it."""
        self._moved: set[str] = set()
        self._there: Indices | None = None
        """All of `_number`'s values, while they stand."""

    def copy(self) -> Self:
        """Return a census of a copied Fleet."""
        return with_own(self, _number=self._number.copy(), _moved=self._moved.copy())

    def moved(self, uid: str) -> None:
        """A pod was placed, changed or released."""
        if self._all is not None:
            self._moved.add(uid)

    def current(self, fleet: "Fleet") -> PlacedPods:
        """Return the occupants as they are; `numbers` tells which of them are still there."""
        if self._all is None or len(self._all.charges) + len(self._moved) > 2 * len(fleet.charges):
            self._number = {}
            pods = self._count(PlacedPods.of(fleet, list(fleet.charges.values())), 0)
        elif self._moved:
            for uid in self._moved:
                self._number.pop(uid, None)
            more = [fleet.charges[uid] for uid in self._moved if uid in fleet.charges]
            pods = self._count(self._all.joined(PlacedPods.of(fleet, more)), len(self._all.charges))
        else:
            return self._all
        self._all, self._there = pods, None
        self._moved.clear()
        return pods

    def numbers(self) -> Indices:
        """Return the numbers of all that are there."""
        if self._there is None:
            self._there = np.fromiter(self._number.values(), np.intp, len(self._number))
        return self._there

    def numbers_of(self, uids: Iterable[str]) -> Indices:
        """Return the numbers of some pods, of those that are there."""
        return np.array([self._number[uid] for uid in uids if uid in self._number], np.intp)

    def _count(self, placed: PlacedPods, first: int) -> PlacedPods:
        """Return numbers to the occupants from the first that has none."""
        self._number |= {placed.charges[number].uid: number for number in range(first, len(placed.charges))}
        return placed


def _parts(fleet: "Fleet", kind: str, charges: Sequence[Charge], rows: Indices) -> Parts:
    cards = fleet.cards[kind]
    # One flat list: a list per pod would be most of the cost, because there are many pods.
    held = [(pod, grant) for pod, each in enumerate(charges) for grant in each.grants if grant.type == kind]
    pods = np.fromiter((pod for pod, _ in held), np.intp, len(held))
    minors = np.fromiter((grant.minor for _, grant in held), np.int32, len(held))
    kinds, amounts = _amounts(cards.index, [grant.counted for _, grant in held])
    number = np.bincount(pods, minlength=len(charges))
    return Parts(
        first=np.cumsum(number) - number,
        number=number,
        # Every charged grant has a slot.
        slots=(cards.minor[rows[pods]] == minors[:, np.newaxis]).argmax(axis=1),
        kinds=kinds,
        amounts=amounts,
        unknown=np.fromiter((kind in each.unknown for each in charges), np.bool_, len(charges)),
        functions={part: grant.handles for part, (_, grant) in enumerate(held) if grant.functions},
    )


def _amounts(index: Mapping[str, int], amounts_by_pod: Sequence[Amounts]) -> tuple[Indices, Column]:
    """Return amounts, told by name, as columns of a matrix in the order of an index, each once, and whose is which."""
    numbers: dict[Any, int] = {}
    kinds = np.array([numbers.setdefault(each, len(numbers)) for each in amounts_by_pod], np.intp)
    matrix: Column = np.zeros((len(index), len(numbers)), np.int64)
    for amounts, at in numbers.items():
        for name, amount in amounts:
            if name in index:
                matrix[index[name], at] += amount
    return kinds, matrix


def _hstack(amounts: Column, more: Column) -> Column:
    """Put later columns of amounts beside these; there may be resources that there were not before."""
    return np.hstack((np.pad(amounts, ((0, len(more) - len(amounts)), (0, 0))), more))
