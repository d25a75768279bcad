"""The allocator of GPUs by the device plugin's names `nvidia.com/gpu.shared` and `nvidia.com/gpu`.

A replica is one of the equal time slices of a card. A unit of `nvidia.com/gpu` (PLUGIN_UNIT) is a replica on a sliced
card, and an instance if the MIG strategy is single. Otherwise it is a card, which gpu.py allocates. The units of a pod
are of one kind unless the pod accepts mixed ones: whole cards if there are enough, else subdevices (`Part.subdevices`).
The replicas that a pod gets as `nvidia.com/gpu` are of different cards, because NCCL fails on two of one card. A pod
with `berth.dev/gpu-subdevices: only` accepts several of one card. The same holds for the members of a gang. Where
kubelet chooses the replicas, such a pod or gang gets at most one replica of the node. Units are on different cards if
possible, as NVIDIA's plugin distributes them. The policy determines whether pods are packed or spread.
"""

from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np

from berth_api.allocation import REPLICAS, Grant
from berth_api.names import GPU
from berth_api.request import EQUAL, NEVER, NVIDIA_GPU, NVIDIA_SHARED, ONLY, PLUGIN_UNIT, Part
from berth_operator.core.allocators import candidates, gpu, grants, partitions, shortage, subdevices
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import REPLICA_NAMES, Cards, Column, Mask
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest


def passes(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the rows with enough free cards, units or replicas."""
    if are_cards(fleet, part):
        return gpu.passes(fleet, request, part, rows)
    left = apart(fleet, request, part, _free_subdevices(fleet, request, part, rows), rows)
    mask = subdevices.enough(fleet, request, [(part, left)], rows)
    if part.unit != PLUGIN_UNIT:
        return mask
    mask = mask | gpu.passes(fleet, request, part, rows)
    if request.devices.mixed and part.count > 1:
        units = left + _free_cards(fleet, request, part, rows)
        mask |= subdevices.enough(fleet, request, [(part, units)], rows) & left.any(axis=1)
    return mask


def could_pass(fleet: Fleet, request: PodRequest, part: Part) -> Mask:
    """Return the rows that would have enough cards, units or replicas if all of them were free."""
    if are_cards(fleet, part):
        return gpu.could_pass(fleet, request, part)
    serving = subdevices.serving(fleet, request, part, ALL)
    offered = _offered_subdevices(fleet, request, part, ALL)
    offered = _of_one_pod(fleet, request, part, offered, ALL, taken=False) * serving
    mask = subdevices.enough(fleet, request, [(part, offered)], ALL)
    if part.unit != PLUGIN_UNIT:
        return mask
    mask = mask | gpu.could_pass(fleet, request, part)
    if request.devices.mixed and part.count > 1:
        units = offered + (_whole(fleet, part) & serving)
        mask |= subdevices.enough(fleet, request, [(part, units)], ALL) & offered.any(axis=1)
    return mask


def reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons, each with the rows it is true for."""
    if are_cards(fleet, part):
        yield from gpu.reasons(fleet, request, part, rejected)
        return
    if part.unit == PLUGIN_UNIT:
        offered = _offered_subdevices(fleet, request, part, ALL).any(axis=1)
        sliced = divided(fleet, ALL) & ~offered
        yield shortage.divided(part), sliced & shortage.too_few(_whole(fleet, part), part)
        for reason, mask in gpu.reasons(fleet, request, part, rejected & ~offered):
            yield reason, mask & ~offered
        rejected = rejected & offered
    if not rejected.any():
        return
    name, listed = _name(part), _offered_subdevices(fleet, request, part, ALL)
    if part.unit != PLUGIN_UNIT:
        yield f"node(s) have no {name}", (listed.sum(axis=1) == 0) & rejected
    else:
        listed = listed + _whole(fleet, part)
    unused = free(fleet, request, part, ALL)
    serves = listed * subdevices.serving(fleet, request, part, ALL)
    yield from _of_several(fleet, request, part, serves, unused)
    unshared = apart(fleet, request, part, unused, ALL)
    mates = subdevices.enough(fleet, request, [(part, _of_one_pod(fleet, request, part, unused, ALL))], ALL)
    of_gang = rejected & mates & ~subdevices.enough(fleet, request, [(part, unshared)], ALL)
    for of, rows in ((shortage.INSTANCE, fleet.mig_single), (shortage.CARD, ~fleet.mig_single)):
        yield shortage.chosen_by_kubelet(part, of), of_gang & rows & fleet.kubelet_chooses
        yield shortage.of_gang(part, of), of_gang & rows
    available = [(part, unshared)]
    for reason, mask in subdevices.reasons(fleet, request, available, listed, name, rejected=rejected):
        yield reason, mask & rejected


def choose(
    fleet: Fleet, row: int, request: PodRequest, part: Part, policy: AllocationPolicy, *, near: Collection[int] = ()
) -> tuple[Grant, ...]:
    """Return whole cards, or the units or replicas, one per card before a second one of any card."""
    rows = np.array([row])
    if are_cards(fleet, part) or (part.unit == PLUGIN_UNIT and _takes_cards(fleet, request, part, rows)):
        return gpu.choose(fleet, row, request, part, policy, near=near)
    units = free(fleet, request, part, rows)
    left = apart(fleet, request, part, units, rows)
    order = subdevices.preferred(fleet, row, request, [(part, left)], policy, near=near)
    if part.count > 1 and (left < units).any():
        # The cards with the most free replicas first, so that the next pod finds replicas of as many cards as possible.
        order = order[np.argsort(-units[0, order], kind="stable")]
    if part.subdevices != EQUAL:
        # Of a pod that accepts several kinds, as many units as possible are cards.
        order = order[np.argsort(fleet.cards[GPU].kind[row, order] > 0, kind="stable")]
    places = subdevices.in_turns(left[0, order], part.count)
    of_place = {place: _of_card(fleet, row, int(order[place]), part) for place in set(places)}
    chosen = [grant for place in places for grant in islice(of_place[place], 1)]
    return subdevices.complete(fleet, row, part, chosen)


def _takes_cards(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> bool:
    """Return whether units are allocated as whole cards on a row that passes."""
    if part.subdevices == EQUAL and divided(fleet, rows)[0] and not partitions.bound(fleet, request, part, rows)[0]:
        return False
    return bool(gpu.passes(fleet, request, part, rows)[0])


def _of_card(fleet: Fleet, row: int, slot: int, part: Part) -> Iterator[Grant]:
    """Yield the free units or replicas of a card."""
    cards = fleet.cards[GPU]
    if _sliced(cards, np.array([row]))[0, slot]:
        return subdevices.replicas_of(fleet, row, slot, part)
    if cards.healthy[row, slot]:
        return iter((grants.of_card(cards, row, part, slot),))
    names = subdevices.instances(cards)
    return subdevices.instances_of(fleet, row, slot, part, names, apart=part.subdevices != ONLY)


def are_cards(fleet: Fleet, part: Part) -> bool:
    """Return whether the part's units are whole cards on all nodes."""
    return part.unit == PLUGIN_UNIT and REPLICAS not in fleet.cards[GPU].index and not fleet.mig_single.any()


def divided(fleet: Fleet, rows: Rows) -> Mask:
    """Return the rows where some unit is not a whole card."""
    cards = fleet.cards[GPU]
    some: Mask = (_sliced(cards, rows) | (_instances(fleet, rows) > 0)).sum(axis=1) > 0
    return some


def free(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return how many free cards, units or replicas each card has."""
    left = _free_subdevices(fleet, request, part, rows)
    return left + _free_cards(fleet, request, part, rows) if part.unit == PLUGIN_UNIT else left


def _of_one_pod(
    fleet: Fleet, request: PodRequest, part: Part, units: Column, rows: Rows, *, taken: bool = True
) -> Column:
    """Return how many of each card's units one pod may get. `taken`: whether what pods hold counts as taken."""
    sliced = _sliced(fleet.cards[GPU], rows)
    if part.count > 1 and request.most_gpus_of_a_container > 1:
        units = np.where(sliced & fleet.one_replica[rows][:, np.newaxis], 0, units)
    if part.unit != PLUGIN_UNIT or part.subdevices == ONLY:
        return units
    units = _of_each_card(units, sliced)
    if part.count == 1:
        return units
    units = np.where(sliced & fleet.kubelet_chooses[rows][:, np.newaxis], 0, units)
    return _of_each_instance(fleet, part, units, rows, taken=taken, of_gang=False)


def _of_each_instance(
    fleet: Fleet, part: Part, units: Column, rows: Rows, *, taken: bool = True, of_gang: bool = True
) -> Column:
    """Return the units with at most one slice of each MIG instance, which are units by the strategy single."""
    if not fleet.cards[GPU].sliced_instances.any():
        return units
    names = subdevices.instances(fleet.cards[GPU])
    return subdevices.one_of_each(fleet, names, units, rows, several=part.count > 1, taken=taken, of_gang=of_gang)


def _of_each_card(units: Column, sliced: Mask) -> Column:
    """Return the units with at most one replica of each card."""
    return np.where(sliced, np.minimum(units, 1), units)


def apart(fleet: Fleet, request: PodRequest, part: Part, units: Column, rows: Rows) -> Column:
    """Return how many of each card's free units the next pod may get: none of cards whose slices its gang has.

    Where kubelet chooses the slices, the pod gets none if its gang has a slice of the node.
    """
    units = _of_one_pod(fleet, request, part, units, rows)
    if part.unit != PLUGIN_UNIT or part.subdevices == ONLY:
        return units
    of_gang = fleet.cards[GPU].of_gang[rows] > 0
    of_gang |= (of_gang.any(axis=1) & fleet.kubelet_chooses[rows])[:, np.newaxis] & _sliced(fleet.cards[GPU], rows)
    units = np.where(of_gang, 0, units)
    return _of_each_instance(fleet, part, units, rows) if fleet.cards[GPU].instances_of_gang else units


def of_members(fleet: Fleet, request: PodRequest, part: Part, units: Column, rows: Rows) -> Column:
    """Return how many of each card's free units members of the gang may get together.

    Where kubelet chooses the slices, this is one slice of the node. Any card counts for it.
    """
    units = apart(fleet, request, part, units, rows)
    if part.unit != PLUGIN_UNIT or part.subdevices == ONLY:
        return units
    units = _of_each_instance(fleet, part, units, rows)
    cards = fleet.cards[GPU]
    return subdevices.one_where_kubelet_chooses(fleet, subdevices.instances(cards), _sliced(cards, rows), units, rows)


def _of_several(
    fleet: Fleet, request: PodRequest, part: Part, listed: Column, unused: Column
) -> Iterator[tuple[str, Mask]]:
    """Yield the reasons for rows where enough units are listed, or unused, but in slices that no pod gets together."""
    if part.count == 1:
        return
    sliced, single = _sliced(fleet.cards[GPU], ALL), fleet.mig_single
    refused, of_one_card, chosen = (np.zeros_like(fleet.present) for _ in range(3))
    for units, taken in ((listed, False), (unused, True)):
        enough = subdevices.enough(fleet, request, [(part, units)], ALL)
        of_one_pod = _of_one_pod(fleet, request, part, units, ALL, taken=taken)
        lacks = enough & ~subdevices.enough(fleet, request, [(part, of_one_pod)], ALL)
        one_of_each = subdevices.enough(fleet, request, [(part, _of_each_card(units, sliced))], ALL)
        refused |= lacks & fleet.one_replica & (request.most_gpus_of_a_container > 1)
        of_one_card |= lacks & np.where(single, ~fleet.kubelet_chooses, ~one_of_each)
        chosen |= lacks & fleet.kubelet_chooses
    yield shortage.one_replica(part), refused
    for of, rows in ((shortage.INSTANCE, single), (shortage.CARD, ~single)):
        yield shortage.of_one_card(part, of), of_one_card & rows
        yield shortage.chosen_by_kubelet(part, of), chosen & rows


def _free_cards(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the free cards that are units as a whole."""
    mask: Mask = candidates.fitting(fleet, request, part, rows) & subdevices.open_to(fleet, request, part, rows)
    return mask


def _free_subdevices(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return how many free subdevices each card has that the part may get."""
    cards = fleet.cards[GPU]
    counts = np.zeros_like(cards.present[rows], np.int64)
    if REPLICAS in cards.index:
        counts += subdevices.free_replicas(cards, rows) * _called(cards, part, rows)
    if part.unit == PLUGIN_UNIT and fleet.mig_single[rows].any():
        counts += subdevices.free_instances(cards, subdevices.instances(cards), rows) * _are_single(fleet, rows)
    return counts * (subdevices.open_to(fleet, request, part, rows) & _allowed(fleet, request, part, rows))


def _offered_subdevices(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return how many subdevices, free or not, each card has that the part may get."""
    cards = fleet.cards[GPU]
    counts = subdevices.offered(cards, [REPLICAS], rows) * _called(cards, part, rows)
    if part.unit == PLUGIN_UNIT:
        counts += _instances(fleet, rows)
    return counts * _allowed(fleet, request, part, rows)


def _allowed(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Mask:
    """Return the cards whose subdevices the part may get: cards of its kind, and no card where partitions apply."""
    cards = fleet.cards[GPU]
    if part.unit == PLUGIN_UNIT and part.subdevices == NEVER:
        return np.zeros_like(cards.present[rows])
    mask = np.ones_like(cards.present[rows])
    if part.kind is not None:
        mask &= pick(cards.kind, rows) == fleet.intern_table.kinds.find(part.kind)
    if part.unit == PLUGIN_UNIT:
        mask &= ~partitions.bound(fleet, request, part, rows)[:, np.newaxis]
    return mask


def _whole(fleet: Fleet, part: Part) -> Mask:
    """Return the healthy cards that are units as a whole, free or not."""
    cards = fleet.cards[GPU]
    return np.where(candidates.undivided(cards, part, ALL), cards.healthy, np.False_)


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


def _instances(fleet: Fleet, rows: Rows) -> Column:
    """Return how many instances of each card are units, which they are if the MIG strategy is single."""
    cards = fleet.cards[GPU]
    counts: Column = subdevices.offered(cards, subdevices.instances(cards), rows) * _are_single(fleet, rows)
    return counts


def _are_single(fleet: Fleet, rows: Rows) -> Mask:
    single: Mask = fleet.mig_single[rows][:, np.newaxis]
    return single
