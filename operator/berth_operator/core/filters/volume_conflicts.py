"""No pod on the node writes to a disk in the pod's own spec, or reads a disk to which the pod would write.

This applies to GCE disks, EBS volumes (which do not even allow two readers), iSCSI targets and RBD images.
"""

from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "volume-conflicts"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.CAPACITY_FREED | Change.NODE_ADDED
TRAITS: Final = Traits(
    plugin="VolumeRestrictions",
    of_volumes=True,
    one_node=False,
    needed="two writers of one volume can destroy its data",
)
REASON: Final = "node(s) had no available disk"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where no other pod uses the disks, or all pods only read them."""
    mask = np.ones(len(fleet.names), np.bool_)
    for disk in request.mounts.disks:
        mask[fleet.volumes.disks.conflicts(disk)] = False
    return mask


def could_pass(fleet: Fleet, _request: PodRequest) -> Mask:
    """Return all rows: only pods use the disks."""
    return np.ones(len(fleet.names), np.bool_)


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected
