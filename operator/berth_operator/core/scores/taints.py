"""Prefer nodes with fewer taints of the effect PreferNoSchedule that the pod does not tolerate."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

NAME: Final = "taints"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for rows without such a taint, and 0 for the fitting rows with the most."""
    untolerated = [
        rows
        for taint, rows in fleet.taints().items()
        if taint.effect == "PreferNoSchedule" and not request.tolerates(taint)
    ]
    if not untolerated:
        return None
    count = np.sum(untolerated, axis=0)
    highest = count[fits].max(initial=0)
    share: npt.NDArray[np.float64] = 100.0 - np.floor(100.0 * count / max(highest, 1))
    return share
