"""The devices of a pool that take from one set of counters (for example a GPU's possible MIG instances), as arrays."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from berth_operator.core.claims.objects.slices import CounterID, Device

Amounts = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterSet:
    """A set of counters and the devices that take from it, in parts of each counter's total.

    Parts are close to exact: they serve to compare devices, never to decide whether one can be allocated.
    """

    counters: tuple[CounterID, ...]
    totals: Amounts
    """Totals in billionths, at least 1: shape (counters,)."""
    rows: Mapping[Device, int]
    needs: Amounts
    """What each device takes: shape (devices, counters)."""
    sizes: Amounts
    """The largest part that each device takes of a counter: shape (devices,)."""


def of_pool(devices: Sequence[Device], totals: Mapping[CounterID, int]) -> dict[str, CounterSet]:
    """Return the sets by name that some of the devices take from."""
    members: dict[str, dict[Device, None]] = defaultdict(dict)
    for device in devices:
        for counter, _ in device.consumes:
            members[counter.set][device] = None
    sets = {}
    for name, of_set in members.items():
        counters = tuple(counter for counter in totals if counter.set == name)
        columns = {counter: column for column, counter in enumerate(counters)}
        amounts = np.zeros((len(of_set), len(counters)))
        for row, device in enumerate(of_set):
            for counter, amount in device.consumes:
                if counter in columns:
                    amounts[row, columns[counter]] += amount
        total = np.array([max(totals[counter], 1) for counter in counters], np.float64)
        needs = amounts / total
        sets[name] = CounterSet(
            counters=counters,
            totals=total,
            rows={device: row for row, device in enumerate(of_set)},
            needs=needs,
            sizes=needs.max(axis=1, initial=0.0),
        )
    return sets
