"""Take the cards that are left with least, so that larger requests find room elsewhere; or with most."""

import numpy as np

from berth_operator.core.fleet.cards import Cards, Column, Indices


def cost(cards: Cards, row: int, slots: Indices, *, spread: bool) -> Column:
    """Return for each slot what its card costs: its free part, or the taken one where pods shall spread."""
    left = _left(cards, row, slots)
    return -left if spread else left


def _left(cards: Cards, row: int, slots: Indices) -> Column:
    """Return the free part of each slot's scarcest resource, in hundredths of the card."""
    # Resources after these (instances, replicas, virtual functions) are not amounts of the card.
    counted = len(cards.counted)
    total = np.maximum(cards.total[:counted, row, slots], 1)
    free: Column = ((total - cards.used[:counted, row, slots]) * 100 // total).min(axis=0)
    return free
