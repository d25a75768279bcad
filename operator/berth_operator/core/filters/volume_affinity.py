"""The node satisfies the node affinity of the volumes that the pod's VolumeClaims are bound to."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from berth_operator.core.filters import volume_binding
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import volume_choice
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.storage import Volume
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "volume-affinity"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.VOLUME | Change.VOLUME_CLAIM | Change.NODE_LABELS | Change.NODE_ADDED
TRAITS: Final = Traits(plugin="VolumeBinding", of_volumes=True, one_node=False)
MISMATCH: Final = "node(s) didn't match PersistentVolume's node affinity"
GONE: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that can reach all the volumes."""
    mask = np.ones(len(fleet.names), np.bool_)
    for volume in _bound(fleet, request):
        mask &= False if volume is None else volume_choice.matching_mask(fleet, volume.affinity)
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows; if a volume does not exist, that is the reason for every row.

    Rows where unbound claims cannot get a volume are yielded with that reason, too: both are one plugin of
    kube-scheduler, which gives all its reasons.
    """
    gone = None in _bound(fleet, request)
    yield GONE if gone else MISMATCH, rejected
    yield from volume_binding.reasons(fleet, request, rejected & ~volume_binding.passes(fleet, request))


def _bound(fleet: Fleet, request: PodRequest) -> Iterator[Volume | None]:
    for use in request.mounts.claims:
        claim = fleet.volumes.claims.get(use.claim)
        if claim is not None and claim.bound:
            yield fleet.volumes.volumes.get(claim.volume)
