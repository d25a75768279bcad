"""What cards offer now, and what is taken of it, for people to look at: decisions have their own questions.

A card that cannot be handed out offers nothing, but for the instances of a card in MIG mode.
"""

from collections.abc import Iterator

import numpy as np

from berth_api import mig
from berth_api.allocation import FUNCTIONS
from berth_operator.core.fleet.cards import Cards, Column
from berth_operator.core.fleet.column_cache import ALL, Rows


def offers(cards: Cards, rows: Rows = ALL) -> Iterator[tuple[str, Column, Column]]:
    """Return for each resource what every card offers and what is taken: shape (rows, slots)."""
    for name, index in cards.index.items():
        if name != FUNCTIONS:
            counts = cards.present[rows] if mig.is_resource(name) else cards.healthy[rows]
            yield name, np.where(counts, cards.total[index, rows], 0), cards.used[index, rows]
