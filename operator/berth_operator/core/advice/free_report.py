"""Report the free capacity of cards by node and model: unused cards, and free amounts of the others.

Only cards count that can be allocated, on nodes that take pods (`card_amounts.serving`), as in `kubectl berth free`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from berth_operator.core.advice.card_amounts import offers, serving
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask

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
    free_by_place: dict[Place, Left] = {}
    for device_type, cards in fleet.cards.items():
        available = cards.present & serving(fleet, cards)[:, np.newaxis]
        offered = [(name, np.where(available, total, 0), free) for name, total, _, free in offers(cards)]
        usable: Mask = np.sum([total for _, total, _ in offered], axis=0) > 0
        for model in np.unique(cards.model[usable]).tolist():
            mask, name = usable & (cards.model == model), fleet.intern_table.models[model]
            count, idle = mask.sum(axis=1), (mask & (cards.users == 0)).sum(axis=1)
            of_model = [
                (resource, np.where(mask, total, 0).sum(axis=1), np.where(mask, free, 0).sum(axis=1))
                for resource, total, free in offered
            ]
            for row in np.flatnonzero(count).tolist():
                amounts = tuple((resource, int(free[row])) for resource, total, free in of_model if total[row])
                left = Left(cards=int(count[row]), idle=int(idle[row]), free=amounts)
                free_by_place[fleet.names[row], device_type, name] = left
    return free_by_place


def by_model(left: Mapping[Place, Left]) -> dict[tuple[str, str], Left]:
    """Return the free capacity by device type and model, summed over all nodes."""
    total: dict[tuple[str, str], Left] = {}
    for (_, device_type, model), on_node in left.items():
        before = total.get((device_type, model), NOTHING_LEFT)
        free = dict(before.free)
        for name, amount in on_node.free:
            free[name] = free.get(name, 0) + amount
        total[device_type, model] = Left(
            cards=before.cards + on_node.cards, idle=before.idle + on_node.idle, free=tuple(free.items())
        )
    return total


def unused(fleet: Fleet) -> set[str]:
    """Return the nodes with cards on which no pod uses or may use a card."""
    having, in_use = np.zeros_like(fleet.present), np.zeros_like(fleet.present)
    for cards in fleet.cards.values():
        having |= cards.present.any(axis=1)
        in_use |= cards.users.any(axis=1) | (cards.unknown > 0)
    return {fleet.names[row] for row in np.flatnonzero(fleet.present & having & ~in_use)}
