"""The price of cpu: what a processor that stays free on a node costs, because cpu is likely to run out before cards.

Where cpu is short, pods that need much cpu find it only in large pieces. So what a pod leaves of a node's cpu is wasted
like what it leaves of a card, and the pod goes where least is left. Where cpu is plentiful, this would only fill nodes
that pods with several cards need, so that the price is 0.

    shortage = cpu that the typical mix of pods will need for the free cards / free cpu

Pods without cards use the cpu of nodes without cards first. Only what exceeds it counts for the nodes with cards.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU
from berth_api.request import CARD
from berth_api.resources import CPU
from berth_operator.core.allocators import least_waste
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet

START: Final = 0.965
"""The shortage from which cpu has a price. It is below 1, because some cpu stays unused on each node."""
SLOPE: Final = 2.0
"""How fast the price rises with the shortage."""
MAX: Final = 0.3
"""Upper limit of the price. At 1, free cpu would cost as much as the cards that it typically goes with."""

Amounts = npt.NDArray[np.float64]


def price(fleet: Fleet) -> float:
    """Return the hundredths of a card that a free thousandth of a cpu costs."""
    typical = fleet.pod_mix.typical
    if not typical.cpu_per_card:
        return 0.0
    free = fleet.column_cache.column((__name__,), lambda rows: _free(fleet, rows))
    totals = fleet.column_cache.of_nodes((__name__,), lambda: _masks(fleet)) @ free
    cards, with_cards = totals[0, 0], totals[1, 1]
    elsewhere = max(0.0, cards * fleet.pod_mix.cpu_without_cards - (totals[0, 1] - with_cards))
    shortage = (cards * typical.cpu_per_card + elsewhere) / max(with_cards, 1.0)
    return float(min(MAX, max(0.0, SLOPE * (shortage - START))) * CARD / typical.cpu_per_card)


def _masks(fleet: Fleet) -> Amounts:
    """Return 1 for each row that is present, and for each of them that has cards: shape (2, rows)."""
    return np.array([fleet.present, fleet.present & fleet.has_device], np.float64)


def _free(fleet: Fleet, rows: Rows) -> Amounts:
    """Return each row's free cards and free cpu: shape (rows, 2)."""
    cpu = fleet.left(CPU, rows)
    free = np.empty((len(cpu), 2))
    free[:, 0] = least_waste.left(fleet.cards[GPU], rows).sum(axis=1) / CARD
    free[:, 1] = np.maximum(cpu, 0)
    return free
