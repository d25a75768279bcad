"""The allocator of GPUs by the device plugin's names `nvidia.com/gpu.shared` and `nvidia.com/gpu`.

A replica is one of the equal time slices of a card. A unit of `nvidia.com/gpu` (PLUGIN_UNIT) is a replica on a sliced
card, an instance if the MIG strategy is single, and otherwise a card; on nodes where all units are cards, gpu.py does
the work. Several units of one pod are on different cards if possible, as NVIDIA's plugin distributes them; the policy
determines whether pods are packed or spread.
"""

from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np

from berth_api.allocation import REPLICAS, Grant
from berth_api.names import GPU
from berth_api.request import NVIDIA_GPU, NVIDIA_SHARED, PLUGIN_UNIT, Part
from berth_operator.core.allocators import candidates, gpu, grants, subdevices
from berth_operator.core.fleet.cards import REPLICA_NAMES, Cards, Column, Mask
from berth_operator.core.fleet.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest


def passes(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the rows with enough free units or replicas."""
    if are_cards(fleet, part):
        return gpu.passes(fleet, request, part, rows)
    mask = subdevices.enough(fleet, request, [(part, free(fleet, request, part, rows))], rows)
    if part.unit != PLUGIN_UNIT:
        return mask
    return np.where(divided(fleet, rows), mask, gpu.passes(fleet, request, part, rows))


def could_pass(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the rows that would have enough units or replicas if all of them were free."""
    if are_cards(fleet, part):
        return gpu.could_pass(fleet, request, part)
    offered = _offered(fleet, part) * subdevices.serving(fleet, request, part, ALL)
    mask = subdevices.enough(fleet, request, [(part, offered)], ALL)
    return (
        mask if part.unit != PLUGIN_UNIT else np.where(divided(fleet, ALL), mask, gpu.could_pass(fleet, request, part))
    )


def reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons, each with the rows it is true for."""
    if part.unit == PLUGIN_UNIT:
        cards = ~divided(fleet, ALL)
        for reason, mask in gpu.reasons(fleet, request, part, rejected & cards):
            yield reason, mask & cards
        rejected = rejected & ~cards
    if rejected.any():
        yield from ((reason, mask & rejected) for reason, mask in _subdevice_reasons(fleet, request, part, rejected))


def _subdevice_reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    name, offered = _name(part), _offered(fleet, part)
    if part.unit != PLUGIN_UNIT:
        yield f"node(s) have no {name}", offered.sum(axis=1) == 0
    available = [(part, free(fleet, request, part, ALL))]
    yield from subdevices.reasons(fleet, request, available, offered, name, rejected=rejected)


def choose(
    fleet: Fleet, row: int, request: PodRequest, part: Part, policy: AllocationPolicy, *, near: Collection[int] = ()
) -> tuple[Grant, ...]:
    """Return the units or replicas, one per card before a second one of any card."""
    rows = np.array([row])
    if are_cards(fleet, part) or (part.unit == PLUGIN_UNIT and not divided(fleet, rows)[0]):
        return gpu.choose(fleet, row, request, part, policy, near=near)
    left = free(fleet, request, part, rows)
    order = subdevices.preferred(fleet, row, request, [(part, left)], policy, near=near)
    places = subdevices.in_turns(left[0, order], part.count)
    of_place = {place: _of_card(fleet, row, int(order[place]), part) for place in set(places)}
    chosen = [each for place in places for each in islice(of_place[place], 1)]
    return subdevices.complete(fleet, row, part, chosen)


def _of_card(fleet: Fleet, row: int, slot: int, part: Part) -> Iterator[Grant]:
    """Yield the free units or replicas of a card."""
    cards = fleet.cards[GPU]
    if _sliced(cards, np.array([row]))[0, slot]:
        return subdevices.replicas_of(fleet, row, slot, part)
    if cards.healthy[row, slot]:
        return iter((grants.of_card(cards, row, part, slot),))
    return subdevices.instances_of(fleet, row, slot, part, subdevices.instances(cards))


def are_cards(fleet: Fleet, part: Part) -> bool:
    """Return whether the part's units are whole cards on all nodes."""
    return part.unit == PLUGIN_UNIT and REPLICAS not in fleet.cards[GPU].index and not fleet.mig_single.any()


def divided(fleet: Fleet, rows: Rows) -> Mask:
    """Return the rows where some unit is not a whole card."""
    cards = fleet.cards[GPU]
    some: Mask = (_sliced(cards, rows) | (_as_slots(fleet, rows) > 0)).sum(axis=1) > 0
    return some


def free(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return how many free units or replicas each card has."""
    cards = fleet.cards[GPU]
    counts = np.zeros_like(cards.present[rows], np.int64)
    if REPLICAS in cards.index:
        counts += subdevices.free_replicas(cards, rows) * _called(cards, part, rows)
    if part.unit == PLUGIN_UNIT:
        counts += (
            subdevices.free_instances(cards, subdevices.instances(cards), rows) * fleet.mig_single[rows][:, np.newaxis]
        )
        counts += candidates.fitting(fleet, request, part, rows) & ~_sliced(cards, rows)
    return counts * subdevices.open_to(fleet, request, part, rows)


def _offered(fleet: Fleet, part: Part) -> Column:
    """Return how many units or replicas each card has, free or not, for any part."""
    cards = fleet.cards[GPU]
    counts = subdevices.offered(cards, [REPLICAS], ALL) * _called(cards, part, ALL)
    if part.unit == PLUGIN_UNIT:
        counts += _as_slots(fleet, ALL)
        counts += cards.healthy & ~_sliced(cards, ALL)
    return counts


def _name(part: Part) -> str:
    return NVIDIA_GPU if part.unit == PLUGIN_UNIT else NVIDIA_SHARED


def _called(cards: Cards, part: Part, rows: Rows) -> Mask:
    """Return the cards whose replicas kubelet counts by the part's resource name, or by a name that is not known."""
    resource_index = cards.replicas_as[rows]
    called: Mask = (resource_index == 0) | (resource_index == REPLICA_NAMES.index(_name(part)))
    return called


def _sliced(cards: Cards, rows: Rows) -> Mask:
    sliced: Mask = subdevices.offered(cards, [REPLICAS], rows) > 0
    return sliced


def _as_slots(fleet: Fleet, rows: Rows) -> Column:
    """Return how many instances of each card are units, which they are if the MIG strategy is single."""
    cards = fleet.cards[GPU]
    counts: Column = (
        subdevices.offered(cards, subdevices.instances(cards), rows) * fleet.mig_single[rows][:, np.newaxis]
    )
    return counts
