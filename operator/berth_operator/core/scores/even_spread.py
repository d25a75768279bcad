"""Topology spread constraints that are only wished for (ScheduleAnyway): the emptier the node's domains, the better.

    pods in the domain * log(number of domains + 2) + maxSkew - 1, summed over the constraints

The logarithm keeps a key of few, full domains from drowning one of many. Nodes that lack a key of any of the
constraints get nothing.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.peers import domains, spreading
from berth_operator.core.peers.wishes import Spread
from berth_operator.core.request import PodRequest

NAME: Final = "even-spread"
HOSTNAME: Final = "kubernetes.io/hostname"
"""Its domains are nodes: kube-scheduler counts on the node itself there, whatever the policies and the value."""

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts | None:
    """Give rows without any such pod around them 100."""
    constraints = request.wishes.preferred_spread
    if not constraints:
        return None
    keyed = domains.members_of_all(fleet, {each.key for each in constraints})
    total = np.zeros(len(fleet.names))
    for each in constraints:
        total += _crowding(fleet, request, each, keyed=keyed, candidates=fits & keyed)
    return _normalised(np.floor(total + 0.5), fits & keyed)


def _crowding(fleet: Fleet, request: PodRequest, spread: Spread, *, keyed: Mask, candidates: Mask) -> Amounts:
    counts = fleet.neighbours.count(spreading.crowd(request, spread))
    if spread.key == HOSTNAME:
        number, around = int(candidates.sum()), counts
    else:
        number = int((domains.sums(fleet, spread.key, candidates) > 0).sum())
        around = domains.around(fleet, spread.key, counts * spreading.eligible(fleet, request, spread, keyed))
    crowding: Amounts = around * np.log(number + 2) + (spread.max_skew - 1)
    return crowding


def _normalised(total: Amounts, candidates: Mask) -> Amounts:
    lowest, highest = total[candidates].min(initial=np.inf), total[candidates].max(initial=0.0)
    if highest == 0:
        return np.where(candidates, 100.0, 0.0)
    return np.where(candidates, 100 * (highest + lowest - total) // highest, 0.0)
