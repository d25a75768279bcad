"""Cards for several members of a gang on one node, by a backtracking search.

    choose_together(fleet, row, requests, policy, spend)  ->  [slots of the first member, ...] | None

The allocators choose the best cards for one pod. A later member may need exactly these. This search compares all sets
of cards that each member may have, for members that request one part of whole GPUs or of shares. Only the constraints
of GPUs among each other are considered here. The filters check everything else when the members are placed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final

import numpy as np

from berth_api import names
from berth_api.names import GPU
from berth_api.request import Part
from berth_api.values.selectors import IN, LabelSelector, Requirement
from berth_operator.core import allocators
from berth_operator.core.allocators import candidates, gpu, locality
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.arrays.column_cache import only
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PendingPod, PodRequest

STEP: Final = 0.5
"""Work for looking at one set of cards for a member, in units of `Work`."""
SETS_PER_WORK: Final = 4
"""Sets of cards that are ranked in a unit of `Work`."""
Slots = tuple[int, ...]


def part_of(fleet: Fleet, request: PodRequest) -> Part | None:
    """Return the part of a request for which cards are searched; None if it has none, or not only one."""
    parts = [part for part in request.devices.parts if part.type == GPU]
    if len(parts) != 1 or parts[0].every or allocators.in_subdevices(fleet, parts[0]):
        return None
    return parts[0]


def with_cards(pod: PendingPod, ids: Sequence[str]) -> PendingPod:
    """Return a pod whose part for GPUs may get only the cards with these ids."""
    devices = pod.request.devices
    named = Requirement(key=names.DEVICE_UUID, operator=IN, values=tuple(ids))
    parts = tuple(
        replace(part, selector=LabelSelector(requirements=(*part.selector.requirements, named)))
        if part.type == GPU
        else part
        for part in devices.parts
    )
    return replace(pod, request=replace(pod.request, devices=replace(devices, parts=parts)))


def choose_together(
    fleet: Fleet, row: int, requests: Sequence[PodRequest], policy: Policy, spend: Callable[[float], None]
) -> list[Slots] | None:
    """Return the slots of each member's cards on a row that no pod of the gang uses yet; None if not all fit.

    `spend` is called with the work of each step, and may raise an error to end the search.
    """
    by_request = {request: _member(fleet, row, request, policy) for request in dict.fromkeys(requests)}
    spend(sum(len(member.sets) for member in by_request.values()) / SETS_PER_WORK)
    members = [by_request[request] for request in requests]
    # Those with the fewest sets first, equal ones next to each other.
    order = sorted(range(len(members)), key=lambda number: (len(members[number].sets), members[number].key))
    chosen = _Search([members[number] for number in order], _twins(fleet, row, members), spend).sets()
    if chosen is None:
        return None
    by_number = dict(zip(order, chosen, strict=True))
    return [tuple(_bits(by_number[number])) for number in range(len(members))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """What a member may get on the row."""

    key: str
    """Equal for members that may get the same."""
    sets: Sequence[int]
    """Bit masks of slots, the best first."""
    amounts: Mapping[int, Sequence[int]]
    """Resource -> the amount of it that the member takes of the card in each slot; empty if it takes whole cards."""
    left: Mapping[int, Sequence[int]]
    """Resource -> what is left of the card in each slot."""


def _member(fleet: Fleet, row: int, request: PodRequest, policy: Policy) -> _Member:
    part = part_of(fleet, request)
    if part is None:
        return _Member(key="", sets=(0,), amounts={}, left={})
    cards = fleet.cards[GPU]
    amounts: dict[int, Sequence[int]] = {}
    left: dict[int, Sequence[int]] = {}
    for index, needed in candidates.needs(cards, part, only(row)) if not part.whole else ():
        amounts[index] = np.broadcast_to(needed, cards.healthy[only(row)].shape)[0].tolist()
        left[index] = cards.left(index, only(row))[0].tolist()
    sets = gpu.sets(fleet, row, request, part, policy)
    return _Member(key=repr((request.devices, request.model)), sets=sets, amounts=amounts, left=left)


def _twins(fleet: Fleet, row: int, members: Sequence[_Member]) -> list[int]:
    """Return for each slot the first slot whose card could be exchanged with its card in all sets of all members."""
    cards = fleet.cards[GPU]
    slots = list(cards.slots(row))
    scores = locality.link_scores(fleet.intern_table.wirings[cards.wiring[row]], cards.minor.shape[1])
    own = [
        (
            *(int(column[row, slot]) for column in (cards.numa, cards.pcie, cards.model, cards.kind)),
            tuple(tuple(amounts[slot] for amounts in member.amounts.values()) for member in members),
            tuple(tuple(left[slot] for left in member.left.values()) for member in members),
            tuple(any(chosen >> slot & 1 for chosen in member.sets) for member in members),
        )
        for slot in range(cards.minor.shape[1])
    ]
    first = list(range(cards.minor.shape[1]))
    if fleet.partitions[row]:
        return first
    for at, slot in enumerate(slots):
        for other in slots[:at]:
            rest = [third for third in slots if third not in (slot, other)]
            if first[other] == other and own[slot] == own[other] and (scores[slot, rest] == scores[other, rest]).all():
                first[slot] = other
                break
    return first


class _Search:
    """One search; members are in the order of trial."""

    def __init__(self, members: Sequence[_Member], twins: Sequence[int], spend: Callable[[float], None]) -> None:
        self._members, self._twins, self._spend = members, twins, spend
        self._whole = 0
        """The slots of cards that members take whole."""
        self._shared: dict[int, list[int]] = {}
        """Slot -> the members that share its card."""
        self._usable = reduce(or_, (slots for member in members for slots in member.sets), 0)
        """The slots of cards that any member may get."""
        wholes = [0 if member.amounts or not member.sets else member.sets[0].bit_count() for member in members]
        self._wanted = [sum(wholes[number:]) for number in range(len(members))]
        """For each member, the number of cards that it and the members after it take whole."""

    def sets(self) -> list[int] | None:
        """Return the set of each member; None if not all fit."""
        chosen: list[int] = []
        start = 0
        tried: list[set[tuple[object, ...]]] = [set()]
        while len(chosen) < len(self._members):
            place = self._next(len(chosen), start, tried[-1])
            if place is not None:
                chosen.append(place)
                self._take(len(chosen) - 1, self._members[len(chosen) - 1].sets[place])
                tried.append(set())
                is_equal = len(chosen) < len(self._members) and self._equals_the_one_before(len(chosen))
                start = place if is_equal else 0
            elif chosen:
                tried.pop()
                start = chosen.pop()
                self._release(len(chosen), self._members[len(chosen)].sets[start])
                start += 1
            else:
                return None
        return [member.sets[place] for member, place in zip(self._members, chosen, strict=True)]

    def _next(self, number: int, start: int, tried: set[tuple[object, ...]]) -> int | None:
        """Return the next place of a set that is free for a member, unless an equal one was tried before it."""
        member = self._members[number]
        if (self._usable & ~self._whole).bit_count() < self._wanted[number]:
            return None
        for place in range(start, len(member.sets)):
            self._spend(STEP)
            slots = member.sets[place]
            if not self._is_free(number, slots):
                continue
            # Cards that could be exchanged, and that the same members share, lead to the same rest.
            key = tuple(sorted((self._twins[slot], *self._shared.get(slot, ())) for slot in _bits(slots)))
            if key not in tried:
                tried.add(key)
                return place
        return None

    def _is_free(self, number: int, slots: int) -> bool:
        member = self._members[number]
        if slots & self._whole:
            return False
        if not member.amounts:
            return not any(self._shared.get(slot) for slot in _bits(slots))
        for slot in _bits(slots):
            others = [self._members[other].amounts for other in self._shared.get(slot, ())]
            for index, needed in member.amounts.items():
                taken = sum(amounts[index][slot] for amounts in others if index in amounts)
                if needed[slot] > member.left[index][slot] - taken:
                    return False
        return True

    def _equals_the_one_before(self, number: int) -> bool:
        return self._members[number].key == self._members[number - 1].key

    def _take(self, number: int, slots: int) -> None:
        if self._members[number].amounts:
            for slot in _bits(slots):
                self._shared.setdefault(slot, []).append(number)
        else:
            self._whole |= slots

    def _release(self, number: int, slots: int) -> None:
        if self._members[number].amounts:
            for slot in _bits(slots):
                self._shared[slot].remove(number)
        else:
            self._whole &= ~slots


def _bits(mask: int) -> list[int]:
    return [slot for slot in range(mask.bit_length()) if mask >> slot & 1]
