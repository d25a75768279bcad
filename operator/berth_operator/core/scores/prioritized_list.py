"""Prefer nodes that meet the first subrequests of the `firstAvailable` lists of the pod's ResourceClaims.

kube-scheduler's DynamicResources allocates on each node that passes the filters. For each list, it gives 8 points if
the first subrequest was taken, 7 for the second, and so on. Here, a subrequest counts as taken if the node has enough
matching devices for it alone, so no search is needed. A node may then score too high: if its devices are tainted, if
two requests need the same devices, or if a constraint excludes them. `missed` returns by how much, once the claims were
allocated there. Lists beyond the first eight subrequests of a pod do not count.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import claim_counts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.pod_claims import PodClaims
from berth_operator.core.values.request import PodRequest

NAME: Final = "prioritized-list"


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> npt.NDArray[np.float64] | None:
    """Return each row's points as a share of the most that a fitting row has."""
    if not (request.claims and (lists := claim_counts.preference_points(fleet, request))):
        return None
    points = np.sum(lists, axis=0)
    share: npt.NDArray[np.float64] = np.floor(100.0 * points / max(points[fits].max(initial=0), 1))
    return share


def missed(fleet: Fleet, row: int, request: PodRequest, claims: PodClaims) -> float:
    """Return the share, 0 to 1, of a row's points for subrequests that the claims did not get there."""
    expected = sum(int(points[row]) for points in claim_counts.preference_points(fleet, request))
    got = sum(allocation.score() for allocation in claims.allocations)
    return max(0.0, 1.0 - got / expected) if expected else 0.0
