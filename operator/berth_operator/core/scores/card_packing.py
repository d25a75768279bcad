"""Prefer cards and nodes that are already in use, so that whole cards and whole nodes stay free."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.scores import utilization
from berth_operator.core.values.request import PodRequest

NAME: Final = "card-packing"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for the fullest cards (shares) or nodes (whole cards) after the pod, and less the more stays free."""
    if not request.devices:
        return None
    key = (NAME, request.devices.parts, request.model)

    def of_rows(rows: Rows) -> npt.NDArray[np.float64]:
        return 100.0 - utilization.left_of_cards(fleet, request, rows, emptiest=False)

    return fleet.column_cache.column(key, of_rows, alike=not request.devices.names_cards)
