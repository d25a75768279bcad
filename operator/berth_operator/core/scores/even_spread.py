"""Soft topology spread constraints (ScheduleAnyway): the emptier the node's domains, the better.

    pods in the domain * log(number of domains + 2) + maxSkew - 1, summed over the constraints

Nodes that lack the key of any constraint score 0.
"""

from typing import Final

import numpy as np

from berth_operator.core.filters import spreading
from berth_operator.core.filters.spreading import HOSTNAME, Amounts
from berth_operator.core.fleet import domains
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.affinity import Spread
from berth_operator.core.values.request import PodRequest

NAME: Final = "even-spread"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts | None:
    """Return 100 for rows without any counted pod in their domains; None if the pod has no such constraint."""
    constraints = request.affinity.preferred_spread
    if not constraints:
        return None
    keyed = domains.members_of_all(fleet, {each.key for each in constraints})
    total = np.zeros(len(fleet.names))
    for constraint in constraints:
        total += _crowding(fleet, request, constraint, keyed=keyed, candidates=fits & keyed)
    return spreading.normalised(np.floor(total + 0.5), fits & keyed)


def _crowding(fleet: Fleet, request: PodRequest, spread: Spread, *, keyed: Mask, candidates: Mask) -> Amounts:
    counts = fleet.affinity_index.count(spreading.crowd(request, spread))
    if spread.key == HOSTNAME:
        return spreading.crowding(counts, int(candidates.sum()), spread.max_skew)
    number = int((domains.sums(fleet, spread.key, candidates) > 0).sum())
    around = domains.around(fleet, spread.key, counts * spreading.eligible(fleet, request, spread, keyed))
    return spreading.crowding(around, number, spread.max_skew)
