"""Filters: one file each, one array expression over all nodes.

A filter is a module with the members of `Filter`, or an object if a policy configures it. Decisions call `passes`;
`reasons` is called only if a pod fits nowhere, and gives the rejected nodes by reason.
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
    measured_memory,
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
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict


class Filter(Protocol):
    """The interface of every filter."""

    NAME: str
    VERDICT: Verdict
    """Whether evictions may resolve a rejection."""
    WAKES_ON: Change
    """The changes that may turn a rejection into a pass."""

    def passes(self, fleet: Fleet, request: PodRequest) -> Mask:
        """Return for each row whether it can take the pod; `fleet.present` itself if the filter does not apply."""

    def reasons(self, fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
        """Yield the reasons of the rejected rows, each with its rows.

        A row is yielded once for each reason that kube-scheduler's plugin would return. Masks may be empty.
        """


class Bounded(Filter, Protocol):
    """A filter that knows the rows that it rejects whichever pods are evicted there."""

    def could_pass(self, fleet: Fleet, request: PodRequest) -> Mask:
        """Return for each row whether it could take the pod if no other pod were there."""


class Hinting(Filter, Protocol):
    """A filter that knows which of its events concern a pod."""

    def may_help(self, fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
        """Return whether an event may let the filter pass a node that it rejects (kube-scheduler's QueueingHintFn)."""


class Coupled(Hinting, Protocol):
    """A filter whose answer for a node depends on pods or labels of other nodes, or on volumes in use."""


def _filters(*filters: object) -> tuple[Filter, ...]:
    return cast("tuple[Filter, ...]", filters)


def order(device_filter: DeviceFilter) -> tuple[Filter, ...]:
    """Return all filters in order; the first that rejects a node gives the reason."""
    return _filters(
        supported,
        injected,
        volume_claims,
        dynamic_resources,
        cordon,
        taints,
        # After the taints: kube-scheduler knows such a node only by the taint that the node controller sets.
        node_ready,
        node_selector,
        node_affinity,
        host_ports,
        # Before the Node's resources: its reasons are more specific, and a shortage in the Node's allocatable matters
        # only if the Device has enough.
        device_filter,
        measured_memory,
        resources,
        volume_conflicts,
        volume_in_use,
        volume_limits,
        volume_affinity,
        volume_binding,
        volume_zones,
        topology_spread,
        pod_affinity,
        pod_anti_affinity,
        existing_anti_affinity,
        declared_features,
    )


ORDER: Final = order(devices.BUILT_IN)
"""All filters, without plug-ins."""


def unmounted(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Return the filters for pods whose volumes do not restrict their node, which are most pods."""
    return tuple(each for each in filters if not each.NAME.startswith("volume-"))


def _names(*filters: object) -> frozenset[str]:
    return frozenset(each.NAME for each in _filters(*filters))


OF_POD: Final = _names(supported, injected, volume_claims)
"""Names of the filters that reject all nodes or none, because of the pod alone (kube-scheduler's PreFilter)."""

OF_REQUEST: Final[Mapping[str, str]] = {supported.NAME: "NotSupported", injected.NAME: "NotInjected"}
"""Names of the filters that a new node cannot pass either, each with the reason of the condition PodScheduled=False.

Not volume-claims, whose reason in kube-scheduler is `Unschedulable`: autoscalers check claims themselves.
"""

LOCAL: Final = _names(resources, DeviceFilter, measured_memory)
"""Names of the filters that read only the free resources and devices of a node, so only its own pods matter."""

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
    measured_memory,
)
"""Names of the filters that read only the node, and no pods or volumes elsewhere."""

COUPLED: Final = _names(
    volume_in_use, volume_limits, topology_spread, pod_affinity, pod_anti_affinity, existing_anti_affinity
)
"""Names of the `Coupled` filters."""

BOUNDED: Final = _names(resources, DeviceFilter, measured_memory, volume_in_use, topology_spread)
"""Names of the `Bounded` filters."""

PARTLY_UNRESOLVABLE: Final = _names(resources, topology_spread)
"""Names of the filters some of whose rejections are UnschedulableAndUnresolvable in kube-scheduler, and some not."""

NEEDED: Final = _names(
    # Without these a pod would run without a feature that it requests.
    supported,
    dynamic_resources,
    # Without these devices or ports could be allocated twice: kubelet rejects such a pod, and its controller creates
    # replacements in an endless loop.
    resources,
    host_ports,
    DeviceFilter,
    # Two writers of one volume can destroy its data.
    volume_in_use,
    volume_conflicts,
    # The volumes that a placement chooses for claims must exist.
    volume_claims,
    volume_binding,
)
"""Names of the filters that no policy can switch off."""

HINTING: Final = COUPLED | _names(node_selector, node_affinity, host_ports)
"""Names of the `Hinting` filters; for the others every change in WAKES_ON may help."""


def local(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Return the filters that are `LOCAL`."""
    return tuple(each for each in filters if each.NAME in LOCAL)


def as_bounded(filter_: Filter) -> Bounded | None:
    """Return the filter as `Bounded`; None if it is not."""
    return cast("Bounded", filter_) if filter_.NAME in BOUNDED else None


def unresolvable(filter_: Filter, fleet: Fleet, request: PodRequest, rejected: Mask) -> Mask:
    """Return the rejected rows that no eviction can help (kube-scheduler's UnschedulableAndUnresolvable)."""
    if filter_.VERDICT is Verdict.UNRESOLVABLE:
        return rejected
    if filter_.NAME in PARTLY_UNRESOLVABLE and (bounded := as_bounded(filter_)) is not None:
        return rejected & ~bounded.could_pass(fleet, request)
    return np.zeros_like(rejected)


def may_help(filter_: Filter, fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether an event of a kind in WAKES_ON may let a filter pass a node that it rejects."""
    return filter_.NAME not in HINTING or cast("Hinting", filter_).may_help(fleet, request, event)


def has_capacity(pod_filters: Iterable[Filter], fleet: Fleet, request: PodRequest, row: int) -> bool:
    """Return whether a row has enough free for a pod, by the `LOCAL` filters among `pod_filters`.

    The result is True if a plug-in fails, so that the pod is decided and the error is reported.
    """
    try:
        return all(bool(each.passes(fleet, request)[row]) for each in pod_filters if each.NAME in LOCAL)
    except PluginFailedError:
        return True
