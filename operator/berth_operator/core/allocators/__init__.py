"""Allocators choose which cards of a node a pod gets, and how much of each card.

    gpu.py       GPUs by amounts: whole cards and shares
    mig.py       instances of GPUs in MIG mode
    slices.py    `nvidia.com/gpu` and `nvidia.com/gpu.shared`, as the device plugin counts them
    simple.py    RDMA NICs and FPGAs, and devices of plug-ins without an allocator
    joint.py     parts of several device types under the same PCIe switches

Each module except joint.py is an `Allocator`: a small pure module that serves one part of a request. `Allocators`
selects an allocator for each part of a request.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Final, cast

import numpy as np

from berth_api.allocation import Grant
from berth_api.names import GPU
from berth_api.request import AMOUNTS, INSTANCE, LAST, PLUGIN_UNIT, REPLICA, Part, SubdeviceRule, Unit
from berth_api.values.caching import sized_cache
from berth_operator.core.allocators import gpu, joint, mig, shortage, simple, slices, subdevices
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.plugins import AllocationPolicy, Allocator
from berth_operator.core.values.request import PodRequest

_OF_GPUS: Final[Mapping[Unit, ModuleType]] = {AMOUNTS: gpu, INSTANCE: mig, REPLICA: slices, PLUGIN_UNIT: slices}


@dataclass(frozen=True, slots=True, eq=False)
class Allocators:
    """The built-in allocators, and the plug-ins' allocators for their device types."""

    plugin_allocators: Mapping[str, Allocator]
    """The plug-ins' allocators by device type."""
    subdevices: SubdeviceRule = LAST
    """Whether `nvidia.com/gpu` may be a replica or MIG instance, unless the pod decides it itself."""

    def of(self, part: Part) -> Allocator:
        """Return the allocator that serves a part."""
        if (allocator := self.plugin_allocators.get(part.type)) is not None:
            return allocator
        return cast("Allocator", _OF_GPUS[part.unit] if part.type == GPU else simple)

    def parts(self, request: PodRequest) -> tuple[Part, ...]:
        """Return the parts of a request with the rule for subdevices that applies to them."""
        parts = request.devices.parts
        return parts if self.subdevices == LAST else tuple(_ruled(part, self.subdevices) for part in parts)

    def passes(self, fleet: Fleet, request: PodRequest, rows: Rows) -> Mask:
        """Return which of the rows can allocate every part of the request now."""
        mask = pick(fleet.present, rows)
        for part in self.parts(request):
            mask = mask & self.of(part).passes(fleet, request, part, rows)
            mask &= pick(fleet.cards[part.type].unknown, rows) == 0
        if bound := joint.bound(request):
            mask = mask & joint.passes(fleet, request, bound, rows, plugin_types=self.plugin_allocators)
        return mask

    def could_pass(self, fleet: Fleet, request: PodRequest) -> Mask:
        """Return the rows that could allocate every part of the request if all their cards were free."""
        mask = np.ones_like(fleet.present)
        for part in self.parts(request):
            mask &= self.of(part).could_pass(fleet, request, part)
        if bound := joint.bound(request):
            mask &= joint.could_pass(fleet, request, bound, plugin_types=self.plugin_allocators)
        return mask

    def reasons(self, fleet: Fleet, request: PodRequest, rejected: Mask) -> Iterator[tuple[str, Mask]]:
        """Yield reasons for each part, the most important first, each with the rows it is true for."""
        for part in self.parts(request):
            yield from shortage.barred(fleet, part, rejected)
            yield from self.of(part).reasons(fleet, request, part, rejected)
        if bound := joint.bound(request):
            yield joint.reason(bound), ~joint.passes(fleet, request, bound, ALL, plugin_types=self.plugin_allocators)

    def choose(self, fleet: Fleet, row: int, request: PodRequest, policy: AllocationPolicy) -> tuple[Grant, ...]:
        """Return the cards for every part of the request, on a row that passes."""

        def alone(part: Part, near: Collection[int] = ()) -> tuple[Grant, ...]:
            part = _ruled(part, self.subdevices)
            return self.of(part).choose(fleet, row, request, part, policy, near=near)

        together = joint.parts_of(request)
        if not together:
            return tuple(grant for part in request.devices.parts for grant in alone(part))
        grants = joint.choose(fleet, row, request, together, policy, alone=alone, plugin_types=self.plugin_allocators)
        return (*grants, *(grant for part in request.devices.parts if part not in together for grant in alone(part)))

    def preferred(self, fleet: Fleet, request: PodRequest, fits: Mask) -> Mask:
        """Return the fitting rows to choose from.

        These are rows with whole cards, if subdevices come last, and among them rows with switches for joint parts.
        """
        for part in self.parts(request):
            if part.unit == PLUGIN_UNIT and part.subdevices in ("", LAST) and in_subdevices(fleet, part):
                with_cards = fits & takes_cards(fleet, request, part)
                fits = with_cards if with_cards.any() else fits
        if parts := joint.preferring(request):
            under_switches = fits & self._serves_jointly(fleet, request, parts)
            fits = under_switches if under_switches.any() else fits
        return fits

    def _serves_jointly(self, fleet: Fleet, request: PodRequest, parts: joint.Parts) -> Mask:
        def of_rows(rows: Rows) -> Mask:
            return joint.passes(fleet, request, parts, rows, plugin_types=self.plugin_allocators)

        alike = not request.devices.names_cards
        return fleet.column_cache.column(("joint", request.devices, request.model), of_rows, alike=alike)


@sized_cache(2**22)
def _ruled(part: Part, rule: SubdeviceRule) -> Part:
    """Return a part with a rule for subdevices, if the rule applies to it and the pod has none."""
    return part if part.subdevices or part.unit != PLUGIN_UNIT else replace(part, subdevices=rule)


BUILT_IN: Final = Allocators({})


def in_subdevices(fleet: Fleet, part: Part) -> bool:
    """Return whether a part is allocated as subdevices instead of cards on some nodes."""
    return part.unit != AMOUNTS and not slices.are_cards(fleet, part)


def subdevices_left(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return how many free subdevices each card has for a part that is `in_subdevices`."""
    free = mig.free if part.unit == INSTANCE else slices.free
    return free(fleet, request, part, rows)


def subdevices_apart(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return how many of each card's free subdevices members of the gang that is decided may get."""
    left = subdevices_left(fleet, request, part, rows)
    if part.unit == INSTANCE:
        return mig.of_members(fleet, part, left, rows)
    return slices.of_members(fleet, request, part, left, rows)


def subdevices_unused(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return the hundredths of each card's subdevices that stay free after one more is taken; 100 if none is free."""
    return subdevices.unused(fleet.cards[part.type], subdevices_left(fleet, request, part, rows), rows)


def takes_cards(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the rows where whole cards can serve a part that is `in_subdevices`."""
    key = ("whole cards", request.devices, request.model, part)
    alike = not part.names_cards
    return fleet.column_cache.column(key, lambda rows: gpu.passes(fleet, request, part, rows), alike=alike)
