"""Parts that lie together: GPUs, and NICs or FPGAs under the same PCIe switches.

`SamePCIe` asks for a set of switches with cards of every type under each, and none of any type elsewhere. The type that
is named first, and GPUs in any case, are given as many as the pod asks for. Of the others every switch gets one, even
where that makes more than the pod asks for. So a set will do if it has no more switches than there are cards of a type
with a fixed number, each of them can serve all types, and all together have enough of each.

Without `SamePCIe` such a set is preferred, and cards that are near to those of the first type are where there is none.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

import numpy as np

from berth_api.allocation import Grant
from berth_api.names import GPU
from berth_api.request import AMOUNTS, PLUGIN_UNIT, Part
from berth_operator.core.allocators import best_fit, candidates, gpu, grants, regions, simple, slices, switches
from berth_operator.core.allocators.regions import ANY_NUMBER
from berth_operator.core.allocators.switches import UNKNOWN_SWITCH
from berth_operator.core.allocators.topology import Companions
from berth_operator.core.fleet.cards import Indices, Mask
from berth_operator.core.fleet.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest

Parts = tuple[Part, ...]
Alone = Callable[[Part, Collection[int]], tuple[Grant, ...]]
Masks = Sequence[Mask]
"""For each part the cards that can serve it."""
Types = Container[str]
"""Device types whose devices are not chosen here, because a plug-in's allocator chooses them."""


def parts_of(request: PodRequest) -> Parts:
    """Return the parts that lie together, the one that is placed first before the others; none for most pods."""
    joint = request.devices.joint
    named = () if joint is None else joint.types
    return tuple(part for kind in named for part in request.devices.parts if part.type == kind)


def bound(request: PodRequest) -> Parts:
    """Return the parts that must lie under the same switches."""
    return parts_of(request) if request.devices.joint is not None and request.devices.joint.same_pcie else ()


def passes(fleet: Fleet, request: PodRequest, parts: Parts, rows: Rows, *, apart: Types) -> Mask:
    """Return which of the rows have switches that can serve all of the parts now."""
    return _feasible(fleet, request, parts, [_can_serve(fleet, request, part, rows, apart) for part in parts], rows)


def could_pass(fleet: Fleet, request: PodRequest, parts: Parts, *, apart: Types) -> Mask:
    """Return the rows with switches that could serve all of the parts if all cards were free."""
    return _feasible(fleet, request, parts, [_could_serve(fleet, request, part, apart) for part in parts], ALL)


def reason(parts: Parts) -> str:
    """Say what a row lacks that has enough for each part by itself."""
    devices = " and ".join(f"{part.count} {part.type.upper()}" for part in parts)
    return f"node(s) have too few free devices under the same PCIe switches ({devices} requested)"


def choose(
    fleet: Fleet,
    row: int,
    request: PodRequest,
    parts: Parts,
    policy: AllocationPolicy,
    *,
    alone: Alone,
    apart: Types,
) -> tuple[Grant, ...]:
    """Return the cards for all of the parts: under the same switches, or near to those of the first if that is enough.

    `alone` chooses for a part by itself, near to some switches.
    """
    joint_request = _JointRequest(fleet=fleet, row=row, request=request, parts=parts, policy=policy, apart=apart)
    chosen = joint_request.under_switches()
    return joint_request.nearby(alone) if chosen is None else chosen


def _can_serve(fleet: Fleet, request: PodRequest, part: Part, rows: Rows, apart: Types) -> Mask:
    serve = candidates.fitting if part.type == GPU else simple.able
    return serve(fleet, request, part, rows) & _are_cards(fleet, part, rows, apart)[:, np.newaxis]


def _could_serve(fleet: Fleet, request: PodRequest, part: Part, apart: Types) -> Mask:
    serve = candidates.suitable if part.type == GPU else simple.ever_able
    return serve(fleet, request, part) & _are_cards(fleet, part, ALL, apart)[:, np.newaxis]


def _are_cards(fleet: Fleet, part: Part, rows: Rows, apart: Types) -> Mask:
    """Return the rows where the part is of cards that can be chosen here: no pieces, and none of a plug-in."""
    cards = np.ones_like(fleet.present[rows])
    if part.unit == PLUGIN_UNIT and not slices.are_cards(fleet, part):
        return cards & ~slices.divided(fleet, rows)
    return cards & (part.unit in (AMOUNTS, PLUGIN_UNIT) and part.type not in apart)


# --- whether a row has such switches ------------------------------------------------------------------------------


def _feasible(fleet: Fleet, request: PodRequest, parts: Parts, masks: Masks, rows: Rows) -> Mask:
    feasible = np.zeros(len(masks[0]), np.bool_)
    counts = tuple(part.count for part in parts)
    for narrowed, most in _choices(fleet, request, parts, masks, rows):
        # Counting is cheap, and already rejects most rows.
        enough = [np.count_nonzero(mask, axis=1) >= count for mask, count in zip(narrowed, counts, strict=True)]
        candidate_rows = np.flatnonzero(np.logical_and.reduce(enough))
        under = [
            (fleet.cards[part.type].pcie[rows] * mask)[candidate_rows]
            for part, mask in zip(parts, narrowed, strict=True)
        ]
        feasible[candidate_rows] |= switches.exist(counts, under, most)
    return feasible


def _choices(fleet: Fleet, request: PodRequest, parts: Parts, masks: Masks, rows: Rows) -> Iterator[tuple[Masks, int]]:
    """Return the cards among which the parts may choose freely, and under how many switches at most."""
    first = parts_of(request)[0]
    fixed = [part == first or part.type == GPU for part in parts]
    groups = (
        regions.of_part(fleet, request, part, mask, rows, more=not counted)
        for part, mask, counted in zip(parts, masks, fixed, strict=True)
    )
    most = min((part.count for part, counted in zip(parts, fixed, strict=True) if counted), default=ANY_NUMBER)
    for chosen in product(*groups):
        yield [mask for mask, _ in chosen], min(most, *(limit for _, limit in chosen))


# --- which cards --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _JointRequest:
    """What is asked of a row."""

    fleet: Fleet
    row: int
    request: PodRequest
    parts: Parts
    policy: AllocationPolicy
    apart: Types

    def under_switches(self) -> tuple[Grant, ...] | None:
        """Return cards under switches that can serve all of the parts; None if there are none such.

        The GPUs are the best of all sets that have the others beside them. Where there are no GPUs, or more than can
        be compared, the fewest switches that will do are taken.
        """
        best: tuple[Masks, list[int]] | None = None
        for masks, most in self._choices(self.parts):
            chosen = self._fewest(masks)
            if chosen is not None and len(chosen) <= (most if best is None else min(most, len(best[1]) - 1)):
                best = masks, chosen
        if best is None:
            return None
        return self._connected() or self._grants(self.parts, *best)

    def nearby(self, alone: Alone) -> tuple[Grant, ...]:
        """Return the cards of the first part, and for the others such as are near to them, as far as there are any."""
        chosen = alone(self.parts[0], ())
        cards = self.fleet.cards[self.parts[0].type]
        held = np.isin(cards.minor[self.row], [grant.minor for grant in chosen])
        near = set(cards.pcie[self.row, held].tolist()) - {UNKNOWN_SWITCH}
        return (*chosen, *(grant for part in self.parts[1:] for grant in self._near(part, near, alone)))

    def _near(self, part: Part, near: Collection[int], alone: Alone) -> tuple[Grant, ...]:
        if part.type == GPU or part.type in self.apart:
            return alone(part, near)
        [mask] = simple.able(self.fleet, self.request, part, np.array([self.row]))
        slots = np.flatnonzero(mask)
        return simple.take(self.fleet, self.row, part, self.policy, slots, near=near, up_to=len(near))

    def _choices(self, parts: Parts) -> Iterator[tuple[Masks, int]]:
        rows = np.array([self.row])
        able = [_can_serve(self.fleet, self.request, part, rows, self.apart) for part in parts]
        return _choices(self.fleet, self.request, parts, able, rows)

    def _connected(self) -> tuple[Grant, ...]:
        """Return the best GPUs that have the other parts beside them, and those; nothing where that is not found."""
        own = next((part for part in self.parts if part.type == GPU), None)
        if own is None:
            return ()
        others = tuple(part for part in self.parts if part is not own)
        for masks, most in self._choices(others):
            companions = Companions(
                counts=tuple(part.count for part in others), under=self._common(others, masks), max_switches=most
            )
            slots = gpu.slots(self.fleet, self.row, self.request, own, self.policy, companions=companions)
            if slots:
                cards = self.fleet.cards[GPU]
                switches = cards.pcie[self.row, slots]
                given = grants.of_slots(cards, self.row, own, slots)
                return (*given, *self._grants(others, masks, set(switches.tolist())))
        return ()

    def _common(self, parts: Parts, masks: Masks) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the switches with cards for each of the parts, and how many; no more than are wanted."""
        under = [self._under(part, mask) for part, mask in zip(parts, masks, strict=True)]
        common = [switch for switch in under[0] if all(switch in other for other in under)]
        counts = [part.count for part in parts]
        return tuple(
            (at, tuple(min(each[at], count) for each, count in zip(under, counts, strict=True))) for at in common
        )

    def _under(self, part: Part, mask: Mask) -> Counter[int]:
        """Return how many of these cards are under each switch that is known."""
        own = self.fleet.cards[part.type].pcie[self.row][mask[0]]
        return Counter(own[own != UNKNOWN_SWITCH].tolist())

    def _fewest(self, masks: Masks) -> list[int] | None:
        """Return the fewest switches that have enough of these cards; among as many, those with the cheapest cards."""
        under = self._under(self.parts[0], masks[0])
        own, cheapest = self.fleet.cards[self.parts[0].type].pcie[self.row], dict[int, int]()
        for slot, cost in self._ranked(self.parts[0], np.flatnonzero(masks[0][0])):
            cheapest.setdefault(int(own[slot]), cost)
        # If the cost is equal, prefer the switch with the fewest cards.
        common = sorted(self._common(self.parts, masks), key=lambda each: (cheapest[each[0]], under[each[0]]))
        chosen = switches.fewest([numbers for _, numbers in common], tuple(part.count for part in self.parts))
        return None if chosen is None else [common[place][0] for place in chosen]

    def _ranked(self, part: Part, slots: Indices) -> list[tuple[int, int]]:
        """Return these slots with what their cards cost, by the policy's strategy, the cheapest first."""
        cards = self.fleet.cards[part.type]
        if part.type == GPU:
            cost = gpu.costs(self.fleet, self.row, part, self.policy, slots)
        else:
            cost = best_fit.cost(cards, self.row, slots, spread=self.policy.spreads_cards)
        order = np.lexsort((cards.minor[self.row, slots], cost))  # the last key sorts first
        return list(zip(slots[order].tolist(), cost[order].tolist(), strict=True))

    def _grants(self, parts: Parts, masks: Masks, chosen: Collection[int]) -> tuple[Grant, ...]:
        """Return these cards under the chosen switches, one under each before a second under any."""
        given = (self._of_part(part, mask[0], chosen) for part, mask in zip(parts, masks, strict=True))
        return tuple(chain.from_iterable(given))

    def _of_part(self, part: Part, mask: Mask, chosen: Collection[int]) -> tuple[Grant, ...]:
        cards = self.fleet.cards[part.type]
        own = cards.pcie[self.row]
        slots = np.flatnonzero(mask & np.isin(own, tuple(chosen)))
        if part.type != GPU:
            return simple.take(self.fleet, self.row, part, self.policy, slots, near=chosen, up_to=len(chosen))
        ranked = [slot for slot, _ in self._ranked(part, slots)]
        return grants.of_slots(cards, self.row, part, simple.in_turns(ranked, own, chosen)[: part.count])
