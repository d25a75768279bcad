"""How much of each node's cpu and memory is taken: arrays of shape (2, nodes)."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.cards import Column
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows

BOTH: Final = slice(0, 2)
"""cpu and memory: the first two columns of every Fleet."""


def requested(fleet: Fleet, rows: Rows) -> tuple[Column, Column]:
    """Give what there is, and what pods ask of it."""
    return fleet.allocatable[BOTH, rows], fleet.requested[BOTH, rows]


def assumed(fleet: Fleet, request: PodRequest, rows: Rows) -> tuple[Column, Column]:
    """Give what there is, and what is taken by pods and this one, with what is assumed of those that do not ask."""
    total, _ = requested(fleet, rows)
    return total, fleet.assumed[:, rows] + np.array(request.assumed)[:, np.newaxis]


def mean(total: Column, amounts: Column) -> npt.NDArray[np.float64]:
    """Give the mean of both amounts in whole hundredths of what there is, over those that there are."""
    shares = amounts * 100 // np.maximum(total, 1)
    found: npt.NDArray[np.float64] = np.floor(shares.sum(axis=0) / np.maximum((total > 0).sum(axis=0), 1))
    return found
