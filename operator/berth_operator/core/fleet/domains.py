"""Topology domains: the nodes with one value of a label, and counts per domain.

A domain's number is the number of the label's value in its column, so one `bincount` turns counts per node into counts
per domain. Nodes without the label are in no domain. The count at their index, `ABSENT`, is always 0.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.fleet.nodes.labels import ABSENT

Counts = npt.NDArray[Any]
Amounts = npt.NDArray[np.float64]


def members(fleet: Fleet, key: str) -> Mask:
    """Return the rows of existing nodes that are in a domain of this key."""
    mask: Mask = fleet.labels.column(key).numbers != ABSENT
    return mask & fleet.present


def members_of_all(fleet: Fleet, keys: Iterable[str]) -> Mask:
    """Return the rows of existing nodes that are in a domain of every key."""
    mask = fleet.present.copy()
    for key in keys:
        mask &= members(fleet, key)
    return mask


def sums(fleet: Fleet, key: str, counts: Counts) -> Amounts:
    """Return the sums of counts per row by domain. Pods whose Node does not exist are not counted."""
    column = fleet.labels.column(key)
    weights = (counts * fleet.present).astype(np.float64)
    totals = np.bincount(column.numbers, weights, len(column.values) + 1).astype(np.float64, copy=False)
    totals[ABSENT] = 0
    return totals


def around(fleet: Fleet, key: str, counts: Counts) -> Amounts:
    """Return, for each row, the sum of the counts in its domain."""
    totals: Amounts = sums(fleet, key, counts).take(fleet.labels.column(key).numbers)
    return totals
