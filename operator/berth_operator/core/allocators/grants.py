"""Create the grants of a part on chosen cards."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from berth_api.allocation import Grant
from berth_api.request import Part
from berth_operator.core.fleet.nodes.cards import Cards, Column, Indices


def cheapest(
    cards: Cards,
    row: int,
    part: Part,
    slots: Indices,
    cost: Column,
    *,
    near: Collection[int],
    loads: Sequence[int] = (),
) -> Sequence[int]:
    """Return the part's number of slots with the lowest cost. Cards on PCIe switches in `near` come first.

    Among cards with equal cost, the least loaded cards come first. `loads` has the load of each slot of the row.
    """
    # The last key sorts first.
    keys = [cards.minor[row, slots], cost]
    if loads:
        keys.insert(1, np.array(loads)[slots])
    if near:
        keys.append(~np.isin(cards.pcie[row, slots], tuple(near)))
    chosen: list[int] = slots[np.lexsort(keys)][: part.count].tolist()
    return chosen


def of_slots(cards: Cards, row: int, part: Part, slots: Iterable[int]) -> tuple[Grant, ...]:
    """Return one grant with the part's amounts for each of these slots."""
    return tuple(of_card(cards, row, part, slot) for slot in slots)


def of_card(cards: Cards, row: int, part: Part, slot: int) -> Grant:
    """Return a grant with the part's amounts for the card in one slot."""
    minor = int(cards.minor[row, slot])
    name = cards.ids[row].get(minor, "")
    grant = Grant(type=part.type, minor=minor, amounts=part.amounts, id=name, exclusive=part.exclusive)
    return cards.filled(row, grant)
