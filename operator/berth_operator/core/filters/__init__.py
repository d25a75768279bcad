"""Predicates: one file each, one array expression over all nodes.

A filter is a module with the members of `Filter`, or an object if a policy configures it. Decisions use `passes`;
`explain` is called only if a pod fits nowhere, and counts by reason the nodes that the filter rejected.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol, cast

import numpy as np

from berth_operator.core.filters import (
    cordon,
    declared_features,
    devices,
    dynamic_resources,
    existing_anti_affinity,
    host_ports,
    injected,
    node_affinity,
    node_ready,
    node_selector,
    pod_affinity,
    pod_anti_affinity,
    resources,
    supported,
    taints,
    topology_spread,
    volume_affinity,
    volume_binding,
    volume_claims,
    volume_conflicts,
    volume_in_use,
    volume_limits,
    volume_zones,
)
from berth_operator.core.filters.devices import DeviceFilter
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict


class Filter(Protocol):
    """What every filter module offers."""

    NAME: str
    VERDICT: Verdict
    """What a rejection means."""
    WAKES_ON: Change
    """The changes that may turn a rejection into a pass."""

    def passes(self, fleet: Fleet, request: PodRequest) -> Mask:
        """Tell for each row whether it can take the pod; `fleet.present` itself where the pod minds nothing of it."""

    def explain(self, fleet: Fleet, request: PodRequest, rejected: Mask) -> Mapping[str, int]:
        """Count the rejected rows by reason; a row counts for each reason that kube-scheduler's plugin would return."""


class Bounded(Filter, Protocol):
    """A filter that knows of rows where its answer stays no, whoever leaves them."""

    def could_pass(self, fleet: Fleet, request: PodRequest) -> Mask:
        """Tell for each row whether it could take the pod if no other were there."""


class Hinting(Filter, Protocol):
    """A filter that can tell which of its events concern a pod at all."""

    def may_help(self, fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
        """Return whether an event may let the filter pass a node that it rejects (kube-scheduler's QueueingHintFn)."""


class Coupled(Hinting, Protocol):
    """A filter whose answer for a node depends on pods or labels of other nodes, or on volumes in use."""


def _filters(*filters: object) -> tuple[Filter, ...]:
    return cast("tuple[Filter, ...]", filters)


def order(device_filter: DeviceFilter) -> tuple[Filter, ...]:
    """Return all filters; the first that rejects a node gives its reason."""
    return _filters(
        supported,
        injected,
        volume_claims,
        dynamic_resources,
        cordon,
        taints,
        # After the taints: the node controller taints such a node, and kube-scheduler knows it by that alone.
        node_ready,
        node_selector,
        node_affinity,
        declared_features,
        host_ports,
        # Before the Node's resources: it says more of what is missing, and only where the Device has enough is it worth
        # knowing that the Node offers too little of it.
        device_filter,
        resources,
        volume_in_use,
        volume_conflicts,
        volume_limits,
        volume_affinity,
        volume_binding,
        volume_zones,
        topology_spread,
        pod_affinity,
        pod_anti_affinity,
        existing_anti_affinity,
    )


ORDER: Final = order(devices.BUILT_IN)
"""All filters, without plug-ins."""


def unmounted(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Return those that apply to a pod without volumes that matter, which most pods are."""
    return tuple(each for each in filters if not each.NAME.startswith("volume-"))


def _names(*filters: object) -> frozenset[str]:
    return frozenset(each.NAME for each in _filters(*filters))


OF_POD: Final = _names(supported, injected, volume_claims)
"""Names of those that reject all nodes or none, for a reason that lies in the pod (kube-scheduler's PreFilter)."""

LOCAL: Final = _names(resources, DeviceFilter)
"""Names of those that ask how much is free on a node: only what its own pods take of its resources and devices counts.
"""

SETTLED: Final = _names(
    supported,
    injected,
    node_ready,
    cordon,
    taints,
    node_selector,
    node_affinity,
    declared_features,
    host_ports,
    resources,
    DeviceFilter,
)
"""Names of those that ask about a node without asking what other pods or volumes are elsewhere."""

COUPLED: Final = _names(
    volume_in_use, volume_limits, topology_spread, pod_affinity, pod_anti_affinity, existing_anti_affinity
)
"""Names of those that are `Coupled`."""

BOUNDED: Final = _names(resources, DeviceFilter, volume_in_use, topology_spread)
"""Names of those that are `Bounded`."""

PARTLY_UNRESOLVABLE: Final = _names(resources, topology_spread)
"""Names of those whose rejections kube-scheduler, too, splits by whether pods that leave could undo them."""

NEEDED: Final = _names(
    # A pod that asks for what is not honoured would run as if it had not.
    supported,
    dynamic_resources,
    # Nothing is handed out twice: kubelet would refuse such a pod, and its controller make the next one, for ever.
    resources,
    host_ports,
    DeviceFilter,
    # One writer at a time: data is at stake.
    volume_in_use,
    volume_conflicts,
    # What a placement promises to claims must be there.
    volume_claims,
    volume_binding,
)
"""Names of those without which nothing may be bound; no policy switches them off."""

HINTING: Final = COUPLED | _names(node_selector, node_affinity, host_ports)
"""Names of those that are `Hinting`; to the others each of their changes may matter."""


def local(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Return those of some filters that ask how much is free on a node."""
    return tuple(each for each in filters if each.NAME in LOCAL)


def as_bounded(each: Filter) -> Bounded | None:
    """Return a filter that is `Bounded` as such; None for any other."""
    return cast("Bounded", each) if each.NAME in BOUNDED else None


def unresolvable(each: Filter, fleet: Fleet, request: PodRequest, rejected: Mask) -> Mask:
    """Return the rejected rows that stay so whichever pods leave (kube-scheduler's UnschedulableAndUnresolvable)."""
    if each.VERDICT is Verdict.UNRESOLVABLE:
        return rejected
    if each.NAME in PARTLY_UNRESOLVABLE and (bounded := as_bounded(each)) is not None:
        return rejected & ~bounded.could_pass(fleet, request)
    return np.zeros_like(rejected)


def may_help(each: Filter, fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether an event, of a kind that a filter waits for, may let it pass a node that it rejects."""
    return each.NAME not in HINTING or cast("Hinting", each).may_help(fleet, request, event)


def has_room(asked: Iterable[Filter], fleet: Fleet, request: PodRequest, row: int) -> bool:
    """Return whether a row has enough free for a pod, by those of the filters that ask for it.

    If a plug-in fails it may have enough: the pod's decision will show.
    """
    try:
        return all(bool(each.passes(fleet, request)[row]) for each in asked if each.NAME in LOCAL)
    except PluginFailedError:
        return True
