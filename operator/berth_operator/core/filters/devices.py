"""The node has the cards: a fresh Device with enough healthy cards of the right vendor, model and size, free now."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from berth_api.allocation import text
from berth_api.names import GPU, GPU_MEMORY
from berth_api.request import Part
from berth_operator.core.allocators import candidates
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows
from berth_operator.core.verdict import Change, Verdict

NAME: Final = "devices"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.DEVICE | Change.NODE_ADDED | Change.RELEASED


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Pass rows that can give every part of the request now."""
    if not request.devices:
        return fleet.present
    key = (NAME, request.devices, request.model)
    return fleet.rowwise.column(key, lambda rows: _fits(fleet, request, rows))


def _fits(fleet: Fleet, request: PodRequest, rows: Rows) -> Mask:
    mask = fleet.has_device[rows] & fleet.fresh[rows]
    if request.devices.vendor:
        mask &= fleet.of_vendor(request.devices.vendor, rows)
    for part in request.devices.parts:
        mask &= candidates.fitting(fleet, request, part, rows).sum(axis=1) >= part.count
        mask &= fleet.cards[part.type].unknown[rows] == 0
    return mask


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Give the rows that could give every part of the request, were all their cards free."""
    mask = np.ones(len(fleet.names), np.bool_)
    for part in request.devices.parts:
        mask &= ~_short(_suitable(fleet, request, part), part)
    return mask


def explain(fleet: Fleet, request: PodRequest, rejected: Mask) -> Mapping[str, int]:
    """Count the rows by the first thing that is missing."""
    counts: Counter[str] = Counter()
    left = rejected.copy()
    for reason, missing in _reasons(fleet, request, rejected):
        counts[reason] += int((left & missing).sum())
        left &= ~missing
    return +counts


def _reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    yield "no Device", ~fleet.has_device
    yield "Device not ready", ~fleet.fresh
    if vendor := request.devices.vendor:
        yield f"no {vendor} devices", ~fleet.of_vendor(vendor)
    for part in request.devices.parts:
        yield from _part_reasons(fleet, request, part, rejected)


def _part_reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    kind, label = part.type, part.type.upper()
    healthy = fleet.cards[kind].healthy
    right = healthy & candidates.accepted(fleet, request, part)
    large = _suitable(fleet, request, part)
    free = candidates.fitting(fleet, request, part)
    yield f"fewer than {part.count} healthy {label} devices", _short(healthy, part)
    yield f"{label} model is not {request.model}", _short(right, part)
    small = _short(large, part)
    yield _too_small(fleet, part, right, small & rejected), small
    yield f"{label} devices held by pods whose allocation is unknown", fleet.cards[kind].unknown > 0
    yield f"insufficient free {label} devices ({_wanted(part)})", _short(free, part)


def _suitable(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Give the healthy cards of the right model that are large enough."""
    cards = fleet.cards[part.type]
    return cards.healthy & candidates.accepted(fleet, request, part) & candidates.large_enough(fleet, part)


def _short(mask: Mask, part: Part) -> Mask:
    few: Mask = mask.sum(axis=1) < part.count
    return few


def _too_small(fleet: Fleet, part: Part, right: Mask, rows: Mask) -> str:
    """Name the memory that these rows could give on each of as many cards as the pod wants."""
    wanted = dict(part.amounts).get(GPU_MEMORY, 0)
    if part.type != GPU or not wanted:
        return f"{part.type.upper()} devices offer less"
    cards = fleet.cards[part.type]
    memory = np.where(right, cards.total[cards.index[GPU_MEMORY]], 0)
    # Of several cards the smallest limits the pod. Rows with fewer cards than it wants have another reason.
    last = min(part.count, memory.shape[1])
    largest = int(np.sort(memory, axis=1)[rows, -last].max(initial=0))
    if largest >= wanted:
        return "GPU devices offer less"
    return f"GPU memory too small (largest {text(GPU_MEMORY, largest)} < {text(GPU_MEMORY, wanted)})"


def _wanted(part: Part) -> str:
    each = ", ".join(f"{name} {text(name, amount)}" for name, amount in part.amounts)
    return f"{part.count} with {each}"
