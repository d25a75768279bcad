"""Preferred node affinity: add up the weights of the terms that match the node."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import node_terms
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

NAME: Final = "node-affinity"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for the best of the fitting rows, and proportionally less for the others."""
    if not request.preferred_nodes:
        return None
    total = np.zeros(len(fleet.names))
    for term, weight in request.preferred_nodes:
        total += weight * node_terms.matching(fleet, term)
    highest = total[fits].max(initial=0)
    return np.floor(100.0 * total / highest) if highest else total
