"""The pod's VolumeClaims exist and are valid. An invalid claim excludes all nodes until the claim changes."""

from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "volume-claims"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.VOLUME_CLAIM | Change.STORAGE_CLASS
TRAITS: Final = Traits(
    plugin="VolumeBinding",
    of_volumes=True,
    of_pod=True,
    one_node=False,
    needed="the volumes that a placement chooses for claims must exist",
)
UNBOUND: Final = "pod has unbound immediate PersistentVolumeClaims"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return all rows, or none if a claim is invalid."""
    return np.zeros_like(fleet.present) if _problem(fleet, request) else fleet.present


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield the problem of the first invalid claim for all rows."""
    yield _problem(fleet, request), rejected


def _problem(fleet: Fleet, request: PodRequest) -> str:
    unbound = ""
    for use in request.mounts.claims:
        claim, name = fleet.volumes.claims.get(use.claim), use.claim.partition("/")[2]
        if claim is None and use.owner:
            return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if claim.lost:
            return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.volume}"'
        if claim.deleting:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if use.owner and claim.owner != use.owner:
            return f'persistentvolumeclaim "{name}" was not created for the pod (pod is not owner)'
        if not claim.bound and not fleet.volumes.is_delayed(claim):
            # It is the problem only if all claims are valid, as in kube-scheduler.
            unbound = UNBOUND
    return unbound
