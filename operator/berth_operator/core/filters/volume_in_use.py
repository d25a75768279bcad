"""No placed pod uses a VolumeClaim of the pod that only one pod may use at a time (ReadWriteOncePod)."""

from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.mounts import Use
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.storage import READ_WRITE_ONCE_POD
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "volume-in-use"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.POD_DELETED | Change.VOLUME_CLAIM
TRAITS: Final = Traits(
    plugin="VolumeRestrictions",
    of_volumes=True,
    one_node=False,
    needed="two writers of one volume can destroy its data",
)
REASON: Final = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return all rows, or none if a claim is in use; the node of the other pod does not matter."""
    return np.full(len(fleet.names), not any(_is_taken(fleet, use) for use in request.mounts.claims), np.bool_)


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with pods that use such claims, because only their eviction helps; all rows if none is in use."""
    mask = np.ones(len(fleet.names), np.bool_)
    for use in request.mounts.claims:
        if _is_taken(fleet, use):
            mask &= np.isin(np.arange(len(mask)), list(fleet.volumes.rows_using(use.claim)))
    return mask


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected


def may_help(_fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a pod that used one of the claims was deleted."""
    return event.before is not None and any(request.mounts.include(use.claim) for use in event.before.mounts.claims)


def _is_taken(fleet: Fleet, use: Use) -> bool:
    claim = fleet.volumes.claims.get(use.claim)
    if claim is None or use.owner or READ_WRITE_ONCE_POD not in claim.modes:
        return False
    return fleet.volumes.users[use.claim] > 0
