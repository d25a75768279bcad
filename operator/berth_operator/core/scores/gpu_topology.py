"""Prefer nodes whose free cards meet the pod's preferred GPU topology. The filters handle a required topology."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU
from berth_operator.core.allocators import candidates, locality
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

NAME: Final = "gpu-topology"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for rows that can meet the preference, and 0 for the others; None without a preference."""
    topology = request.devices.topology
    if topology is None or topology.required:
        return None
    part = next(part for part in request.devices.parts if part.type == GPU)

    def of_rows(rows: Rows) -> npt.NDArray[np.float64]:
        within, *_ = locality.preferred(fleet, request, part, rows)
        fits = candidates.fitting(fleet, request, part, rows)
        return np.where(locality.max_colocated(fleet, GPU, within, fits, rows) >= part.count, 100.0, 0.0)

    key = (NAME, request.devices, request.model)
    return fleet.column_cache.column(key, of_rows, alike=not part.names_cards)
