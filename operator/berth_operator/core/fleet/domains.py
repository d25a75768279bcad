"""Topology domains: the nodes with one value of a label, and what is counted in each.

A domain's number is that of the label's value in its column, so a count per node becomes a count per domain by one
`bincount`. Nodes without the label are in no domain: their place, `ABSENT`, always holds nothing.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.labels import ABSENT

Counts = npt.NDArray[Any]
Amounts = npt.NDArray[np.float64]


def members(fleet: Fleet, key: str) -> Mask:
    """Return the rows that are in a domain of this key."""
    mask: Mask = fleet.labels.column(key).numbers != ABSENT
    return mask & fleet.present


def members_of_all(fleet: Fleet, keys: Iterable[str]) -> Mask:
    """Return the rows that are in a domain of each key."""
    mask = fleet.present.copy()
    for key in keys:
        mask &= members(fleet, key)
    return mask


def sums(fleet: Fleet, key: str, counts: Counts) -> Amounts:
    """Add up what is counted per row by domain; pods whose Node is gone count nowhere."""
    column = fleet.labels.column(key)
    weights = (counts * fleet.present).astype(np.float64)
    totals = np.bincount(column.numbers, weights, len(column.values) + 1).astype(np.float64, copy=False)
    totals[ABSENT] = 0
    return totals


def around(fleet: Fleet, key: str, counts: Counts) -> Amounts:
    """Return for each row what is counted in its whole domain."""
    totals: Amounts = sums(fleet, key, counts).take(fleet.labels.column(key).numbers)
    return totals
