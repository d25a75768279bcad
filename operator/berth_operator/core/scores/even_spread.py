"""Soft topology spread constraints (ScheduleAnyway): the emptier the node's domains, the better.

    pods in the domain * log(number of domains + 2) + maxSkew - 1, summed over the constraints

Nodes that lack the key of any constraint score 0.
"""

from typing import Final

import numpy as np

from berth_operator.core.filters import spreading
from berth_operator.core.filters.spreading import HOSTNAME, Amounts
from berth_operator.core.fleet import domains
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

NAME: Final = "even-spread"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts | None:
    """Return 100 for rows without any counted pod in their domains; None if the pod has no such constraint."""
    constraints = request.affinity.preferred_topology_spread
    if not constraints:
        return None
    keyed = domains.members_of_all(fleet, {constraint.key for constraint in constraints})
    candidates, total = fits & keyed, np.zeros(len(fleet.names))
    for constraint in constraints:
        counts = fleet.affinity_index.count(spreading.counted_pods(request, constraint))
        if constraint.key == HOSTNAME:
            around, number = counts, int(candidates.sum())
        else:
            number = int((domains.sums(fleet, constraint.key, candidates) > 0).sum())
            counted = counts * spreading.eligible(fleet, request, constraint, keyed)
            around = domains.around(fleet, constraint.key, counted)
        total += spreading.score_for_count(around, number, constraint.max_skew)
    return spreading.normalised(np.floor(total + 0.5), candidates)
