"""Subdevices of cards (MIG instances or time-sliced replicas): how many each card has free, and which.

`Cards.users` counts the grants of a card. `Cards.used` counts its subdevices that are held. If the two are equal, all
grants are of subdevices, and the card can give more of them. If they differ, a pod uses the card in another way.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from berth_api.allocation import REPLICA_MARK, REPLICAS, Grant, message_text, mig
from berth_api.names import GPU, GPU_MEMORY
from berth_api.request import CARD, INSTANCE, PLUGIN_UNIT, Part
from berth_operator.core.allocators import candidates, locality, shortage
from berth_operator.core.allocators.locality import Locality
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import SHARED, Cards, Column, Indices, Mask
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest

UNLOCATED: Final = "node(s) withhold MIG devices (pods hold MIG devices that the Device no longer lists)"
Numbers = npt.NDArray[np.integer[Any]] | int
"""A column of cards, or the number of one card."""
Available = Sequence[tuple[Part, Column]]
"""For each part, the number of subdevices that each card has for it: shape (rows, slots)."""


# --- how many ---------------------------------------------------------------------------------------------------


def instances(cards: Cards) -> list[str]:
    """Return the resource names of all MIG profiles that were ever seen."""
    return [name for name in cards.index if mig.is_resource(name)]


def offered(cards: Cards, names: Iterable[str], rows: Rows) -> Column:
    """Return how many subdevices of these resources each card has."""
    return _summed(cards, cards.total, names, rows)


def held(cards: Cards, names: Iterable[str], rows: Rows) -> Column:
    """Return how many subdevices of these resources pods hold of each card."""
    return _summed(cards, cards.used, names, rows)


def _summed(cards: Cards, column: Column, names: Iterable[str], rows: Rows) -> Column:
    totals: Column = np.zeros_like(cards.present[rows], np.int64)
    for name in names:
        if name in cards.index:
            totals += column[cards.index[name], rows]
    return totals


def free_instances(cards: Cards, names: Iterable[str], rows: Rows) -> Column:
    """Return how many free instances of these profiles each card has."""
    left = np.zeros_like(cards.present[rows], np.int64)
    for name in names:
        left += np.maximum(offered(cards, [name], rows) - held(cards, [name], rows), 0)
    alone = cards.users[rows] == held(cards, instances(cards), rows)
    return np.where(alone & (cards.unlocated[rows] == 0)[:, np.newaxis], left, 0)


def one_of_each(
    fleet: Fleet,
    names: Collection[str],
    left: Column,
    rows: Rows,
    *,
    several: bool,
    taken: bool = True,
    of_gang: bool = True,
) -> Column:
    """Return the numbers of these profiles' instances on each card, counting a time-sliced instance once.

    Where kubelet chooses the slices, it may choose several of one instance. So the cards give none to a pod with
    `several`, and none if the gang that is decided has a slice of the node.

    `taken`: whether slices that pods hold count as taken. `of_gang`: whether instances count as taken of which members
    of the gang that is decided hold slices.
    """
    cards = fleet.cards[GPU]
    if not cards.sliced_instances.any():
        return left
    numbers, row_numbers = left.copy(), np.arange(len(cards.present))[rows]
    for place in np.flatnonzero(cards.sliced_instances[rows].any(axis=1)).tolist():
        row = int(row_numbers[place])
        held = frozenset(cards.taken.get(row, ()) if taken else ())
        gang_has = cards.instances_of_gang.get(row, ()) if of_gang else ()
        for slot in np.flatnonzero(cards.sliced_instances[row]).tolist():
            wanted = _of_profiles(cards, row, slot, names)
            if not any(REPLICA_MARK in uuid for uuid in wanted):
                continue
            free = {_whole_instance(uuid) for uuid in wanted if uuid not in held}
            gives_none = fleet.kubelet_chooses[row] and (several or gang_has)
            numbers[place, slot] = min(numbers[place, slot], 0 if gives_none else len(free.difference(gang_has)))
    return numbers


def one_where_kubelet_chooses(
    fleet: Fleet, names: Collection[str], replicas: Mask, units: Column, rows: Rows
) -> Column:
    """Return the units with one slice of a node where kubelet chooses the slices, since it may choose two of one card.

    `names`: the profiles of the instances that are units. `replicas`: the cards with time-sliced replicas.
    """
    cards, sliced = fleet.cards[GPU], replicas.copy()
    row_numbers = np.arange(len(cards.present))[rows]
    for place, slot in np.argwhere(cards.sliced_instances[rows]).tolist():
        uuids = _of_profiles(cards, int(row_numbers[place]), slot, names)
        sliced[place, slot] |= any(REPLICA_MARK in uuid for uuid in uuids)
    some = sliced & (units > 0)
    is_first = np.cumsum(some, axis=1) == 1
    return np.where(some & fleet.kubelet_chooses[rows][:, np.newaxis], is_first, units)


def _of_profiles(cards: Cards, row: int, slot: int, names: Collection[str]) -> list[str]:
    """Return the ids of a card's instances of these profiles, or of their slices."""
    listed = cards.instances[row].get(int(cards.minor[row, slot]), ())
    return [uuid for uuid, resource in listed if resource in names]


def _whole_instance(uuid: str) -> str:
    """Return the id of an instance, by its own id or by the id of one of its slices."""
    return uuid.partition(REPLICA_MARK)[0]


def free_replicas(cards: Cards, rows: Rows) -> Column:
    """Return how many free replicas each card has; each replica takes an equal share of the card's amounts."""
    total, taken = offered(cards, [REPLICAS], rows), held(cards, [REPLICAS], rows)
    shared = [(cards.total[cards.index[name], rows], cards.used[cards.index[name], rows]) for name in SHARED]
    return np.where(cards.healthy[rows], replicas_left(total, taken, cards.users[rows], shared), 0)


def replicas_left(total: Numbers, taken: Numbers, users: Numbers, shared: Iterable[tuple[Numbers, Numbers]]) -> Column:
    """Return how many replicas are free, of columns of cards or of one card.

    `shared` is the total and the used amount of each resource that the replicas share. Decisions and all that is shown
    count by this.
    """
    left = np.maximum(total - taken, 0)
    for amount, used in shared:
        # The number of replicas may change while pods hold some; those pods keep their amounts.
        left = np.minimum(left, np.maximum(amount - used, 0) // np.maximum(amount // np.maximum(total, 1), 1))
    return np.where(users == taken, left, 0)


# --- together ---------------------------------------------------------------------------------------------------


def serving(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the cards whose subdevices fit a part, free or not."""
    mask: Mask = candidates.accepted(fleet, request, part, rows) & candidates.large(fleet, part, rows)
    return mask


def open_to(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the cards whose subdevices fit a part and that neither kubelet nor another pod withholds."""
    mask: Mask = serving(fleet, request, part, rows) & ~_blocked_by_policy(fleet, part, rows)
    return mask & ~fleet.cards[GPU].withheld[rows]


def _blocked_by_policy(fleet: Fleet, part: Part, rows: Rows) -> Mask:
    """Return the cards that are blocked for the part by other pods' exclusive policies."""
    cards = fleet.cards[part.type]
    return candidates.blocked_by_policy(cards, part, rows) if part.exclusive else np.zeros_like(cards.present[rows])


def within(fleet: Fleet, request: PodRequest, available: Available, rows: Rows) -> Locality:
    """Return what any two cards must have in common if a pod gets subdevices of both.

    Subdevices have no direct links. If the pod requires direct links, all subdevices must be on one card. Instances are
    requested by their profile. Other subdevices are alike if their cards are of one kind.
    """
    part = replace(available[0][0], count=sum(part.count for part, _ in available))
    required = locality.required(fleet, request, part, rows)
    if required.link or required.alone:
        return Locality(alone=True)
    if part.unit == INSTANCE or "model" not in required.places:
        return required
    return replace(required, places=("kind", *required.places))


def enough(fleet: Fleet, request: PodRequest, available: Available, rows: Rows) -> Mask:
    """Return the rows with enough subdevices for all parts within the pod's locality."""
    common = within(fleet, request, available, rows)
    masks = [together(fleet, common, column, rows) >= part.count for part, column in available]
    mask: Mask = np.logical_and.reduce(masks).any(axis=1)
    return mask


def together(fleet: Fleet, common: Locality, column: Column, rows: Rows) -> Column:
    """Return, for each card, how many subdevices are on the cards that can be combined with it, itself included."""
    if not common:
        return np.broadcast_to(column.sum(axis=1, keepdims=True), column.shape)
    totals, places = np.zeros_like(column), np.arange(len(fleet.names))[rows]
    for slot in np.flatnonzero(column.any(axis=0)).tolist():
        # A single node may have many more cards than all others, so most slots are empty on most rows.
        here = np.flatnonzero(column[:, slot])
        totals[here] += _combinable(fleet.cards[GPU], common, slot, places[here]) * column[here][:, [slot]]
    return totals


def _combinable(cards: Cards, common: Locality, slot: int, rows: Rows) -> Mask:
    """Return the cards of each row that can be combined with the card in a slot, itself included."""
    places = [(getattr(cards, name)[rows], locality.UNKNOWN_PLACE[name]) for name in common.places]
    mask = np.full_like(cards.present[rows], bool(places))
    for at, nowhere in places:
        mask &= (at == at[:, [slot]]) & (at != nowhere)
    mask[:, slot] = True
    return mask


# --- which ------------------------------------------------------------------------------------------------------


def preferred(
    fleet: Fleet,
    row: int,
    request: PodRequest,
    available: Available,
    policy: AllocationPolicy,
    *,
    near: Collection[int],
) -> Indices:
    """Return the slots of a row that can serve all parts together, the best first.

    Raises:
        LookupError: no group of cards that can be combined has enough, so the row does not pass the filter.
    """
    cards, rows = fleet.cards[GPU], np.array([row])
    [left] = fullness(cards, rows)
    # The last key sorts first.
    not_near = ~np.isin(cards.pcie[row], tuple(near))
    order: Indices = np.lexsort((cards.minor[row], left if policy.spreads_cards else -left, not_near))
    common = within(fleet, request, available, rows)
    if not common:
        return order
    masks = [together(fleet, common, column, rows)[0] >= part.count for part, column in available]
    able = order[np.logical_and.reduce(masks)[order]]
    if not able.size:
        raise LookupError(f"node {fleet.names[row]} cannot allocate {available[0][0]}: it does not pass the filter")
    [combinable] = _combinable(cards, common, int(able[0]), rows)
    chosen: Indices = order[combinable[order]]
    return chosen


def fullness(cards: Cards, rows: Rows) -> Column:
    """Return the hundredths of each card's subdevices that are in use."""
    names = [*instances(cards), REPLICAS]
    used = np.minimum(held(cards, names, rows), total := offered(cards, names, rows))
    return CARD * used // np.maximum(total, 1)


def unused(cards: Cards, free: Column, rows: Rows) -> Column:
    """Return the hundredths of each card's subdevices that stay free after one more is taken; 100 if none is free."""
    names = [*instances(cards), REPLICAS]
    total, used = offered(cards, names, rows), held(cards, names, rows)
    after = np.minimum(CARD * (used + 1) // np.maximum(total, 1), CARD)
    return CARD - np.where(free > 0, after, 0)


def in_turns(free: Column, count: int) -> list[int]:
    """Return `count` places in turns: each place once, then again, at most as often as it has something free."""
    turns = [(turn, place) for place, number in enumerate(free.tolist()) for turn in range(min(number, count))]
    return [place for _, place in sorted(turns)[:count]]


def instances_of(
    fleet: Fleet, row: int, slot: int, part: Part, names: Collection[str], *, apart: bool = False
) -> Iterator[Grant]:
    """Yield a card's free instances of these profiles, in the order of the Device.

    `apart`: whether to yield one slice at most of each instance, and none of those that the gang has.
    """
    cards = fleet.cards[GPU]
    given = set(cards.instances_of_gang.get(row, ())) if apart else set[str]()
    minor, taken = int(cards.minor[row, slot]), cards.taken.get(row, ())
    listed, parent = cards.instances.get(row, {}).get(minor, ()), cards.ids[row].get(minor, "")
    for uuid, name in listed:
        if name in names and uuid not in taken and not (apart and _whole_instance(uuid) in given):
            given.add(_whole_instance(uuid))
            yield Grant(type=GPU, minor=minor, amounts=((name, 1),), id=uuid, exclusive=part.exclusive, parent=parent)


def replicas_of(fleet: Fleet, row: int, slot: int, part: Part) -> Iterator[Grant]:
    """Yield a card's free replicas, the lowest number first."""
    cards = fleet.cards[GPU]
    minor, taken = int(cards.minor[row, slot]), cards.taken.get(row, ())
    total, parent = int(cards.total[cards.index[REPLICAS], row, slot]), cards.ids[row][minor]
    for number in range(total):
        if (name := f"{parent}{REPLICA_MARK}{number}") not in taken:
            amounts = cards.of_replica(row, slot)
            yield Grant(type=GPU, minor=minor, amounts=amounts, id=name, exclusive=part.exclusive, parent=parent)


def complete(fleet: Fleet, row: int, part: Part, chosen: Sequence[Grant]) -> tuple[Grant, ...]:
    """Return the chosen grants after checking that there are enough.

    Raises:
        LookupError: there are too few, so the row does not pass the filter.
    """
    if len(chosen) < part.count:
        raise LookupError(f"node {fleet.names[row]} cannot allocate {part}: it does not pass the filter")
    return tuple(chosen)


# --- why not ----------------------------------------------------------------------------------------------------


def reasons(
    fleet: Fleet, request: PodRequest, available: Available, listed: Column, name: str, *, rejected: Mask
) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons for the first part, or for all parts together, each with its rows.

    `listed` is the number of subdevices of each card, free or not. `name` is their name in messages.
    """
    part, free = available[0]
    requested = f"({part.count} requested)"
    yield f"node(s) have too few {name} {shortage.requested_of(part, listed, rejected)}", _too_few(listed, part)
    if request.model:
        of_model = shortage.of_model(fleet, request, part)
        wrong = _too_few(listed * candidates.of_model(fleet, request, part), part)
        # As for whole cards, so that one reason with one list of models counts both.
        kind = f"healthy {shortage.plural(GPU)}" if part.unit == PLUGIN_UNIT else f"{name} on GPUs"
        yield f"node(s) have too few {kind} {of_model}", wrong
    accepted = listed * candidates.accepted(fleet, request, part)
    selected = f"on GPUs that match {shortage.selector(part)} {shortage.requested_of(part, accepted, rejected)}"
    yield f"node(s) have too few {name} {selected}", _too_few(accepted, part)
    serves = listed * serving(fleet, request, part, ALL)
    memory = message_text(GPU_MEMORY, part.min_memory)
    yield f"node(s) have too few {name} with {memory} of memory {requested}", _too_few(serves, part)
    yield shortage.unknown(GPU), fleet.cards[GPU].unknown > 0
    # Pods hold instances whose card is not known.
    cards = fleet.cards[GPU]
    yield UNLOCATED, offered(cards, instances(cards), ALL).any(axis=1) & (cards.unlocated > 0)
    yield shortage.kept_by_policy(part), _too_few(serves * ~_blocked_by_policy(fleet, part, ALL), part)
    withheld = _too_few(listed * open_to(fleet, request, part, ALL), part)
    yield shortage.BY_CLAIM, withheld & shortage.by_claim(fleet)
    yield shortage.WITHHELD, withheld
    common = within(fleet, request, available, ALL)
    best = int(together(fleet, common, free, ALL)[rejected].max(initial=0))
    scope = f" {common}" if common else ""
    yield (
        f"node(s) have too few free {name}{scope} (at most {best} of {part.count})",
        ~enough(fleet, request, available[:1], ALL),
    )
    if common:
        yield f"node(s) have too few free devices for the whole pod {common}", ~enough(fleet, request, available, ALL)


def _too_few(listed: Column, part: Part) -> Mask:
    rows: Mask = listed.sum(axis=1) < part.count
    return rows
