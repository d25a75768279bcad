"""What cards offer, what is used and what is free, for reports. Decisions read the columns directly.

A card that cannot be allocated offers nothing, except the instances of a card in MIG mode.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from berth_api.allocation import FUNCTIONS, REPLICAS, mig
from berth_operator.core.allocators.subdevices import Numbers, replicas_left
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import SHARED, Cards, Column, Mask


class Offer(NamedTuple):
    """One resource of all cards; columns of shape (rows, slots)."""

    name: str
    total: Column
    used: Column
    free: Column


def offers(cards: Cards, rows: Rows = ALL) -> Iterator[Offer]:
    """Yield what every card offers of each resource."""
    total: dict[str, Column] = {}
    used: dict[str, Column] = {}
    for name, index in cards.index.items():
        if name != FUNCTIONS:
            counts = cards.present[rows] if mig.is_resource(name) else cards.healthy[rows]
            total[name], used[name] = np.where(counts, cards.total[index, rows], 0), cards.used[index, rows]
    free = free_amounts(total, used, cards.users[rows], withheld=cards.withheld[rows])
    located = (cards.unlocated[rows] == 0)[:, np.newaxis]
    for name, amount in free.items():
        yield Offer(name, total[name], used[name], np.where(located, amount, 0) if mig.is_resource(name) else amount)


def serving(fleet: Fleet, cards: Cards) -> Mask:
    """Return the rows on which cards of one type are allocated: the node is in service, and its card holders are known.

    A pod may tolerate that a node is cordoned or not ready. No report counts free cards there nevertheless.
    """
    in_service = fleet.present & fleet.ready & ~fleet.cordoned & fleet.has_device & fleet.fresh
    mask: Mask = in_service & (cards.unknown == 0)
    return mask


def free_amounts(
    total: Mapping[str, Numbers], used: Mapping[str, Numbers], users: Numbers, *, withheld: npt.NDArray[np.bool_] | bool
) -> dict[str, Column]:
    """Return what a decision can allocate of each resource, for columns of cards or for one card.

    A card is used in one mode at a time. A card that is held whole or shared has no free slice. A card whose slices or
    instances are held has no free share. `withheld` is whether kubelet cannot allocate from the card, so no slice or
    instance is free.
    """
    free = {name: np.maximum(amount - used.get(name, 0), 0) for name, amount in total.items()}
    instances = [name for name in {*total, *used} if mig.is_resource(name)]
    if not instances and REPLICAS not in {*total, *used}:
        return free
    none: Numbers = users * 0
    replicas, slices = total.get(REPLICAS, none), used.get(REPLICAS, none)
    of_instances = sum((used.get(name, none) for name in instances), start=none)
    shared = {name: (total[name], used.get(name, none)) for name in SHARED if name in total}
    left = np.where(withheld, 0, replicas_left(replicas, slices, users, shared.values()))
    in_subdevices, in_instances = slices + of_instances > 0, (users == of_instances) & ~np.bool_(withheld)
    return {
        **free,
        **{name: np.where(in_subdevices, 0, free[name]) for name in shared},
        **{name: np.where(in_instances, free[name], 0) for name in instances if name in total},
        **({REPLICAS: left} if REPLICAS in total else {}),
    }
