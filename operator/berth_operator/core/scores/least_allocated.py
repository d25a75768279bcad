"""Spread by cpu and memory: prefer the node with more of both left (LeastAllocated)."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.scores import utilization
from berth_operator.core.values.request import PodRequest

NAME: Final = "least-allocated"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64]:
    """Return the mean share of cpu and memory that is free with the pod, in percent."""

    def of_rows(rows: Rows) -> npt.NDArray[np.float64]:
        total, taken = utilization.assumed(fleet, request, rows)
        return utilization.mean(total, np.maximum(total - taken, 0))

    return fleet.column_cache.column((NAME, request.nonzero_requested), of_rows)
