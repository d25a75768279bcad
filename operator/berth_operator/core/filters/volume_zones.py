"""The node is in the zones and regions of the pod's bound volumes, as the volumes' labels name them.

A node without any zone label belongs to a cluster with one zone, and passes. If the node lacks a deprecated label that
a volume has, the volume's label is compared with the node's current label. As in kube-scheduler, generic ephemeral
volumes are ignored.
"""

from typing import Final

import numpy as np

from berth_api.values.selectors import Requirement
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import domains
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "volume-zones"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.VOLUME | Change.VOLUME_CLAIM | Change.NODE_LABELS | Change.NODE_ADDED
TRAITS: Final = Traits(plugin="VolumeZone", of_volumes=True, one_node=False)
REASON: Final = "node(s) had no available volume zone"

ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
OLDER: Final = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
}
LABELS: Final = (*OLDER, ZONE, REGION)


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows whose labels match, or that have no zone or region label."""
    mask = np.ones(len(fleet.names), np.bool_)
    for use in request.mounts.claims:
        claim = fleet.volumes.claims.get(use.claim)
        volume = fleet.volumes.volumes.get(claim.volume) if claim is not None else None
        if volume is None or use.owner:
            continue
        for key, values in volume.zones:
            is_in = fleet.labels.meeting(Requirement(key=key, values=values))
            newer = fleet.labels.meeting(Requirement(key=OLDER.get(key, key), values=values))
            mask &= is_in | (~domains.members(fleet, key) & newer)
    labelled = np.zeros(len(fleet.names), np.bool_)
    for key in LABELS:
        labelled |= domains.members(fleet, key)
    return mask | ~labelled


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected
