"""Best fit: prefer the cards with the least left free, so that larger requests fit elsewhere. To spread, the most."""

import numpy as np

from berth_operator.core.fleet.nodes.cards import Cards, Column, Indices


def cost(cards: Cards, row: int, slots: Indices, *, spread: bool) -> Column:
    """Return the cost of each slot's card in hundredths: its free part, or the negative of it to spread pods."""
    # Resources after these (instances, replicas, virtual functions) are not amounts of the card.
    counted = len(cards.counted)
    total = np.maximum(cards.total[:counted, row, slots], 1)
    # Of the scarcest resource.
    left: Column = ((total - cards.used[:counted, row, slots]) * 100 // total).min(axis=0)
    return -left if spread else left
