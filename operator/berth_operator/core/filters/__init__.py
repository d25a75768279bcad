"""Filters. Each is one file and one array expression over all nodes.

A filter is a module with the members of `Filter`, or an object if a policy configures it. Decisions call `passes`. If a
pod fits nowhere, `reasons` is called and returns the rejected nodes by reason.

Two members are optional:

* `could_pass(fleet, request) -> Mask` returns the rows that could take the pod if no other pod were there. Without it,
  a filter whose rejections evictions may resolve could pass every row.
* `may_help(fleet, request, event) -> bool` returns whether an event may let the filter pass a node that it rejects
  (kube-scheduler's QueueingHintFn). The event's kind is in WAKES_ON. Without it, each event may, but only for the
  event's own node.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

import numpy as np

from berth_operator.core.filters import (
    cordon,
    declared_features,
    devices,
    dynamic_resources,
    existing_anti_affinity,
    host_ports,
    injected,
    isolation,
    kubelet_admission,
    measured_memory,
    namespace_limits,
    node_affinity,
    node_ready,
    node_selector,
    pod_affinity,
    pod_anti_affinity,
    resource_claims,
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
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.plugins import PluginFailedError
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict


class Filter(Protocol):
    """The interface of every filter."""

    # Properties, because the constants of a module are read-only.
    @property
    def NAME(self) -> str:  # noqa: N802 - a constant
        """The name in the configuration and in metrics."""

    @property
    def VERDICT(self) -> Verdict:  # noqa: N802 - a constant
        """Whether evictions may resolve a rejection."""

    @property
    def WAKES_ON(self) -> Change:  # noqa: N802 - a constant
        """The changes that may turn a rejection into a pass."""

    @property
    def TRAITS(self) -> Traits:  # noqa: N802 - a constant
        """What else distinguishes it from other filters."""

    def passes(self, fleet: Fleet, request: PodRequest, /) -> Mask:
        """Return for each row whether it can take the pod; `fleet.present` itself if the filter does not apply."""

    def reasons(self, fleet: Fleet, request: PodRequest, rejected: Mask, /) -> Reasons:
        """Yield the reasons of the rejected rows, each with its rows.

        A row is yielded once for each reason that kube-scheduler's plugin would return. Masks may be empty.
        """


Passes = Callable[[Fleet, PodRequest], Mask]
Hint = Callable[[Fleet, PodRequest, ClusterEvent], bool]


def order(device_filter: DeviceFilter) -> tuple[Filter, ...]:
    """Return all filters in order; the first that rejects a node gives the reason."""
    return (
        supported,
        injected,
        volume_claims,
        resource_claims,
        namespace_limits,
        cordon,
        taints,
        # After the taints: kube-scheduler knows such a node only by the taint that the node controller sets.
        node_ready,
        node_selector,
        node_affinity,
        kubelet_admission,
        # After what no pod's end changes: evictions may free devices.
        dynamic_resources,
        host_ports,
        isolation,
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
    return tuple(filter_ for filter_ in filters if not filter_.TRAITS.of_volumes)


def local(filters: Iterable[Filter]) -> tuple[Filter, ...]:
    """Return the filters that read capacity alone."""
    return tuple(filter_ for filter_ in filters if filter_.TRAITS.capacity)


def could_pass(filter_: Filter, fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that a filter could pass if all other pods there were evicted."""
    if filter_.VERDICT is Verdict.UNRESOLVABLE:
        return filter_.passes(fleet, request)
    own: Passes | None = getattr(filter_, "could_pass", None)
    return fleet.present if own is None else own(fleet, request)


def unresolvable(filter_: Filter, fleet: Fleet, request: PodRequest, rejected: Mask) -> Mask:
    """Return the rejected rows that no eviction can help (kube-scheduler's UnschedulableAndUnresolvable)."""
    if filter_.VERDICT is Verdict.UNRESOLVABLE:
        return rejected
    if filter_.TRAITS.partly_unresolvable:
        return rejected & ~could_pass(filter_, fleet, request)
    return np.zeros_like(rejected)


def hint_of(filter_: Filter) -> Hint | None:
    """Return the filter's own `may_help`; None if it has none."""
    return getattr(filter_, "may_help", None)


def has_capacity(pod_filters: Iterable[Filter], fleet: Fleet, request: PodRequest, row: int) -> bool:
    """Return whether a row has enough free for a pod, by those of `pod_filters` that read capacity alone.

    The result is True if a plug-in fails, so that the pod is decided and the error is reported.
    """
    try:
        return all(bool(filter_.passes(fleet, request)[row]) for filter_ in local(pod_filters))
    except PluginFailedError:
        return True
