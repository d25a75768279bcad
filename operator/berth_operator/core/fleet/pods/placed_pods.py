"""Placed pods and their grants as columns, so that preemption can evaluate all of them with array expressions.

The columns are computed when they are first read, and updated when they are read again. Without preemption, a charge
costs only one attribute look-up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np

from berth_api.allocation import REPLICA_MARK, Grant, mig
from berth_operator.core.fleet.arrays.copies import with_own
from berth_operator.core.fleet.nodes.cards import Cards, Column, Indices, Mask
from berth_operator.core.values.charge import Charge

Amounts = tuple[tuple[str, int], ...]
MANY: Final = 2**20
"""Devices that cards which are held by name may be: each may be partitioned."""

Handles = tuple[str, ...]
"""The names of what a grant holds by name."""


def is_by_name(grant: Grant) -> bool:
    """Return whether counts do not show what a grant leaves: virtual functions differ, and slices of MIG instances.

    A pod may get only one slice of an instance.
    """
    if grant.functions:
        return True
    return REPLICA_MARK in grant.id and any(mig.is_resource(name) for name, _ in grant.amounts)


class Placing(Protocol):
    """The parts of a Fleet that record where pods are, and what they free if they leave."""

    rows: dict[str, int]
    resources: dict[str, int]
    charges: dict[str, Charge]
    requested: Column

    @property
    def cards(self) -> Mapping[str, Cards]:
        """The cards by device type."""

    def freed_with(self, charge: Charge) -> Charge:
        """Return what one pod frees if it leaves: its charge, and the cards of claims that it alone uses."""

    def claimed_devices(self, uid: str) -> int:
        """Return the number of devices of a pod's claims, which other pods may use as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The grants of pods on cards of one type: pod i has `number[i]` grants, starting at `first[i]`."""

    first: Indices
    number: Indices
    slots: Indices
    amount_columns: Indices
    """Grant -> its column in `amounts`. There are few different grants."""
    amounts: Column
    """Shape (resources, columns)."""
    unknown: Mask
    """Pods that may hold any card."""
    by_name: Mapping[int, Handles]
    """Grant -> what it holds by name; only grants whose names decide whether a pod fits (`is_by_name`)."""

    def of(self, pods: Indices) -> tuple[Indices, Indices]:
        """Return the grants of some pods, and for each grant the index of its pod in `pods`."""
        number = self.number[pods]
        places = np.repeat(np.arange(len(pods)), number)
        before = np.cumsum(number) - number
        return self.first[pods][places] + np.arange(len(places)) - before[places], places

    def joined(self, more: "Parts") -> "Parts":
        """Return the grants of these pods, followed by the grants of more pods."""
        return Parts(
            first=np.concatenate((self.first, more.first + len(self.slots))),
            number=np.concatenate((self.number, more.number)),
            slots=np.concatenate((self.slots, more.slots)),
            amount_columns=np.concatenate((self.amount_columns, more.amount_columns + self.amounts.shape[1])),
            amounts=_hstack(self.amounts, more.amounts),
            unknown=np.concatenate((self.unknown, more.unknown)),
            by_name={**self.by_name, **{len(self.slots) + part: names for part, names in more.by_name.items()}},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPods:
    """Placed pods as columns, by number."""

    charges: Sequence[Charge]
    freed: Sequence[Charge]
    """What is free on cards if the pod leaves."""
    devices: Column
    """How many devices claims may get once the pod has left, at most; MANY if it holds cards by name."""
    rows: Indices
    priority: Column
    started: Column
    terminating: Mask
    amount_columns: Indices
    """Pod -> its column in `amounts`."""
    amounts: Column
    """Shape (resources, columns)."""
    parts: Mapping[str, Parts]
    """Parts by device type."""

    @classmethod
    def of(cls, fleet: Placing, charges: Sequence[Charge], *, with_claims: bool = False) -> "PlacedPods":
        """Return the columns of pods that are placed in a Fleet; `with_claims`: their claims leave with them."""
        rows = np.fromiter((fleet.rows[charge.node] for charge in charges), np.intp, len(charges))
        amount_columns, amounts = _amounts(
            fleet.resources, [charge.resources for charge in charges], len(fleet.requested)
        )
        freed = list(map(fleet.freed_with, charges)) if with_claims else charges
        return cls(
            charges=charges,
            freed=freed,
            devices=np.fromiter((_devices(fleet, charge) for charge in charges), np.int64, len(charges)),
            rows=rows,
            priority=np.fromiter((charge.priority for charge in charges), np.int64, len(charges)),
            started=np.fromiter((charge.started for charge in charges), np.int64, len(charges)),
            terminating=np.fromiter((charge.terminating for charge in charges), np.bool_, len(charges)),
            amount_columns=amount_columns,
            amounts=amounts,
            parts={device_type: _parts(fleet, device_type, freed, rows) for device_type in fleet.cards},
        )

    def joined(self, more: "PlacedPods") -> "PlacedPods":
        """Return these pods, followed by more pods."""
        return PlacedPods(
            charges=[*self.charges, *more.charges],
            freed=[*self.freed, *more.freed],
            devices=np.concatenate((self.devices, more.devices)),
            rows=np.concatenate((self.rows, more.rows)),
            priority=np.concatenate((self.priority, more.priority)),
            started=np.concatenate((self.started, more.started)),
            terminating=np.concatenate((self.terminating, more.terminating)),
            amount_columns=np.concatenate((self.amount_columns, more.amount_columns + self.amounts.shape[1])),
            amounts=_hstack(self.amounts, more.amounts),
            parts={device_type: parts.joined(more.parts[device_type]) for device_type, parts in self.parts.items()},
        )


class PlacedPodsCache:
    """The cached columns of a Fleet's placed pods."""

    def __init__(self) -> None:
        self._all: PlacedPods | None = None
        self._number: dict[str, int] = {}
        """UID -> number; numbers of pods that are gone stay unused until all columns are computed again."""
        self._moved: set[str] = set()
        self._there: Indices | None = None
        """All values of `_number`; None if they changed."""

    def copy(self) -> Self:
        """Return an independent copy, for a copy of the Fleet."""
        return with_own(self, _number=self._number.copy(), _moved=self._moved.copy())

    def moved(self, uid: str) -> None:
        """Record that a pod was placed, changed or released."""
        if self._all is not None:
            self._moved.add(uid)

    def current(self, fleet: Placing) -> PlacedPods:
        """Return the current columns; they may include pods that are gone, which `numbers` leaves out."""
        if self._all is None or len(self._all.charges) + len(self._moved) > 2 * len(fleet.charges):
            self._number = {}
            pods = self._count(PlacedPods.of(fleet, list(fleet.charges.values()), with_claims=True), 0)
        elif self._moved:
            for uid in self._moved:
                self._number.pop(uid, None)
            added = [fleet.charges[uid] for uid in self._moved if uid in fleet.charges]
            pods = self._count(self._all.joined(PlacedPods.of(fleet, added, with_claims=True)), len(self._all.charges))
        else:
            return self._all
        self._all, self._there = pods, None
        self._moved.clear()
        return pods

    def numbers(self) -> Indices:
        """Return the numbers of all pods that are placed now."""
        if self._there is None:
            self._there = np.fromiter(self._number.values(), np.intp, len(self._number))
        return self._there

    def numbers_of(self, uids: Iterable[str]) -> Indices:
        """Return the numbers of the pods that are placed now."""
        return np.array([self._number[uid] for uid in uids if uid in self._number], np.intp)

    def _count(self, placed: PlacedPods, first: int) -> PlacedPods:
        """Record the numbers of the pods from `first` on, and return the columns."""
        self._number |= {placed.charges[number].uid: number for number in range(first, len(placed.charges))}
        return placed


def _devices(fleet: Placing, charge: Charge) -> int:
    return MANY if charge.grants else fleet.claimed_devices(charge.uid)


def _parts(fleet: Placing, device_type: str, charges: Sequence[Charge], rows: Indices) -> Parts:
    cards = fleet.cards[device_type]
    # One flat list: a list per pod would be most of the cost, because there are many pods.
    held = [(pod, grant) for pod, charge in enumerate(charges) for grant in charge.grants if grant.type == device_type]
    pods = np.fromiter((pod for pod, _ in held), np.intp, len(held))
    minors = np.fromiter((grant.minor for _, grant in held), np.int32, len(held))
    amount_columns, amounts = _amounts(cards.index, [grant.counted for _, grant in held], len(cards.index))
    number = np.bincount(pods, minlength=len(charges))
    return Parts(
        first=np.cumsum(number) - number,
        number=number,
        # Every charged grant has a slot.
        slots=(cards.minor[rows[pods]] == minors[:, np.newaxis]).argmax(axis=1),
        amount_columns=amount_columns,
        amounts=amounts,
        unknown=np.fromiter((device_type in charge.unknown for charge in charges), np.bool_, len(charges)),
        by_name={part: grant.handles for part, (_, grant) in enumerate(held) if is_by_name(grant)},
    )


def _amounts(index: Mapping[str, int], amounts_by_pod: Sequence[Amounts], resources: int) -> tuple[Indices, Column]:
    """Return each pod's column, and a matrix of the different amounts by `index`: shape (resources, columns)."""
    numbers: dict[Any, int] = {}
    amount_columns = np.array([numbers.setdefault(of_pod, len(numbers)) for of_pod in amounts_by_pod], np.intp)
    matrix: Column = np.zeros((resources, len(numbers)), np.int64)
    for amounts, at in numbers.items():
        for name, amount in amounts:
            if name in index:
                matrix[index[name], at] += amount
    return amount_columns, matrix


def _hstack(amounts: Column, more: Column) -> Column:
    """Return the columns of both matrices; the second may have more resources."""
    return np.hstack((np.pad(amounts, ((0, len(more) - len(amounts)), (0, 0))), more))
