"""Virtual functions: a part may request one on each of its cards, from a group with matching labels."""

import numpy as np

from berth_api.allocation import Function
from berth_api.request import Part
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask


def free(fleet: Fleet, part: Part, rows: Rows = ALL) -> Mask:
    """Return the cards with a free virtual function for the part; all cards if the part requests none."""
    cards = fleet.cards[part.type]
    if part.functions is None:
        return np.ones_like(cards.present[rows])
    matching = fleet.intern_table.offering(part.functions)
    mask: Mask = (cards.spare[rows] & matching[cards.functions[rows]]) != 0
    return mask


def offered(fleet: Fleet, part: Part) -> Mask:
    """Return the cards with a virtual function for the part, free or not; all cards if the part requests none."""
    cards = fleet.cards[part.type]
    if part.functions is None:
        return np.ones_like(cards.present)
    mask: Mask = fleet.intern_table.offering(part.functions)[cards.functions] != 0
    return mask


def lowest(fleet: Fleet, row: int, slot: int, part: Part) -> tuple[Function, ...]:
    """Return the free virtual function with the lowest bus id, compared as text; empty if the part requests none."""
    if part.functions is None:
        return ()
    cards = fleet.cards[part.type]
    index = int(cards.functions[row, slot])
    matching = int(fleet.intern_table.offering(part.functions)[index])
    groups = (group for group in range(matching.bit_length()) if matching >> group & 1)
    free_functions = [
        function for group in groups for function in cards.free_functions(row, slot, fleet.intern_table, group)
    ]
    return (min(free_functions, key=lambda function: (function.bus_id, function.minor)),)
