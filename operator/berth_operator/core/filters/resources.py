"""The Node has enough free cpu, memory, pods and extended resources of its allocatable, as in NodeResourcesFit.

Devices are checked here as well as on the cards, because kubelet checks the Node. If the Node does not yet show the sum
that Berth writes for new or healed cards, kubelet ends a pod for good (`OutOfkubernetes.io/gpu`). From a device
plugin's resource (`nvidia.com/gpu`), kubelet allocates only what the plugin offers. If the Node does not have the
resource, kubelet starts the pod without any device. A resource that a DeviceClass provides need not be free on the
Node. But where a device plugin offers it, kubelet counts the pods that have it by class as users of what is offered.
"""

from collections.abc import Iterator
from functools import reduce
from typing import Final

import numpy as np

from berth_api.resources import PODS
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values import refused
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "resources"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.NODE_ALLOCATABLE | Change.NODE_ADDED | Change.CAPACITY_FREED | Change.DEVICE_CLASS
TRAITS: Final = Traits(
    plugin="NodeResourcesFit",
    capacity=True,
    partly_unresolvable=True,
    needed="kubelet rejects a pod beyond the Node's resources, and its controller creates others without end",
)
TOO_MANY_PODS: Final = "Too many pods"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with enough of every resource."""
    if extended_resources.rows_by_class(fleet, request):
        return _fits(fleet, request, ALL)
    return fleet.column_cache.column((NAME, request.resources), lambda rows: _fits(fleet, request, rows))


def _fits(fleet: Fleet, request: PodRequest, rows: Rows) -> Mask:
    return reduce(np.logical_and, (enough for _, enough in _enough(fleet, request, rows)))


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with enough of every resource if they had no pods; like kube-scheduler, ignore maxPods."""
    mask = np.ones(len(fleet.names), np.bool_)
    by_class = extended_resources.rows_by_class(fleet, request)
    for name, amount in request.resources:
        if name != PODS:
            mask &= (fleet.total(name) >= amount) | by_class.get(name, False)
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield every insufficient resource with its rows."""
    for name, enough in _enough(fleet, request, ALL):
        short, is_refused = rejected & ~enough, lacks_refused(fleet, name)
        yield (
            f"node(s) do not have {name} (policy {refused.POLICY} refuses it: add it to {refused.SETTING})",
            short & is_refused,
        )
        yield TOO_MANY_PODS if name == PODS else f"Insufficient {name}", short & ~is_refused


def lacks_refused(fleet: Fleet, name: str) -> Mask:
    """Return the rows that have none of a plug-in's resource because a policy refuses that the operator writes it."""
    mask = np.zeros_like(fleet.present)
    for kind in fleet.kinds.requested([name]):
        mask |= fleet.cards[kind.name].refused & (fleet.total(name) == 0)
    return mask


def _enough(fleet: Fleet, request: PodRequest, rows: Rows) -> Iterator[tuple[str, Mask]]:
    by_class = extended_resources.rows_by_class(fleet, request)
    for name, amount in request.resources:
        enough = fleet.left(name, rows) >= amount
        yield name, enough | pick(by_class[name], rows) if name in by_class else enough
