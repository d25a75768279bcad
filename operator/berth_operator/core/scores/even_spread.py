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
from berth_operator.core.values.affinity import TopologySpreadConstraint
from berth_operator.core.values.request import PodRequest

NAME: Final = "even-spread"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts | None:
    """Return 100 for rows without any counted pod in their domains; None if the pod has no such constraint."""
    constraints = request.affinity.preferred_topology_spread
    if not constraints:
        return None
    keyed = domains.members_of_all(fleet, {each.key for each in constraints})
    total = np.zeros(len(fleet.names))
    for constraint in constraints:
        total += _raw_score(fleet, request, constraint, keyed=keyed, candidates=fits & keyed)
    return spreading.normalised(np.floor(total + 0.5), fits & keyed)


def _raw_score(
    fleet: Fleet, request: PodRequest, constraint: TopologySpreadConstraint, *, keyed: Mask, candidates: Mask
) -> Amounts:
    counts = fleet.affinity_index.count(spreading.counted_pods(request, constraint))
    if constraint.key == HOSTNAME:
        return spreading.score_for_count(counts, int(candidates.sum()), constraint.max_skew)
    number = int((domains.sums(fleet, constraint.key, candidates) > 0).sum())
    around = domains.around(fleet, constraint.key, counts * spreading.eligible(fleet, request, constraint, keyed))
    return spreading.score_for_count(around, number, constraint.max_skew)
