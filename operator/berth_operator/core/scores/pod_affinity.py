"""Preferred pod affinity and anti-affinity of the pod itself and of the placed pods.

Each placed pod that matches a preferred affinity term adds the term's weight to all nodes of its domain. With
anti-affinity, the weight is subtracted. Terms of placed pods that match the pod count in the same way. Their required
affinity counts with a weight of 1.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import domains
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.affinity import PodSelection
from berth_operator.core.values.request import PodRequest

NAME: Final = "pods-near"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return 100 for the best and 0 for the worst of the fitting rows; None if all are equal."""
    # For each topology key the summed weights of the pods on each row.
    weights = dict(fleet.affinity_index.existing_preferred(request.identity))
    for term, weight in request.affinity.preferred_terms:
        weighted_counts = weight * fleet.affinity_index.count(PodSelection(peers=(term.peers,)))
        weights[term.key] = weights[term.key] + weighted_counts if term.key in weights else weighted_counts
    if not weights:
        return None
    total = np.zeros(len(fleet.names))
    for key, weighted_counts in weights.items():
        total += domains.around(fleet, key, weighted_counts)
    fitting = total[fits]
    lowest, highest = fitting.min(), fitting.max()
    if lowest >= highest:
        return None
    share: npt.NDArray[np.float64] = np.floor(100.0 * ((total - lowest) / (highest - lowest)))
    return share
