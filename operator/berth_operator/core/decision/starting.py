"""Whether a pod may fit on a node that is starting: its Node exists, but its agent has not reported all devices yet.

Such a pod is not `Unschedulable`, so that autoscalers do not add another node for it. The filters are those of a
decision, except that what the node will still report or lose counts as passed.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_api.request import is_device
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
    for filter_ in filters:
        if not rows.any():
            break
        rows = rows & _ONCE_STARTED.get(filter_.NAME, _as_now)(filter_, fleet, request)
    return rows


def _as_now(filter_: Filter, fleet: Fleet, request: PodRequest) -> Mask:
    return filter_.passes(fleet, request)


def _with_devices(filter_: Filter, fleet: Fleet, request: PodRequest) -> Mask:
    """Apply a filter to the rows whose devices are reported; without a driver a Device lists no GPU yet."""
    requests_gpus = any(part.type == GPU for part in request.devices.parts)
    reported = fleet.cards[GPU].present.any(axis=1) if requests_gpus else fleet.has_device
    return ~reported | filter_.passes(fleet, request)


def _any(_filter: Filter, fleet: Fleet, _request: PodRequest) -> Mask:
    return fleet.present


def _without_startup_taints(_filter: Filter, fleet: Fleet, request: PodRequest) -> Mask:
    mask = fleet.present
    for taint, rows in fleet.taints().items():
        if taints.repels(taint, request) and not is_startup_taint(taint):
            mask = mask & ~rows
    return mask


def _enough_resources(_filter: Filter, fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with enough of every resource, except of those that no device plugin has registered yet.

    Those that a policy refuses do not come by themselves.
    """
    mask = fleet.present
    for name, amount in request.resources:
        enough = fleet.left(name) >= amount
        coming = (fleet.total(name) == 0) & ~resources.lacks_refused(fleet, name)
        mask = mask & (enough | coming if is_device(name, fleet.kinds) else enough)
    return mask


_ONCE_STARTED: Final[Mapping[str, Callable[[Filter, Fleet, PodRequest], Mask]]] = {
    DeviceFilter.NAME: _with_devices,
    measured_memory.NAME: _with_devices,
    resources.NAME: _enough_resources,
    taints.NAME: _without_startup_taints,
    node_ready.NAME: _any,
}
