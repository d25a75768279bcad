"""What a node lacks to take a pod: amounts of resources, and cards that other pods use.

If exactly this becomes free, the pod fits on the node. Among cards that pods use, the least used cards are listed
first. No card is listed without need.
"""

from typing import Final

import numpy as np

from berth_api.allocation import REPLICAS, mig
from berth_api.names import GPU
from berth_api.objects.visibility import LackingCard, LackingNode
from berth_api.request import AMOUNTS, INSTANCE
from berth_operator.core.allocators import candidates, subdevices
from berth_operator.core.decision import cycle
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.reservation import lacking_resources, missing_devices
from berth_operator.core.fleet.arrays.column_cache import ALL
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask
from berth_operator.core.values.request import PodRequest

MAX_CARDS: Final = 64
"""Maximum number of cards in use from which sets are tried."""
FIRST: Final = np.array([0])
"""The only row of a what-if."""

_Card = tuple[str, int]


def is_share(card: LackingCard) -> bool:
    """Return whether a share of a card is missing, not whole instances or the card."""
    return any(not mig.is_resource(name) for name in card["amounts"])


def ranked(fleet: Fleet, request: PodRequest, rows: Mask) -> Indices:
    """Return these rows, ranked by what they lack: the fewest devices, the smallest part of a resource, the name."""
    at = np.flatnonzero(rows)
    parts = [np.maximum(amount - fleet.left(name)[at], 0) / amount for name, amount in request.resources if amount]
    scarcest = np.max(parts, axis=0) if parts else np.zeros(len(at))
    names = np.array([fleet.names[row] for row in at.tolist()], dtype=np.str_)
    return at[np.lexsort((names, scarcest, missing_devices(fleet, request)[at]))]


def lack(fleet: Fleet, row: int, request: PodRequest, policy: Policy) -> LackingNode | None:
    """Return what a row lacks; None if too many cards are in use to try, or if freeing all of them does not help."""
    what_if = fleet.excerpt(np.array([row]))
    # Its resources are given, before the cards are searched.
    resources = dict(lacking_resources(what_if, 0, request))
    amounts = np.zeros((len(what_if.requested), 1), np.int64)
    for name, missing in resources.items():
        if name in what_if.resources:
            amounts[what_if.resources[name]] = missing
    what_if.move_requested(FIRST, amounts, -1)
    cards = _Cards(what_if, request, policy).necessary()
    return None if cards is None else {"node": fleet.names[row], "resources": resources, "cards": cards}


class _Cards:
    """Searches the cards that must become free; a card is (type, slot)."""

    def __init__(self, what_if: Fleet, request: PodRequest, policy: Policy) -> None:
        self._fleet, self._request, self._policy = what_if, request, policy
        self._parts = {part.type: part for part in request.devices.parts}
        known = what_if.cards[GPU].index
        self._instances = {
            part.amounts[0][0]: part.count
            for part in request.devices.parts
            if part.unit == INSTANCE and part.amounts[0][0] in known
        }
        """Resource name of a MIG profile that some card has -> instances that the pod requests."""
        in_use = []
        for device_type in self._parts:
            columns = what_if.cards[device_type]
            # Cards in MIG mode are never healthy: those count of which pods hold instances that the pod requests.
            partitioned = subdevices.held(columns, self._instances, ALL)[0] > 0
            slots = np.flatnonzero((columns.users[0] > 0) & (columns.healthy[0] | partitioned))
            in_use += [(int(columns.used[:, 0, slot].max()), device_type, slot) for slot in slots.tolist()]
        self._used = {(device_type, slot): self._use((device_type, slot)) for _, device_type, slot in sorted(in_use)}
        """Card -> what pods use of it, and how many pods. The least used cards come first."""

    def necessary(self) -> list[LackingCard] | None:
        """Return the cards that must become free; None if there are too many to try, or none suffice."""
        free = {name: subdevices.free_instances(self._fleet.cards[GPU], [name], ALL).sum() for name in self._instances}
        missing = {name: count - int(free[name]) for name, count in self._instances.items()}
        if len(self._used) > MAX_CARDS:
            return None
        freed: list[_Card] = []
        waiting = iter(self._used)
        while not self._fits():
            card = next(waiting, None)
            if card is None:
                return None
            self._free(card)
            freed.append(card)
        for card in freed[:-1]:
            self._set(card, *self._used[card])
            if not self._fits():
                self._free(card)
        necessary = [card for card in freed if self._use(card)[1] < self._used[card][1]]
        return [self._lack(card, missing) for card in necessary]

    def _fits(self) -> bool:
        return bool(cycle.feasible(self._fleet, self._request, self._policy.local)[0])

    def _use(self, card: _Card) -> tuple[Column, int]:
        device_type, slot = card
        columns = self._fleet.cards[device_type]
        return columns.used[:, 0, slot].copy(), int(columns.users[0, slot])

    def _free(self, card: _Card) -> None:
        used, users = self._used[card]
        if self._instances and card[0] == GPU:
            indices = [self._fleet.cards[GPU].index[name] for name in self._instances]
            rest = used.copy()
            rest[indices] = 0
            self._set(card, rest, users - int(used[indices].sum()))
        else:
            self._set(card, np.zeros_like(used), 0)

    def _set(self, card: _Card, used: Column, users: int) -> None:
        device_type, slot = card
        self._fleet.set_card_use(device_type, 0, slot, used, users)

    def _lack(self, card: _Card, instances: dict[str, int]) -> LackingCard:
        """Return what a card lacks. `instances` are the instances still missing, less what earlier cards lack."""
        device_type, slot = card
        part, columns = self._parts[device_type], self._fleet.cards[device_type]
        minor, names = int(columns.minor[0, slot]), list(columns.index)
        if self._instances and device_type == GPU:
            taken = {name: min(int(self._used[card][0][columns.index[name]]), instances[name]) for name in instances}
            for name, amount in taken.items():
                instances[name] -= amount
            return {
                "type": device_type,
                "minor": minor,
                "amounts": {name: taken[name] for name in taken if taken[name]},
            }
        in_slices = REPLICAS in columns.index and self._used[card][0][columns.index[REPLICAS]] > 0
        if part.whole or part.exclusive or part.unit != AMOUNTS or in_slices:
            return {"type": device_type, "minor": minor, "amounts": {}}
        left = columns.total[:, 0, slot] - self._used[card][0]
        needs = {
            index: int(np.broadcast_to(need, columns.healthy.shape)[0, slot])
            for index, need in candidates.needs(columns, part, ALL)
        }
        missing = {names[index]: need - int(left[index]) for index, need in needs.items() if need > left[index]}
        return {"type": device_type, "minor": minor, "amounts": missing}
