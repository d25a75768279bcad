"""Prefer nodes whose cpu and memory utilization the pod brings closer together (NodeResourcesBalancedAllocation).

The score measures how the pod changes the balance. It is 75 if the balance stays the same, up to 100 if it improves,
and down to 50 if it gets worse.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.resources import CPU, MEMORY
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.scores import utilization
from berth_operator.core.values.request import PodRequest

NAME: Final = "balanced-allocation"

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> Amounts | None:
    """Return 50 to 100 for each row; None if the pod requests neither cpu nor memory."""
    requested = dict(request.resources)
    request_amounts = requested.get(CPU, 0), requested.get(MEMORY, 0)
    if not any(request_amounts):
        return None

    def of_rows(rows: Rows) -> Amounts:
        total, taken = utilization.requested(fleet, rows)
        change: Amounts = _balance(total, taken + np.array(request_amounts)[:, np.newaxis]) - _balance(total, taken)
        return 50.0 + np.floor((50.0 + change) / 2.0)

    return fleet.column_cache.column((NAME, request_amounts), of_rows)


def _balance(total: npt.NDArray[np.int64], taken: npt.NDArray[np.int64]) -> Amounts:
    shares = np.minimum(taken / np.maximum(total, 1), 1.0)
    # A node that has only one of the two resources is balanced.
    difference = np.where((total > 0).all(axis=0), np.abs(shares[0] - shares[1]) / 2.0, 0.0)
    return np.floor((1.0 - difference) * 100.0)
