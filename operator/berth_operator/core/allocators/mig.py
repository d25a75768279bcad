"""The allocator of MIG instances by profile, on cards in MIG mode with the strategy mixed.

Cards in use come first, so that idle cards stay free for larger instances. The allocator uses as few idle cards as
possible, then as few cards as possible, then the fullest cards. All MIG parts of a pod are allocated together.

If instances are time-sliced, a pod or gang gets one slice at most of each instance, because NCCL fails on two of one.
A pod with `berth.dev/gpu-subdevices: only`, or that names slices (`nvidia.com/mig-1g.10gb.shared`), accepts several.
"""

from collections.abc import Collection, Iterator
from itertools import islice

import numpy as np

from berth_api.allocation import Grant, mig
from berth_api.request import INSTANCE, ONLY, Part
from berth_api.values import listing
from berth_operator.core.allocators import shortage, subdevices
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.plugins import AllocationPolicy
from berth_operator.core.values.request import PodRequest


def passes(fleet: Fleet, request: PodRequest, _part: Part, rows: Rows) -> Mask:
    """Return the rows with enough free instances for all MIG parts of the pod, because they share one scope."""
    return subdevices.enough(fleet, request, _available(fleet, request, rows), rows)


def could_pass(fleet: Fleet, request: PodRequest, _part: Part) -> Mask:
    """Return the rows that would have enough instances if all instances were free."""
    offers = []
    for part in _parts(request):
        serving = subdevices.serving(fleet, request, part, ALL) & ~fleet.mig_single[:, np.newaxis]
        listed = subdevices.offered(fleet.cards[part.type], [_profile(part)], ALL) * serving
        offers.append((part, _apart(fleet, part, listed, ALL, taken=False, of_gang=False)))
    return subdevices.enough(fleet, request, offers, ALL)


def reasons(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons, each with the rows it is true for."""
    cards, name = fleet.cards[part.type], _profile(part)
    offered = subdevices.offered(cards, [name], ALL)
    none = f"node(s) have no {name}"
    if not offered.any():
        # No node has it: the profiles that nodes offer help.
        totals = [
            (profile, cards.total[cards.index[profile]][~fleet.mig_single]) for profile in subdevices.instances(cards)
        ]
        profiles = listing.first_of(sorted(profile for profile, total in totals if total.any()))
        none += f" (offered: {profiles})" if profiles else ""
    yield none, offered.sum(axis=1) == 0
    yield f"node(s) use MIG strategy single (instances are nvidia.com/gpu and not {name})", fleet.mig_single
    own_first = sorted(_available(fleet, request, ALL), key=lambda available: available[0] != part)
    several = [(of_pod, free(fleet, request, of_pod, ALL)) for of_pod in _parts(request)]
    alone = [(of_pod, _apart(fleet, of_pod, left, ALL, of_gang=False)) for of_pod, left in several]
    apart = subdevices.enough(fleet, request, own_first, ALL)
    of_one_instance = subdevices.enough(fleet, request, several, ALL) & ~apart
    yield shortage.chosen_by_kubelet(part, shortage.INSTANCE), of_one_instance & fleet.kubelet_chooses
    yield shortage.of_gang(part, shortage.INSTANCE), of_one_instance & subdevices.enough(fleet, request, alone, ALL)
    yield shortage.of_one_card(part, shortage.INSTANCE), of_one_instance
    requestable = offered * ~fleet.mig_single[:, np.newaxis]
    yield from subdevices.reasons(fleet, request, own_first, requestable, name, rejected=rejected)


def free(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Column:
    """Return how many free instances each card has for the part."""
    left = subdevices.free_instances(fleet.cards[part.type], [_profile(part)], rows)
    return left * (subdevices.open_to(fleet, request, part, rows) & ~fleet.mig_single[rows][:, np.newaxis])


def of_members(fleet: Fleet, part: Part, left: Column, rows: Rows) -> Column:
    """Return how many of each card's free instances members of the gang may get together.

    Where kubelet chooses the slices, this is one slice of the node.
    """
    if not _is_restricted(part):
        return left
    names = [_profile(part)]
    left = subdevices.one_of_each(fleet, names, left, rows, several=part.count > 1)
    return subdevices.one_where_kubelet_chooses(fleet, names, np.zeros_like(left, np.bool_), left, rows)


def choose(
    fleet: Fleet, row: int, request: PodRequest, part: Part, policy: AllocationPolicy, *, near: Collection[int] = ()
) -> tuple[Grant, ...]:
    """Return the instances for the part, packed; or, if the policy spreads, in turns from the emptiest cards."""
    cards, rows = fleet.cards[part.type], np.array([row])
    available = _available(fleet, request, rows)
    order = subdevices.preferred(fleet, row, request, available, policy, near=near)
    parts = [of_pod for of_pod, _ in available]
    left = np.stack([column[0, order] for _, column in available])
    counts = np.array([of_pod.count for of_pod in parts])
    if policy.spreads_cards:
        # The cards give one in turn.
        turns = [subdevices.in_turns(free, count) for free, count in zip(left, counts.tolist(), strict=True)]
        counts_by_card = np.stack([np.bincount(places, minlength=left.shape[1]) for places in turns])
    else:
        counts_by_card = _packed(left, counts, cards.users[row, order] > 0)
    instances: list[Grant] = []
    for slot, count in zip(order.tolist(), counts_by_card[parts.index(part)].tolist(), strict=True):
        of_card = subdevices.instances_of(fleet, row, slot, part, [_profile(part)], apart=_is_restricted(part))
        instances += islice(of_card, count)
    return subdevices.complete(fleet, row, part, instances)


def _parts(request: PodRequest) -> tuple[Part, ...]:
    return tuple(part for part in request.devices.parts if part.unit == INSTANCE)


def _profile(part: Part) -> str:
    [(name, _)] = part.amounts
    return name


def _available(fleet: Fleet, request: PodRequest, rows: Rows) -> subdevices.Available:
    """Return, for each MIG part of the pod, how many instances each card may give to it."""
    return [(part, _apart(fleet, part, free(fleet, request, part, rows), rows)) for part in _parts(request)]


def _is_restricted(part: Part) -> bool:
    """Return whether slices of one instance are not given to one pod or gang."""
    return part.subdevices != ONLY and not mig.is_shared(_profile(part))


def _apart(fleet: Fleet, part: Part, left: Column, rows: Rows, *, taken: bool = True, of_gang: bool = True) -> Column:
    several = part.count > 1
    if not _is_restricted(part) or not (several or (of_gang and fleet.cards[part.type].instances_of_gang)):
        return left
    names = [_profile(part)]
    return subdevices.one_of_each(fleet, names, left, rows, several=several, taken=taken, of_gang=of_gang)


def _packed(left: Column, counts: Column, in_use: Mask) -> Column:
    """Return how many instances of each part each card gives, with few idle cards, and then few cards.

    Shapes: `left` (parts, cards), in the order of preference; `counts` (parts,); `in_use` (cards,). The search is
    greedy, which is optimal for one part.
    """
    # The cards in use, and the idle cards that are needed too.
    chosen = in_use.copy()
    for _ in range(left.shape[1]):
        missing = np.maximum(counts - (left * chosen).sum(axis=1), 0)
        if not missing.any():
            break
        gives = np.minimum(left, missing[:, np.newaxis]).sum(axis=0)
        chosen[np.where(chosen, -1, gives).argmax()] = True
    left, missing, counts_by_card = left * chosen, counts.copy(), np.zeros_like(left)
    for _ in range(left.shape[1]):
        # Take the first card that gives everything that is missing, or the most of it.
        card = np.minimum(left, missing[:, np.newaxis]).sum(axis=0).argmax()
        counts_by_card[:, card] += (taken := np.minimum(left[:, card], missing))
        left[:, card] -= taken
        missing -= taken
    return counts_by_card
