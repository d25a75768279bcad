"""What cards offer and what is used of it, for reports; decisions read the columns directly.

A card that cannot be allocated offers nothing, except the instances of a card in MIG mode.
"""

from collections.abc import Iterator

import numpy as np

from berth_api.allocation import FUNCTIONS, mig
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.nodes.cards import Cards, Column


def offers(cards: Cards, rows: Rows = ALL) -> Iterator[tuple[str, Column, Column]]:
    """Yield each resource with what every card offers and what is used of it, both of shape (rows, slots)."""
    for name, index in cards.index.items():
        if name != FUNCTIONS:
            counts = cards.present[rows] if mig.is_resource(name) else cards.healthy[rows]
            yield name, np.where(counts, cards.total[index, rows], 0), cards.used[index, rows]
