"""Each VolumeClaim that waits for its first consumer can get an existing or a provisioned volume on the node."""

from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import volume_choice
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "volume-binding"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = (
    Change.VOLUME_CLAIM
    | Change.VOLUME
    | Change.STORAGE_CLASS
    | Change.STORAGE_CAPACITY
    | Change.NODE_LABELS
    | Change.NODE_ADDED
)
TRAITS: Final = Traits(
    plugin="VolumeBinding",
    of_volumes=True,
    one_node=False,
    needed="the volumes that a placement chooses for claims must exist",
)
NO_VOLUME: Final = "node(s) didn't find available persistent volumes to bind"
NO_SPACE: Final = "node(s) did not have enough free storage"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where all the claims can get a volume."""
    mask = np.ones(len(fleet.names), np.bool_)
    for option in volume_choice.options(fleet, request.mounts):
        mask &= option.passes
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield the rows where a volume can be neither found nor provisioned, and those that only lack storage capacity."""
    nothing = np.zeros(len(fleet.names), np.bool_)
    for option in volume_choice.options(fleet, request.mounts):
        nothing |= ~option.has_volume & ~option.provisionable
    yield NO_VOLUME, rejected & nothing
    yield NO_SPACE, rejected & ~nothing
