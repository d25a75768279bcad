"""Report the free capacity of cards by node and model: unused cards, and free amounts of the others.

Only cards count that can be allocated, on nodes that take pods (`card_amounts.serving`), as in `kubectl berth free`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from berth_operator.core.advice.card_amounts import offers, serving
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Cards, Column, Mask

Place = tuple[str, str, str]
"""Node, device type and model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The free capacity of a group of cards."""

    cards: int = 0
    """Number of cards that can be allocated, whether in use or not."""
    idle: int = 0
    """Number of these cards that no pod uses."""
    free: tuple[tuple[str, int], ...] = ()
    """(resource, free amount), summed over the cards."""


NOTHING_LEFT = Left()


def free_capacity(fleet: Fleet) -> dict[Place, Left]:
    """Return the free capacity by node, device type and model."""
    return {place: left for device_type in fleet.cards for place, left in _of_type(fleet, device_type)}


def by_model(left: Mapping[Place, Left]) -> dict[tuple[str, str], Left]:
    """Return the free capacity by device type and model, summed over all nodes."""
    total: dict[tuple[str, str], Left] = {}
    for (_, device_type, model), each in left.items():
        total[device_type, model] = _added(total.get((device_type, model), NOTHING_LEFT), each)
    return total


def unused(fleet: Fleet) -> set[str]:
    """Return the nodes that have cards, none of which a pod uses or may use."""
    having, in_use = np.zeros_like(fleet.present), np.zeros_like(fleet.present)
    for cards in fleet.cards.values():
        having |= cards.present.any(axis=1)
        in_use |= cards.users.any(axis=1) | (cards.unknown > 0)
    return {fleet.names[row] for row in np.flatnonzero(fleet.present & having & ~in_use)}


def _of_type(fleet: Fleet, device_type: str) -> Iterator[tuple[Place, Left]]:
    cards, models = fleet.cards[device_type], fleet.intern_table.models
    available = cards.present & serving(fleet, cards)[:, np.newaxis]
    offered = [(name, np.where(available, total, 0), free) for name, total, _, free in offers(cards)]
    usable: Mask = np.sum([total for _, total, _ in offered], axis=0) > 0
    for model in np.unique(cards.model[usable]).tolist():
        for row, left in _of_model(cards, usable & (cards.model == model), offered):
            yield (fleet.names[row], device_type, models[model]), left


def _of_model(
    cards: Cards, mask: Mask, offered_amounts: Sequence[tuple[str, Column, Column]]
) -> Iterator[tuple[int, Left]]:
    count, idle = mask.sum(axis=1), (mask & (cards.users == 0)).sum(axis=1)
    offered = {name: np.where(mask, total, 0).sum(axis=1) for name, total, _ in offered_amounts}
    free = {name: np.where(mask, left, 0).sum(axis=1) for name, _, left in offered_amounts}
    for row in np.flatnonzero(count).tolist():
        amounts = ((name, int(free[name][row])) for name in free if offered[name][row])
        yield row, Left(cards=int(count[row]), idle=int(idle[row]), free=tuple(amounts))


def _added(one: Left, other: Left) -> Left:
    free = dict(one.free)
    for name, amount in other.free:
        free[name] = free.get(name, 0) + amount
    return Left(cards=one.cards + other.cards, idle=one.idle + other.idle, free=tuple(free.items()))
