"""The allocator of RDMA NICs and FPGAs: some or all of them, each with a virtual function if one is requested."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from berth_api.allocation import Grant
from berth_api.request import Part
from berth_operator.core.allocators import best_fit, candidates, functions, grants, locality, shortage
from berth_operator.core.allocators.locality import UNKNOWN_PLACE
from berth_operator.core.allocators.switches import Numbers
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest


def able(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> Mask:
    """Return the cards that can serve the part now."""
    return candidates.fitting(fleet, request, part, rows) & functions.free(fleet, part, rows)


def ever_able(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the cards that could serve the part if no pod used them."""
    return candidates.suitable(fleet, request, part) & functions.offered(fleet, part)


def passes(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the rows with enough cards that can serve the part and that meet its locality."""
    return _enough(fleet, request, part, able(fleet, request, part, rows), rows)


def could_pass(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the rows that would have enough such cards if all cards were free."""
    return _enough(fleet, request, part, ever_able(fleet, request, part), ALL)


def _enough(fleet: Fleet, request: PodRequest, part: Part, mask: Mask, rows: Rows) -> Mask:
    together = locality.max_colocated(fleet, part.type, locality.of(part, None), mask, rows)
    enough: Mask = together >= requested_count(fleet, request, part, rows)
    return enough


def requested_count(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> int | Column:
    """Return how many cards the part requests on each row; `every` means all healthy cards, even those in use."""
    if not part.every:
        return part.count
    picked = fleet.cards[part.type].healthy[rows] & candidates.accepted(fleet, request, part, rows)
    count: Column = np.maximum(picked.sum(axis=1), 1)
    return count


def reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons, each with the rows it is true for."""
    label, free = shortage.plural(part.type), able(fleet, request, part)
    yield from shortage.of_cards(fleet, request, part, rejected)
    if part.functions is not None:
        none = shortage.too_few(ever_able(fleet, request, part), part)
        yield f"node(s) have too few {label} with matching virtual functions ({part.count} requested)", none
        held = f"node(s) have too few {label} with free virtual functions ({part.count} requested)"
        yield held, shortage.too_few(free, part)
    if part.every:
        yield (
            f"node(s) have too little free on some {label} (every one requested)",
            free.sum(axis=1) < requested_count(fleet, request, part),
        )
    if within := locality.of(part, None):
        together = locality.max_colocated(fleet, part.type, within, free, ALL)
        too_few = together < requested_count(fleet, request, part)
        best = together[too_few & rejected].max(initial=0)
        if part.every:
            yield f"node(s) do not have all {label} {within} (at most {best})", too_few
        else:
            yield f"node(s) have too few free {label} {within} (at most {best} of {part.count})", too_few


def choose(
    fleet: Fleet, row: int, request: PodRequest, part: Part, policy: AllocationPolicy, *, near: Collection[int] = ()
) -> tuple[Grant, ...]:
    """Return the grants of the best cards by the policy's strategy."""
    [mask] = able(fleet, request, part, np.array([row]))
    return take(fleet, row, part, policy, np.flatnonzero(mask), near=near)


def take(
    fleet: Fleet,
    row: int,
    part: Part,
    policy: AllocationPolicy,
    slots: Indices,
    *,
    near: Collection[int] = (),
    up_to: int = 0,
) -> tuple[Grant, ...]:
    """Return the grants of the best of these cards: as many as requested, or up to `up_to` if there are more."""
    cards = fleet.cards[part.type]
    cost = best_fit.cost(cards, row, slots, spread=policy.spreads_cards)
    # The last key sorts first.
    ranked = slots[np.lexsort((cards.minor[row, slots], cost))].tolist()
    min_count = len(ranked) if part.every else part.count
    max_count = max(min_count, up_to)
    # The groups of cards that can be combined.
    within = locality.of(replace(part, count=max_count), None)
    groups: dict[tuple[int, ...], list[int]] = {}
    for slot in ranked:
        place = tuple(int(getattr(cards, name)[row, slot]) for name in within.places)
        is_known = place == () or place[0] != UNKNOWN_PLACE[within.places[0]]
        # A card whose place is not known is alone in its group, and so is every card if a single card is required.
        groups.setdefault(place if is_known and not within.alone else (-1, slot), []).append(slot)
    # Prefer the group with the most near cards, then the smallest group.
    near_of = {slot: int(cards.pcie[row, slot]) in near for slot in ranked}
    enough = [group for group in groups.values() if len(group) >= min_count]
    best = min(enough, key=lambda group: (-min(max_count, sum(map(near_of.__getitem__, group))), len(group)))
    chosen = []
    for slot in in_turns(best, cards.pcie[row], near)[:max_count]:
        grant = grants.of_card(cards, row, part, slot)
        free_functions = functions.lowest(fleet, row, slot, part)
        chosen.append(replace(grant, functions=free_functions) if free_functions else grant)
    return tuple(chosen)


def in_turns(slots: Sequence[int], switches: Numbers, near: Collection[int]) -> list[int]:
    """Return the slots in turns: the best of each near switch, then the second of each, and all others last."""
    turns: Counter[int] = Counter()
    keyed = []
    for rank, slot in enumerate(slots):
        switch = int(switches[slot])
        keyed.append((turns[switch] if switch in near else len(slots), rank, slot))
        turns[switch] += 1
    return [slot for _, _, slot in sorted(keyed)]
