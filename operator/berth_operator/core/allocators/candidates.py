"""Which cards can serve a part of a request: array expressions over all cards of the fleet."""

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np

from berth_api.allocation import EXCLUSIVES, PCIE_LEVEL, REPLICAS
from berth_api.names import GPU, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import AMOUNTS, CARD, INSTANCE, ONLY, PLUGIN_UNIT, Part
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, only, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Cards, Column, Indices, Mask
from berth_operator.core.values.request import PodRequest

_CAP: Final = 2**56


def fitting(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> Mask:
    """Return the cards that can serve the part now, without the constraints between several cards."""
    cards = fleet.cards[part.type]
    mask = _free(fleet, request, part, rows, cards.announced if by_kubelet(part) else cards.healthy)
    if part.exclusive:
        mask &= ~blocked_by_policy(cards, part, rows)
    return mask


def free(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> Mask:
    """Return the healthy accepted cards with enough left; for a whole card, no pod may use the card."""
    return _free(fleet, request, part, rows, fleet.cards[part.type].healthy)


def _free(fleet: Fleet, request: PodRequest, part: Part, rows: Rows, usable: Mask) -> Mask:
    cards = fleet.cards[part.type]
    mask = pick(usable, rows) & accepted(fleet, request, part, rows)
    if part.min_memory:
        mask &= large(fleet, part, rows)
    if part.unit == PLUGIN_UNIT:
        mask &= undivided(cards, part, rows)
    if part.whole:
        mask &= pick(cards.users, rows) == 0
    elif len(cards.index) > len(cards.counted):
        mask &= ~cards.in_subdevices(rows)
    for index, amount in needs(cards, part, rows):
        mask &= cards.left(index, rows) >= amount
    return mask


def by_kubelet(part: Part) -> bool:
    """Return whether kubelet allocates what the part requests, from the devices that the agent announces."""
    return part.type == GPU and part.unit != AMOUNTS


def undivided(cards: Cards, part: Part, rows: Rows) -> Mask | bool:
    """Return which cards may serve a `nvidia.com/gpu` of the part as whole cards: cards that are not sliced."""
    if part.subdevices == ONLY or part.kind:
        return False
    if REPLICAS not in cards.index:
        return True
    mask: Mask = pick(cards.total[cards.index[REPLICAS]], rows) == 0
    return mask


def slices_lost(cards: Cards, part: Part, rows: Rows) -> Mask | None:
    """Return the idle cards whose slices become unavailable if the part takes the card; None if no card has slices."""
    if part.type != GPU or part.unit != AMOUNTS or REPLICAS not in cards.index:
        return None
    sliced: Mask = (cards.total[cards.index[REPLICAS], rows] > 0) & (cards.users[rows] == 0)
    return sliced


def blocked_by_policy(cards: Cards, part: Part, rows: Rows) -> Mask:
    """Return the cards that are blocked for the part by other pods' exclusive policies.

    No two pods with an exclusive policy share a card, and no two with PCIeLevel share a PCIe switch. A card whose
    switch is not known may be on any switch.
    """
    taken = _held(cards, rows, *EXCLUSIVES)
    if part.exclusive != PCIE_LEVEL:
        return taken
    holders, switch = _held(cards, rows, PCIE_LEVEL), cards.pcie[rows]
    for slot in np.flatnonzero(holders.any(axis=0)):
        own = switch[:, [slot]]
        taken |= holders[:, [slot]] & ((switch == own) | (switch == 0) | (own == 0))
    return taken


def _held(cards: Cards, rows: Rows, *policies: str) -> Mask:
    """Return the cards that pods with one of these exclusive policies use."""
    held = np.zeros_like(cards.present[rows])
    for name in policies:
        if name in cards.index:
            held |= cards.used[cards.index[name], rows] > 0
    return held


def slots(fleet: Fleet, row: int, request: PodRequest, part: Part) -> Indices:
    """Return the slots of a row whose cards can serve the part."""
    [mask] = fitting(fleet, request, part, only(row))
    return np.flatnonzero(mask)


def slots_to_try(fleet: Fleet, row: int, request: PodRequest, part: Part) -> Iterator[Indices]:
    """Yield the slots to choose from: first slots with enough measured free memory, if enough others can be left out.

    The filter `measured-memory` ensures that the first slots suffice, unless it is switched off.
    """
    fitting = slots(fleet, row, request, part)
    if without := overused(fleet, row, request, part):
        others = fitting[~np.isin(fitting, without)]
        if len(others) >= part.count:
            yield others
    yield fitting


def overused(fleet: Fleet, row: int, request: PodRequest, part: Part) -> tuple[int, ...]:
    """Return the slots of a row whose measured free memory is too little, for a pod that requests by Genius' labels."""
    if not request.devices.labelled:
        return ()
    lacking: list[int] = np.flatnonzero(~measured_free(fleet, part, only(row))[0]).tolist()
    return tuple(lacking)


def measured_free(fleet: Fleet, part: Part, rows: Rows) -> Mask:
    """Return the cards with enough free memory: their memory, less the charges and the measured excess use."""
    cards = fleet.cards[part.type]
    free = cards.left(cards.index[GPU_MEMORY], rows) - pick(cards.unaccounted, rows)
    enough: Mask = free >= dict(part.amounts).get(GPU_MEMORY, 0)
    return enough


def suitable_measured(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the cards that could serve the part if no pod used them, but all else that was measured stayed."""
    cards = fleet.cards[part.type]
    free = cards.total[cards.index[GPU_MEMORY]] - cards.unaccounted
    mask: Mask = suitable(fleet, request, part) & (free >= dict(part.amounts).get(GPU_MEMORY, 0))
    return mask


def suitable(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the cards that could serve the part if no pod used them."""
    cards = fleet.cards[part.type]
    mask: Mask = cards.healthy & accepted(fleet, request, part) & large_enough(fleet, part)
    return mask & undivided(cards, part, ALL) if part.unit == PLUGIN_UNIT else mask


def large_enough(fleet: Fleet, part: Part) -> Mask:
    """Return the cards that are large enough for the part, whatever pods use of them."""
    cards = fleet.cards[part.type]
    mask = large(fleet, part, ALL)
    for index, amount in needs(cards, part, ALL):
        mask &= cards.total[index] >= amount
    return mask


def large(fleet: Fleet, part: Part, rows: Rows) -> Mask:
    """Return the cards of which the pod gets at least the memory that the part requires."""
    if not part.min_memory:
        return np.ones_like(fleet.cards[part.type].healthy[rows])
    large: Mask = unit_memory(fleet, part, rows) >= part.min_memory
    return large


def unit_memory(fleet: Fleet, part: Part, rows: Rows) -> Column:
    """Return the bytes of memory that the pod would get of each GPU: of the card, share, replica or instance."""
    cards, amounts = fleet.cards[part.type], dict(part.amounts)
    total = pick(cards.total[cards.index[GPU_MEMORY]], rows)
    if part.unit == AMOUNTS:
        if GPU_MEMORY in amounts:
            return np.full_like(total, min(amounts[GPU_MEMORY], _CAP))
        return total * min(amounts.get(GPU_MEMORY_RATIO, CARD), CARD) // CARD
    if part.unit == INSTANCE:
        return _of_instances(fleet, [name for name, _ in part.amounts], rows)
    replicas = pick(cards.total[cards.index[REPLICAS]], rows) if REPLICAS in cards.index else 0
    memory: Column = total // np.maximum(replicas, 1)
    if part.unit == PLUGIN_UNIT and cards.instances:
        memory = np.where(pick(cards.instance_memory, rows) > 0, _of_instances(fleet, (), rows), memory)
    return memory


def _of_instances(fleet: Fleet, names: Collection[str], rows: Rows) -> Column:
    """Return the bytes of each card's smallest instance, of all or of these resources; 0 if none."""
    table = [
        min((memory for name, memory in instances if not names or name in names), default=0)
        for instances in fleet.intern_table.instance_memory
    ]
    memory: Column = np.array(table, np.int64)[pick(fleet.cards[GPU].instance_memory, rows)]
    return memory


def accepted(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> Mask:
    """Return the cards whose model and labels the pod accepts."""
    mask = of_model(fleet, request, part, rows)
    if part.selector.requirements:
        mask = mask & fleet.intern_table.selected(part.of_labels)[fleet.cards[part.type].labels[rows]]
    for requirement in part.of_cards:
        mask = mask & fleet.cards[part.type].meeting(requirement, rows)
    return mask


def of_model(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> Mask:
    """Return the cards whose model the pod accepts."""
    cards = fleet.cards[part.type]
    present = pick(cards.present, rows)
    if part.type != GPU or not request.model:
        return present
    models = fleet.accepted_models(request.model)
    chosen: Mask = present & models[pick(cards.model, rows)] if models.size else np.zeros_like(present)
    return chosen


def needs(cards: Cards, part: Part, rows: Rows) -> Iterator[tuple[int, int | Column]]:
    """Yield (index of a resource, amount that a card must have free).

    If the pod requests only one of memory and memory ratio, the other is charged too and must fit; its amount depends
    on the card's memory.
    """
    amounts = dict(part.amounts)
    for name, amount in amounts.items():
        if name in cards.index:
            yield cards.index[name], amount
    if cards.device_type != GPU:
        return
    if GPU_MEMORY_RATIO in amounts:
        memory = pick(cards.total[cards.index[GPU_MEMORY]], rows)
        yield cards.index[GPU_MEMORY], amounts[GPU_MEMORY_RATIO] * memory // CARD
    elif GPU_MEMORY in amounts:
        memory = pick(cards.total[cards.index[GPU_MEMORY]], rows)
        # The cap prevents an overflow. It exceeds any card's memory, so such amounts are rejected by memory anyway.
        yield cards.index[GPU_MEMORY_RATIO], min(amounts[GPU_MEMORY], _CAP) * CARD // np.maximum(memory, 1)
