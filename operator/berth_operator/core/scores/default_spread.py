"""Spread the replicas of a controller and the pods of a Service by default, as kube-scheduler's PodTopologySpread does.

The default constraints apply to pods without their own constraints: evenly over nodes (maxSkew 3) and over zones
(maxSkew 5), weighed as in `even_spread`. Unlike in `even_spread`, nodes that lack a label still count. Each constraint
adds only to the nodes that have its label. In the number of zones, nodes without a zone count as one more zone.
"""

from typing import Final

import numpy as np

from berth_operator.core.filters import node_affinity, node_selector, spreading
from berth_operator.core.filters.spreading import HOSTNAME, Amounts
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.fleet.nodes.labels import ABSENT
from berth_operator.core.values.request import PodRequest

NAME: Final = "default-spread"
ZONE: Final = "topology.kubernetes.io/zone"
HOST_SKEW: Final = 3
ZONE_SKEW: Final = 5


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts | None:
    """Return 100 for rows without any such pod in their domains; None if the defaults do not apply to the pod."""
    counts = spreading.default_spread_counts(fleet, request)
    if counts is None:
        return None
    labelled = fleet.labels.column(HOSTNAME).numbers != ABSENT
    over_nodes = np.where(labelled, spreading.score_for_count(counts, int(fits.sum()), HOST_SKEW), 0.0)
    column = fleet.labels.column(ZONE)
    numbers, zones = column.numbers, int(np.count_nonzero(np.bincount(column.numbers[fits])))
    counted = fleet.present & node_selector.passes(fleet, request) & node_affinity.passes(fleet, request)
    # Only few rows have such pods: summing those alone is faster.
    rows = np.flatnonzero(counts * counted)
    around = np.bincount(numbers[rows], counts[rows], len(column.values) + 1)
    of_zone = spreading.score_for_count(around, zones, ZONE_SKEW)
    of_zone[ABSENT] = 0.0
    return spreading.normalised(np.floor(over_nodes + of_zone[numbers] + 0.5), fits)
