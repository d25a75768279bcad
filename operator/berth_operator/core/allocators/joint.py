"""Joint allocation: GPUs together with NICs or FPGAs under the same PCIe switches.

`SamePCIe` requires a set of switches that holds all allocated cards. Each switch of the set must have an allocated card
of every type. The first type gets exactly the requested number of cards. So do GPUs, even if they are not the first
type. Every other type gets at least one card under each switch, even if this is more than requested. So a set of
switches is feasible under three conditions:

* It has at most as many switches as the pod gets cards of each type with an exact number.
* Each switch serves all types.
* The switches together have enough cards of each type.

If another device plugin gives the NICs (`Joint.exact`), every type gets exactly the requested number.

Without `SamePCIe`, a feasible set is preferred. If there is none, cards near the cards of the first type are preferred.
"""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

import numpy as np

from berth_api.allocation import Grant
from berth_api.names import GPU
from berth_api.request import AMOUNTS, PLUGIN_UNIT, Part
from berth_operator.core.allocators import best_fit, candidates, gpu, grants, regions, simple, switches
from berth_operator.core.allocators.regions import ANY_NUMBER
from berth_operator.core.allocators.switches import UNKNOWN_SWITCH
from berth_operator.core.allocators.topology import Companions
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Indices, Mask
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest

Parts = tuple[Part, ...]
Alone = Callable[[Part, Collection[int]], tuple[Grant, ...]]
Masks = Sequence[Mask]
"""For each part, the cards that can serve it: shape (rows, slots)."""
Types = Container[str]
"""Device types that are not allocated jointly, because a plug-in's allocator chooses their devices."""
MAX_CHOICES: Final = 512
"""Maximum number of combinations of groups; of more, the first are compared."""


def parts_of(request: PodRequest) -> Parts:
    """Return the parts of the joint allocation, the primary one first; empty for most pods."""
    joint = request.devices.joint
    types = () if joint is None else joint.types
    return tuple(part for device_type in types for part in request.devices.parts if part.type == device_type)


def bound(request: PodRequest) -> Parts:
    """Return the parts that must be under the same PCIe switches (`SamePCIe`); empty for most pods."""
    return parts_of(request) if request.devices.joint is not None and request.devices.joint.same_pcie else ()


def preferring(request: PodRequest) -> Parts:
    """Return the parts for which nodes with PCIe switches that serve all of them are preferred, and not required."""
    return () if bound(request) else parts_of(request)


def passes(fleet: Fleet, request: PodRequest, parts: Parts, rows: Rows, *, plugin_types: Types) -> Mask:
    """Return which of the rows have PCIe switches that can serve all parts now."""
    return _feasible(
        fleet, request, parts, [_can_serve(fleet, request, part, rows, plugin_types) for part in parts], rows
    )


def could_pass(fleet: Fleet, request: PodRequest, parts: Parts, *, plugin_types: Types) -> Mask:
    """Return the rows with PCIe switches that could serve all parts if all cards were free."""
    masks = []
    for part in parts:
        serve = candidates.suitable if part.type == GPU else simple.ever_able
        masks.append(serve(fleet, request, part) & _are_cards(fleet, part, ALL, plugin_types)[:, np.newaxis])
    return _feasible(fleet, request, parts, masks, ALL)


def reason(parts: Parts) -> str:
    """Return the reason for rows that have enough for each part alone, but not under the same switches."""
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
    plugin_types: Types,
) -> tuple[Grant, ...]:
    """Return the grants for all parts: under the same switches, or, if that is not required, near the first part's.

    `alone(part, near)` allocates one part, preferring the switches in `near`.
    """
    joint_request = _JointRequest(
        fleet=fleet, row=row, request=request, parts=parts, policy=policy, plugin_types=plugin_types
    )
    chosen = joint_request.under_switches()
    return joint_request.nearby(alone) if chosen is None else chosen


def _can_serve(fleet: Fleet, request: PodRequest, part: Part, rows: Rows, plugin_types: Types) -> Mask:
    serve = candidates.fitting if part.type == GPU else simple.able
    return serve(fleet, request, part, rows) & _are_cards(fleet, part, rows, plugin_types)[:, np.newaxis]


def _are_cards(fleet: Fleet, part: Part, rows: Rows, plugin_types: Types) -> Mask:
    """Return the rows where the part is allocated as cards by this module: not subdevices, and no plug-in's devices."""
    cards = np.ones_like(fleet.present[rows])
    return cards & (part.unit in (AMOUNTS, PLUGIN_UNIT) and part.type not in plugin_types)


# --- whether a row has such switches ------------------------------------------------------------------------------


def _feasible(fleet: Fleet, request: PodRequest, parts: Parts, masks: Masks, rows: Rows) -> Mask:
    feasible = np.zeros(len(masks[0]), np.bool_)
    counts = tuple(part.count for part in parts)
    for narrowed, max_switches in _choices(fleet, request, parts, masks, rows):
        # Counting is cheap, and already rejects most rows.
        enough = [np.count_nonzero(mask, axis=1) >= count for mask, count in zip(narrowed, counts, strict=True)]
        candidate_rows = np.flatnonzero(np.logical_and.reduce(enough))
        under = [
            (fleet.cards[part.type].pcie[rows] * mask)[candidate_rows]
            for part, mask in zip(parts, narrowed, strict=True)
        ]
        feasible[candidate_rows] |= switches.exist(counts, under, max_switches)
    return feasible


def _choices(fleet: Fleet, request: PodRequest, parts: Parts, masks: Masks, rows: Rows) -> Iterator[tuple[Masks, int]]:
    """Yield, for each combination of groups: for each part its cards, and the maximum number of switches.

    Any cards of a group can be combined.
    """
    first = parts_of(request)[0]
    fixed = [part == first or part.type == GPU or _is_exact(request) for part in parts]
    groups = (
        regions.of_part(fleet, request, part, mask, rows, more=not counted)
        for part, mask, counted in zip(parts, masks, fixed, strict=True)
    )
    max_switches = min((part.count for part, counted in zip(parts, fixed, strict=True) if counted), default=ANY_NUMBER)
    for chosen in islice(product(*groups), MAX_CHOICES):
        yield [mask for mask, _ in chosen], min(max_switches, *(limit for _, limit in chosen))


def _is_exact(request: PodRequest) -> bool:
    return request.devices.joint is not None and request.devices.joint.exact


# --- which cards --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _JointRequest:
    """The joint parts of a request, to be allocated on one row."""

    fleet: Fleet
    row: int
    request: PodRequest
    parts: Parts
    policy: AllocationPolicy
    plugin_types: Types

    def under_switches(self) -> tuple[Grant, ...] | None:
        """Return grants under switches that can serve all parts; None if there are no such switches.

        The GPUs are the best set that has the other parts' cards under its switches. Without GPUs, or if the sets are
        too many to compare, the smallest feasible set of switches is taken.
        """
        best: tuple[Masks, list[int]] | None = None
        for masks, max_switches in self._choices(self.parts):
            chosen = self._fewest(masks)
            if chosen is not None and len(chosen) <= (
                max_switches if best is None else min(max_switches, len(best[1]) - 1)
            ):
                best = masks, chosen
        if best is None:
            return None
        return self._connected() or self._grants(self.parts, *best)

    def nearby(self, alone: Alone) -> tuple[Grant, ...]:
        """Return grants for the first part, and for the other parts near its cards where possible."""
        chosen = alone(self.parts[0], ())
        cards = self.fleet.cards[self.parts[0].type]
        held = np.isin(cards.minor[self.row], [grant.minor for grant in chosen])
        near = set(cards.pcie[self.row, held].tolist()) - {UNKNOWN_SWITCH}
        for part in self.parts[1:]:
            if part.type == GPU or part.type in self.plugin_types:
                chosen += alone(part, near)
                continue
            [mask] = simple.able(self.fleet, self.request, part, np.array([self.row]))
            slots = np.flatnonzero(mask)
            chosen += self._near(part, slots, near)
        return chosen

    def _choices(self, parts: Parts) -> Iterator[tuple[Masks, int]]:
        rows = np.array([self.row])
        able = [_can_serve(self.fleet, self.request, part, rows, self.plugin_types) for part in parts]
        return _choices(self.fleet, self.request, parts, able, rows)

    def _connected(self) -> tuple[Grant, ...]:
        """Return grants of the best GPUs that have the other parts under their switches, and of the other parts.

        The result is empty if no such set was found.
        """
        own = next((part for part in self.parts if part.type == GPU), None)
        if own is None:
            return ()
        others = tuple(part for part in self.parts if part is not own)
        for masks, max_switches in self._choices(others):
            companions = Companions(
                counts=tuple(part.count for part in others),
                under=self._common(others, masks),
                max_switches=max_switches,
            )
            card_loads = self.policy.loads(self.fleet, self.row, own)
            slots = gpu.slots(
                self.fleet, self.row, self.request, own, self.policy, companions=companions, card_loads=card_loads
            )
            if slots:
                cards = self.fleet.cards[GPU]
                switches = cards.pcie[self.row, slots]
                gpu_grants = grants.of_slots(cards, self.row, own, slots)
                return (*gpu_grants, *self._grants(others, masks, set(switches.tolist())))
        return ()

    def _common(self, parts: Parts, masks: Masks) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return (switch, number of cards for each part) of switches with cards for all parts.

        A number is at most what its part requests.
        """
        under = [self._under(part, mask) for part, mask in zip(parts, masks, strict=True)]
        common = [switch for switch in under[0] if all(switch in other for other in under)]
        counts = [part.count for part in parts]
        return tuple(
            (switch, tuple(min(numbers[switch], count) for numbers, count in zip(under, counts, strict=True)))
            for switch in common
        )

    def _under(self, part: Part, mask: Mask) -> Counter[int]:
        """Return the number of these cards under each known switch."""
        own = self.fleet.cards[part.type].pcie[self.row][mask[0]]
        return Counter(own[own != UNKNOWN_SWITCH].tolist())

    def _fewest(self, masks: Masks) -> list[int] | None:
        """Return the smallest set of switches with enough of these cards; ties go to the cheapest cards."""
        under = self._under(self.parts[0], masks[0])
        own, cheapest = self.fleet.cards[self.parts[0].type].pcie[self.row], dict[int, int]()
        for slot, cost in self._ranked(self.parts[0], np.flatnonzero(masks[0][0])):
            cheapest.setdefault(int(own[slot]), cost)
        # If the cost is equal, prefer the switch with the fewest cards.
        common = sorted(self._common(self.parts, masks), key=lambda switch: (cheapest[switch[0]], under[switch[0]]))
        chosen = switches.fewest([numbers for _, numbers in common], tuple(part.count for part in self.parts))
        return None if chosen is None else [common[place][0] for place in chosen]

    def _ranked(self, part: Part, slots: Indices) -> list[tuple[int, int]]:
        """Return (slot, cost by the policy's strategy), the cheapest first."""
        cards = self.fleet.cards[part.type]
        if part.type == GPU:
            cost = gpu.costs(self.fleet, self.row, part, self.policy, slots)
        else:
            cost = best_fit.cost(cards, self.row, slots, spread=self.policy.spreads_cards)
        order = np.lexsort((cards.minor[self.row, slots], cost))  # the last key sorts first
        return list(zip(slots[order].tolist(), cost[order].tolist(), strict=True))

    def _grants(self, parts: Parts, masks: Masks, chosen: Collection[int]) -> tuple[Grant, ...]:
        """Return grants of these cards under the chosen switches, one per switch before a second one."""
        chosen_grants: list[Grant] = []
        for part, mask in zip(parts, masks, strict=True):
            cards = self.fleet.cards[part.type]
            own = cards.pcie[self.row]
            slots = np.flatnonzero(mask[0] & np.isin(own, tuple(chosen)))
            if part.type == GPU:
                turns = simple.in_turns([slot for slot, _ in self._ranked(part, slots)], own, chosen)
                chosen_grants += grants.of_slots(cards, self.row, part, turns[: part.count])
            else:
                chosen_grants += self._near(part, slots, chosen)
        return tuple(chosen_grants)

    def _near(self, part: Part, slots: Indices, near: Collection[int]) -> tuple[Grant, ...]:
        """Return grants of these cards, under these switches first: one for each switch if that is more."""
        up_to = 0 if _is_exact(self.request) else len(near)
        return simple.take(self.fleet, self.row, part, self.policy, slots, near=near, up_to=up_to)
