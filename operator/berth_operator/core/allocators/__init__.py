"""Which cards of a node a pod gets, and how much of each.

    gpu.py       parts of GPUs in amounts
    mig.py       instances of GPUs in MIG mode
    slices.py    what a Device offers as one GPU, or as one slice of one
    simple.py    RDMA NICs and FPGAs, and what plug-ins bring without an allocator of their own
    joint.py     parts of several types that lie together

Each but the last is an `Allocator`: a small pure module that serves one part of a request. Here stands which of them
serves which part, and what filters and decisions ask of a whole request.
"""

from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Final, Protocol, cast

import numpy as np

from berth_api.allocation import Grant
from berth_api.names import GPU
from berth_api.request import AMOUNTS, INSTANCE, PLUGIN_UNIT, REPLICA, Part, Unit
from berth_operator.core.allocators import gpu, joint, mig, simple, slices, subdevices
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.cards import Column, Mask
from berth_operator.core.fleet.column_cache import ALL, Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest


class Allocator(Protocol):
    """What every allocator module offers."""

    def passes(self, fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
        """Pass rows that can give the part now; the answer for a row depends on that row alone."""

    def could_pass(self, fleet: Fleet, request: PodRequest, part: Part) -> Mask:
        """Give the rows that could give the part, were all their cards free."""

    def reasons(self, fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        """Give what may be missing, and the rows where it is, the first reason first; every rejected row has one."""

    def choose(
        self, fleet: Fleet, row: int, request: PodRequest, part: Part, policy: Policy, *, near: Collection[int] = ()
    ) -> tuple[Grant, ...]:
        """Give the cards for the part, on a row that passes; `near` are PCIe switches that are preferred."""


_OF_GPUS: Final[Mapping[Unit, ModuleType]] = {AMOUNTS: gpu, INSTANCE: mig, REPLICA: slices, PLUGIN_UNIT: slices}


def _of(fleet: Fleet, part: Part) -> Allocator:
    plugin = fleet.plugins.get(part.type)
    if plugin is not None and plugin.allocator is not None:
        return plugin.allocator
    return cast(Allocator, _OF_GPUS[part.unit] if part.type == GPU else simple)


def passes(fleet: Fleet, request: PodRequest, rows: Rows) -> Mask:
    """Pass rows that can give every part of the request now."""
    # Never changed in place: it may be the Fleet's own.
    mask = pick(fleet.present, rows)
    for part in request.devices.parts:
        mask = mask & _of(fleet, part).passes(fleet, request, part, rows)
        mask &= pick(fleet.cards[part.type].unknown, rows) == 0
    if bound := joint.bound(request):
        mask = mask & joint.passes(fleet, request, bound, rows)
    return mask


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Give the rows that could give every part of the request, were all their cards free."""
    mask = np.ones_like(fleet.present)
    for part in request.devices.parts:
        mask &= _of(fleet, part).could_pass(fleet, request, part)
    if bound := joint.bound(request):
        mask &= joint.could_pass(fleet, request, bound)
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Give what may be missing for each part, and the rows where it is, the first reason first."""
    for part in request.devices.parts:
        yield from _of(fleet, part).reasons(fleet, request, part, rejected)
    if bound := joint.bound(request):
        yield joint.reason(bound), ~joint.passes(fleet, request, bound, ALL)


def choose(fleet: Fleet, row: int, request: PodRequest, policy: Policy) -> tuple[Grant, ...]:
    """Give the cards for every part of the request, on a row that passes."""
    if policy.own_cards is not None:
        return policy.own_cards.choose(fleet, row, request)

    def alone(part: Part, near: Collection[int] = ()) -> tuple[Grant, ...]:
        return _of(fleet, part).choose(fleet, row, request, part, policy, near=near)

    together = joint.parts_of(request)
    given = joint.choose(fleet, row, request, together, policy, alone=alone) if together else ()
    return (*given, *(grant for part in request.devices.parts if part not in together for grant in alone(part)))


def in_pieces(fleet: Fleet, part: Part) -> bool:
    """Tell whether there are nodes on which a part is of pieces, and not of cards."""
    return part.unit != AMOUNTS and not slices.are_cards(fleet, part)


def pieces_left(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Give how many pieces each card can give now for a part that is `in_pieces`."""
    free = mig.free if part.unit == INSTANCE else slices.free
    return free(fleet, request, part, rows)


def pieces_unused(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Give the hundredths of each card's pieces that no pod has after one more; all of a card that can give none."""
    return subdevices.unused(fleet.cards[part.type], pieces_left(fleet, request, part, rows), rows)


def divided(fleet: Fleet, part: Part, rows: Rows) -> Mask:
    """Give the rows where a part that is `in_pieces` is of pieces."""
    return slices.divided(fleet, rows) if part.unit == PLUGIN_UNIT else np.ones_like(fleet.present[rows])
