"""Preferred node affinity: the weights of the terms that the node matches."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import node_terms
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest

NAME: Final = "node-affinity"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return the best of the fitting rows 100, and the others their share of that."""
    if not request.preferred_nodes:
        return None
    total = np.zeros(len(fleet.names))
    for term, weight in request.preferred_nodes:
        total += weight * node_terms.matching(fleet, term)
    highest = total[fits].max(initial=0)
    share: npt.NDArray[np.float64] = np.floor(100.0 * total / highest) if highest else total
    return share
