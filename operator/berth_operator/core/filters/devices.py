"""The node has the cards: a fresh Device with enough healthy cards of the right vendor, model and size, free now."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from berth_operator.core import allocators
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.column_cache import Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "devices"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.DEVICE | Change.NODE_ADDED | Change.RELEASED | Change.DEVICE_CLASS


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass rows that can give every part of the request now."""
    if not request.devices:
        return fleet.present
    key = (NAME, request.devices, request.model)
    return fleet.rowwise.column(key, lambda rows: _fits(fleet, request, rows))


def _fits(fleet: Fleet, request: PodRequest, rows: Rows) -> Mask:
    mask = pick(fleet.has_device, rows) & pick(fleet.fresh, rows)
    if request.devices.vendor:
        mask &= fleet.of_vendor(request.devices.vendor, rows)
    return mask & allocators.passes(fleet, request, rows)


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Give the rows that could give every part of the request, were all their cards free."""
    return allocators.could_pass(fleet, request)


def explain(fleet: Fleet, request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count the rows by the first thing that is missing."""
    counts: Counter[str] = Counter()
    left = rejected.copy()
    for reason, missing in _reasons(fleet, request, rejected):
        counts[reason] += int((left & missing).sum())
        left &= ~missing
        # Later reasons cost as much as the first.
        if not left.any():
            break
    return +counts


def _reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    yield "no Device", ~fleet.has_device
    yield "Device not ready", ~fleet.fresh
    if vendor := request.devices.vendor:
        yield f"no {vendor} devices", ~fleet.of_vendor(vendor)
    yield from allocators.reasons(fleet, request, rejected)
