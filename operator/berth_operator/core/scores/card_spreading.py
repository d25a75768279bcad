"""Prefer the emptiest cards and nodes, so that pods disturb each other least. The opposite of `card_packing`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.scores import utilization
from berth_operator.core.values.request import PodRequest

NAME: Final = "card-spreading"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for the emptiest cards (shares) or nodes (whole cards) after the pod, and less the less stays free."""
    if not request.devices:
        return None
    key = (NAME, request.devices.parts, request.model)

    def of_rows(rows: Rows) -> npt.NDArray[np.float64]:
        return utilization.left_of_cards(fleet, request, rows, emptiest=True)

    return fleet.column_cache.column(key, of_rows, alike=not request.devices.names_cards)
