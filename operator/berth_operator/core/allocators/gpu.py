"""The allocator of GPUs by amounts: whole cards, a share of one card, or shares of several cards.

`locality` determines which cards can be combined. `partitions` determines which sets an NVSwitch allows, and `topology`
which set is the best. The policy's strategy (`least_waste`, `best_fit`) determines the cost of each card.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from berth_api.allocation import Grant
from berth_api.names import GPU
from berth_api.request import Part
from berth_operator.core.allocators import (
    best_fit,
    candidates,
    grants,
    least_waste,
    locality,
    partitions,
    shortage,
    topology,
)
from berth_operator.core.allocators.topology import Companions
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, only
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest

SLICED_COST: Final = 10_000
"""The cost of allocating a sliced card whole or by shares; more than the cost of any card in any strategy."""


def passes(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the rows with enough cards that can serve the part and that meet its locality."""
    return _enough(fleet, request, part, candidates.fitting(fleet, request, part, rows), rows)


def passes_measured(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the rows that pass with the cards alone whose measured free memory is enough as well."""
    fits = candidates.fitting(fleet, request, part, rows) & candidates.measured_free(fleet, part, rows)
    return _enough(fleet, request, part, fits, rows)


def could_pass_measured(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the rows that would do so if no pod used the cards."""
    return _enough(fleet, request, part, candidates.suitable_measured(fleet, request, part), ALL)


def could_pass(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the rows that would have enough such cards if all cards were free."""
    return _enough(fleet, request, part, candidates.suitable(fleet, request, part), ALL)


def _enough(fleet: Fleet, request: PodRequest, part: Part, fits: Mask, rows: Rows) -> Mask:
    """Return the rows where enough of the fitting cards meet the part's locality and partitions."""
    mask = ~shortage.too_few(fits, part)
    if within := locality.required(fleet, request, part, rows):
        mask &= locality.max_colocated(fleet, GPU, within, fits, rows) >= part.count
    if part.whole and (partitions_only := partitions.bound(fleet, request, part, rows)).any():
        mask &= ~partitions_only | partitions.feasible(fleet, request, part, fits, rows)
    return mask


def reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons, each with the rows it is true for."""
    yield from shortage.of_cards(fleet, request, part, rejected)
    fits = candidates.fitting(fleet, request, part)
    if within := locality.required(fleet, request, part, np.flatnonzero(rejected)):
        suitable = candidates.suitable(fleet, request, part)
        yield locality.shortage(fleet, part, within, suitable, rejected, state="healthy")
        yield locality.shortage(fleet, part, within, fits, rejected, state="free")
    yield from partitions.reasons(fleet, request, part, fits)


def choose(
    fleet: Fleet, row: int, request: PodRequest, part: Part, policy: AllocationPolicy, *, near: Collection[int] = ()
) -> tuple[Grant, ...]:
    """Return the grants of the best cards of the row."""
    common = fleet.pod_mix.typical.common
    card_loads, overused = policy.loads(fleet, row, part), candidates.overused(fleet, row, request, part)
    key = (GPU, request.devices, request.model, part, tuple(near), policy.card_strategy, common, card_loads, overused)
    place = fleet.names[row] if part.names_cards else ""

    def best() -> Sequence[int]:
        alike = part.count == 1 or not fleet.cards[GPU].mixed[row]
        if alike and not fleet.partitions[row] and not topology.has_topology(fleet, GPU, row):
            fitting = next(candidates.slots_to_try(fleet, row, request, part))
            cost = costs(fleet, row, part, policy, fitting)
            return grants.cheapest(fleet.cards[GPU], row, part, fitting, cost, near=near, loads=card_loads)
        if chosen := slots(fleet, row, request, part, policy, near=near, card_loads=card_loads):
            return chosen
        raise LookupError(f"node {fleet.names[row]} cannot allocate {part}: it does not pass the filter")

    return grants.of_slots(fleet.cards[GPU], row, part, fleet.column_cache.of_row(row, (key, place), best))


def slots(
    fleet: Fleet,
    row: int,
    request: PodRequest,
    part: Part,
    policy: AllocationPolicy,
    *,
    near: Collection[int] = (),
    companions: Companions | None = None,
    card_loads: Sequence[int] = (),
) -> Sequence[int]:
    """Return the slots of the best set of cards that has the required companions; empty if there is none."""
    for fitting in candidates.slots_to_try(fleet, row, request, part):
        cost = costs(fleet, row, part, policy, fitting)
        candidate_set = topology.candidates_of(
            fleet, row, part, fitting, costs=cost, near=near, spread=policy.spreads_cards, loads=card_loads
        )
        for within in locality.preferred(fleet, request, part, only(row)):
            constrained = replace(candidate_set, within=within, companions=companions)
            # The best partition, or the best set if none is required.
            chosen: Sequence[int] = ()
            may_be_bound = part.whole and (fleet.partitions[row] or request.devices.partition is not None)
            if may_be_bound:
                chosen = partitions.choose(fleet, row, request, part, constrained)
            if not chosen and not (may_be_bound and partitions.bound(fleet, request, part, np.array([row]))[0]):
                chosen = topology.best(constrained)
            if chosen:
                return chosen
    return ()


def sets(fleet: Fleet, row: int, request: PodRequest, part: Part, policy: AllocationPolicy) -> Sequence[int]:
    """Return the sets of cards of the row that a part may get, the best first, as bit masks of slots."""
    fitting = candidates.slots(fleet, row, request, part)
    cost = costs(fleet, row, part, policy, fitting)
    candidate_set = replace(
        topology.candidates_of(fleet, row, part, fitting, costs=cost, near=(), spread=policy.spreads_cards),
        within=locality.required(fleet, request, part, only(row)),
    )
    if part.whole and partitions.bound(fleet, request, part, np.array([row]))[0]:
        slot_of = {int(fleet.cards[GPU].minor[row, slot]): slot for slot in candidate_set.slots}
        free = partitions.free(fleet, row, request, part, candidate_set)
        return [sum(1 << slot_of[minor] for minor in partition.minors) for partition in free]
    return topology.ranked(candidate_set)


def costs(fleet: Fleet, row: int, part: Part, policy: AllocationPolicy, slots: Indices) -> Column:
    """Return the cost of each of these cards by the policy's strategy; sliced cards cost most."""
    if policy.card_strategy == "Fragmentation":
        cost = least_waste.cost(fleet, row, part, slots)
    else:
        cost = best_fit.cost(fleet.cards[GPU], row, slots, spread=policy.spreads_cards)
    lost = candidates.slices_lost(fleet.cards[GPU], part, only(row))
    return cost if lost is None else cost + SLICED_COST * lost[0, slots]
