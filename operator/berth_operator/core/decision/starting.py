"""Whether a pod may fit on a node that is starting: its Node exists, but its agent has not reported all devices yet.

A pod that may fit is not `Unschedulable`, so that autoscalers do not add another node for it. The filters are the
decision's, except that what the node will still report or lose counts as passed. This needs evidence. A node that takes
the pod now has started, however young it is. So has a node whose devices pods have held. A gang that lacks places does
not wait for a node that its own members would take.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_api.request import is_device
from berth_operator.core.decision import capacity
from berth_operator.core.filters import Filter, measured_memory, node_ready, resources, taints
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.starting import is_startup_taint


def may_fit(fleet: Fleet, request: PodRequest, filters: Iterable[Filter]) -> Mask:
    """Return the rows of starting nodes that may take the pod once they have started; none if it needs no devices."""
    rows: Mask = fleet.starting & fleet.present
    if not request.devices:
        return np.zeros_like(rows)
    takes_now = rows.copy()
    for filter_ in filters:
        if not rows.any():
            break
        now = filter_.passes(fleet, request)
        takes_now &= now
        if filter_.NAME == resources.NAME:
            # Resources that no device plugin has registered yet are still coming. Those that pods use have been
            # registered, and those that a policy refuses do not come by themselves.
            now = fleet.present
            for name, amount in request.resources:
                left = fleet.left(name)
                enough = left >= amount
                if is_device(name, fleet.kinds):
                    enough |= (fleet.total(name) == 0) & (left == 0) & ~resources.lacks_refused(fleet, name)
                now = now & enough
        elif filter_.NAME in _ONCE_STARTED:
            now = now | (~fleet.was_used & _ONCE_STARTED[filter_.NAME](fleet, request))
        rows = rows & now
    starting: Mask = rows & ~takes_now
    return starting


def most_pods(fleet: Fleet, request: PodRequest, rows: Mask) -> int:
    """Return the maximum number of such pods on these starting nodes; `capacity.UNLIMITED` if unknown."""
    if (rows & _not_reported(fleet, request)).any():
        return capacity.UNLIMITED
    # What device plugins offer is still coming.
    others = tuple(amount for amount in request.resources if not is_device(amount[0], fleet.kinds))
    return int(capacity.of_class(fleet, replace(request, resources=others), rows).sum())


def _not_reported(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows whose devices are not reported yet. Without a driver, a Device lists no GPU."""
    requests_gpus = any(part.type == GPU for part in request.devices.parts)
    return fleet.present & ~(fleet.cards[GPU].present.any(axis=1) if requests_gpus else fleet.has_device)


def _any(fleet: Fleet, _request: PodRequest) -> Mask:
    return fleet.present


def _without_startup_taints(fleet: Fleet, request: PodRequest) -> Mask:
    mask = fleet.present
    for taint, rows in fleet.taints().items():
        if taints.repels(taint, request) and not is_startup_taint(taint):
            mask = mask & ~rows
    return mask


_ONCE_STARTED: Final[Mapping[str, Callable[[Fleet, PodRequest], Mask]]] = {
    DeviceFilter.NAME: _not_reported,
    measured_memory.NAME: _not_reported,
    taints.NAME: _without_startup_taints,
    node_ready.NAME: _any,
}
"""Filter -> the rows that it may pass once their nodes have started."""
