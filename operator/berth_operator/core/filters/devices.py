"""The node has the cards: a fresh Device with enough free, healthy cards of the right vendor, model and size."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from berth_operator.core import allocators
from berth_operator.core.allocators import Allocators, candidates, shortage
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.arrays.column_cache import Rows, pick
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.values import vendors
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

CHANGED: Final = "node(s) have a Device that another client changed"


class DeviceFilter:
    """A filter that calls the allocators of a policy.

    The Fleet caches its results by request, so all policies that are used with one Fleet must have the same allocators.
    """

    NAME: str = "devices"
    VERDICT: Verdict = Verdict.UNSCHEDULABLE
    WAKES_ON: Change = (
        Change.DEVICE | Change.NODE_ADDED | Change.NODE_ALLOCATABLE | Change.CAPACITY_FREED | Change.DEVICE_CLASS
    )
    TRAITS: Traits = Traits(capacity=True, needed="devices could be allocated twice")

    def __init__(self, allocators: Allocators) -> None:
        self._allocators = allocators

    def passes(self, fleet: Fleet, request: PodRequest) -> Mask:
        """Return the rows that can allocate every part of the request now."""
        if not request.devices:
            return fleet.present

        def of_rows(rows: Rows) -> Mask:
            mask = pick(fleet.has_device, rows) & pick(fleet.fresh, rows) & fleet.suits_vendor(request.devices, rows)
            return mask & self._allocators.passes(fleet, request, rows)

        # Containers with several slices are refused on some nodes.
        of_container = request.most_gpus_of_a_container if fleet.one_replica.any() else 0
        key = (self.NAME, request.devices, request.model, self._allocators.subdevices, of_container)
        alike = not request.devices.names_cards
        return _or_without_grants(fleet, request, fleet.column_cache.column(key, of_rows, alike=alike))

    def could_pass(self, fleet: Fleet, request: PodRequest) -> Mask:
        """Return the rows that could allocate every part of the request if all their cards were free."""
        mask = self._allocators.could_pass(fleet, request)
        if any(map(candidates.by_kubelet, request.devices.parts)) and fleet.cards_by_claim.any():
            mask = mask & ~shortage.by_claim(fleet)
        if request.devices:
            mask = mask & fleet.suits_vendor(request.devices)
        return _or_without_grants(fleet, request, mask)

    def reasons(self, fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
        """Yield the first requirements that rows do not meet, each with its rows; no row is yielded twice."""
        left = rejected.copy()
        for reason, missing in self._reasons(fleet, request, rejected):
            yield reason, left & missing
            left &= ~missing
            # Stop early: computing a later reason costs as much as the first.
            if not left.any():
                break

    def may_help(self, fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
        """Return whether the event is more than a new allocatable, or a DeviceClass may provide the devices now."""
        return event.change != Change.NODE_ALLOCATABLE or bool(extended_resources.rows_by_class(fleet, request))

    def _reasons(self, fleet: Fleet, request: PodRequest, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        yield "node(s) have no Device", ~fleet.has_device
        yield CHANGED, fleet.foreign
        # One text for all rows whose agents are silent, which time alone does not change.
        silent = ~fleet.fresh & ~fleet.foreign
        since = silence(fleet.heard[rejected & fleet.has_device & silent])
        yield f"node(s) have a Device that is not ready ({since})", silent
        suits = fleet.suits_vendor(request.devices)
        if request.devices.vendor:
            yield f"node(s) have no GPUs of {vendors.title(request.devices.vendor)}", ~suits
        for vendor in fleet.vendors_of(rejected & ~suits):
            of_vendor, title = ~suits & fleet.of_vendor(vendor), vendors.title(vendor)
            if resource := vendors.resource_of(vendor, fleet.kinds):
                yield f"node(s) have GPUs of {title}, which pods request by {resource}", of_vendor
            else:
                yield f"node(s) have GPUs of {title}, which pods do not get by kubernetes.io/gpu", of_vendor
        yield from self._allocators.reasons(fleet, request, rejected & fleet.has_device & fleet.fresh & suits)


def _or_without_grants(fleet: Fleet, request: PodRequest, mask: Mask) -> Mask:
    """Return a mask with the rows where the devices are given without cards of Berth."""
    without_grants = extended_resources.rows_without_grants(fleet, request)
    return mask if without_grants is None else mask | without_grants


def silence(heard: Column) -> str:
    """Return since when agents are silent, by the rows' `heard`: the earliest of the times, in UTC."""
    known = heard[heard > 0]
    if not known.size:
        return "agent never heard"
    since = datetime.fromtimestamp(int(known.min()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    many = heard.min() < heard.max()
    return f"{'agents' if many else 'agent'} silent since {since}{' or later' if many else ''}"


BUILT_IN: Final = DeviceFilter(allocators.BUILT_IN)
"""The filter with the built-in allocators alone."""
