"""Pack by processor time and memory: the node that keeps less of both is better. The opposite of `least_allocated`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core import usage
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows

NAME: Final = "most-allocated"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64]:
    """Give the mean part of cpu and memory that is taken with the pod, in hundredths."""
    return fleet.rowwise.column((NAME, request.assumed), lambda rows: _of_rows(fleet, request, rows))


def _of_rows(fleet: Fleet, request: PodRequest, rows: Rows) -> npt.NDArray[np.float64]:
    total, taken = usage.assumed(fleet, request, rows)
    return usage.mean(total, np.minimum(total, taken))
