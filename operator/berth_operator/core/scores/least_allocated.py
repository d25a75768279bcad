"""Spread by processor time and memory: the node with more left of both is better."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.resources import CPU, MEMORY
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest

NAME: Final = "least-allocated"


def score(fleet: Fleet, _request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64]:
    """Give the mean free share of cpu and memory, in hundredths."""
    columns = [fleet.resource(CPU), fleet.resource(MEMORY)]
    total = np.maximum(fleet.allocatable[columns], 1)
    free: npt.NDArray[np.float64] = np.clip(100.0 * (total - fleet.requested[columns]) / total, 0, 100).mean(axis=0)
    return free
