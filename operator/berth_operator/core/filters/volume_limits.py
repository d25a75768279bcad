"""The node can attach the pod's volumes: it has the required drivers, and no driver exceeds its limit (CSINode).

A driver is required if its CSIDriver sets `preventPodSchedulingIfMissing`, from Kubernetes 1.37 on.

A volume that a pod on the node already uses is not counted again. As in kube-scheduler, a volume that is attached
without a pod counts as new, because it may be about to be detached.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.mounts import Attachable
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "volume-limits"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = (
    Change.POD_ASSIGNED | Change.CAPACITY_FREED | Change.VOLUME_LIMITS | Change.VOLUME_CLAIM | Change.NODE_ADDED
)
TRAITS: Final = Traits(plugin="NodeVolumeLimits", of_volumes=True, one_node=False)
REASON: Final = "node(s) exceed max volume count"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with all required drivers where no limit is exceeded; a limit matters only for new volumes."""
    mask = np.ones(len(fleet.names), np.bool_)
    volumes = set(_volumes(fleet, request))
    for driver in {volume.driver for volume in volumes}:
        limits = fleet.volumes.limits(driver)
        if limits is None:
            continue
        # The volumes that no pod of the row uses yet.
        new = np.zeros(len(fleet.names), np.int64)
        for volume in volumes:
            if volume.driver == driver:
                new += 1
                new[fleet.volumes.attached.used(volume)] -= 1
        mask &= (new == 0) | (fleet.volumes.attached.counts(driver) + new <= limits)
    for _, lacking in _lacking(fleet, request):
        mask &= ~lacking
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield the rows without each required driver, and those whose limit is exceeded."""
    left = rejected.copy()
    for driver, lacking in _lacking(fleet, request):
        yield not_installed(driver), left & lacking
        left &= ~lacking
    yield REASON, left


def not_installed(driver: str) -> str:
    """Return the reason of a node without a driver, which must be there."""
    return f"{driver} CSI driver is not installed on the node"


def may_help(_fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a pod with volumes left, a node's limits changed, or a pod with one of the volumes was assigned.

    A volume is not counted again where another pod uses it.
    """
    if event.after is not None:
        return request.mounts.shares_with(event.after.mounts)
    if event.before is not None:
        return bool(event.before.mounts)
    return bool(request.mounts) and not event.change & Change.NODE_ADDED


def _lacking(fleet: Fleet, request: PodRequest) -> Iterator[tuple[str, Mask]]:
    """Yield the drivers of the pod's volumes that must be on its node, each with the rows that lack it."""
    if not (required := fleet.volumes.required):
        return
    installed, nowhere = fleet.volumes.drivers.masks, np.zeros(len(fleet.names), np.bool_)
    for driver in sorted(required & {volume.driver for volume in _volumes(fleet, request)}):
        yield driver, ~installed.get(driver, nowhere)


def _volumes(fleet: Fleet, request: PodRequest) -> Iterator[Attachable]:
    yield from request.mounts.attachables
    for use in request.mounts.claims:
        if (volume := fleet.volumes.attachable(use)) is not None:
            yield volume
