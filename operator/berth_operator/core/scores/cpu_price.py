"""The price of cpu: the cost of cpu that a pod leaves free on a node with cards, while less cpu than cards is left.

Where cpu is short, pods that need much cpu find it only in large pieces. So a pod goes where it leaves least cpu. Where
cpu is plentiful, this would only fill nodes that pods with several cards need, so that the price is 0.

The price is lower where no card is free, because only pods without cards can use this cpu. But it is not 0: if pods
without cards do not find much cpu there, they take it from nodes that large pods wait for.

    shortage = free part of all cards / free part of the cpu of nodes with cards

Both parts follow from what is charged now, nominations and promised places included. So pending pods and pods that have
ended do not change the price, and a new leader computes the same price. Cordoned nodes and nodes without healthy cards
have no part in it.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU
from berth_api.request import CARD
from berth_api.resources import CPU
from berth_operator.core.allocators import least_waste
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column

USED: Final = 0.3
"""The part of all cards from whose use on cpu has a price. If fewer are used, what runs does not show what will come:
for example, the pods of DaemonSets use cpu on nodes whose cards are all free."""
SLOPE: Final = 10.0
"""How fast the price rises with a shortage above 1."""
MAX: Final = 0.5
"""Upper limit of the price. At 1, free cpu would cost as much as the cards that it typically goes with."""
WITHOUT_FREE_CARDS: Final = 0.5
"""The part of the price for cpu on nodes whose cards are all taken before the pod comes."""
MAX_ROWS: Final = 32
"""Maximum number of changed rows that are computed one by one: about as long as all rows of 1,000 nodes."""

Amounts = npt.NDArray[np.float64]


def cost(fleet: Fleet, cpu: int) -> Amounts | None:
    """Return what the cpu that a pod leaves on each row costs, in hundredths of a card; None if cpu is not short.

    Args:
        fleet: all nodes.
        cpu: the thousandths that the pod requests.
    """
    if not (cpu_per_card := fleet.pod_mix.typical.cpu_per_card):
        return None
    usage = fleet.column_cache.of_nodes(__name__, lambda: Usage(fleet))
    if (shortage := usage.shortage(fleet)) <= 1.0:
        return None
    price = min(MAX, SLOPE * (shortage - 1.0)) * CARD / cpu_per_card
    left = np.maximum(usage.free_cpu - cpu, 0)
    costs: Amounts = np.rint(np.where(usage.free_cards > 0, price, WITHOUT_FREE_CARDS * price) * left)
    return costs


class Usage:
    """What is free on the nodes with healthy cards that are not cordoned, until a node or an inventory changes.

    Free amounts of rows and their sums follow the charges. Most decisions read neither: as long as the rows that have
    changed cannot make cpu short, they are not computed.
    """

    free_cards: Column
    """Row -> free hundredths of healthy cards."""
    free_cpu: Column
    """Row -> free thousandths of a cpu; 0 on cordoned nodes and on nodes without healthy cards."""
    all_free_cards: int
    all_free_cpu: int
    _seen: int
    """The number of changes that the free amounts include."""

    def __init__(self, fleet: Fleet) -> None:
        """Read the nodes and cards, and compute what is free."""
        cards = fleet.cards[GPU]
        healthy = cards.healthy & (fleet.present & ~fleet.cordoned)[:, np.newaxis]
        self._core, self._ratio = (cards.total[resource] * healthy for resource in least_waste.HUNDREDTHS)
        of_rows = np.minimum(self._core, self._ratio).sum(axis=1)
        self._cpu: Column = fleet.total(CPU) * (of_rows > 0)
        self.cards, self.cpu = int(of_rows.sum()), int(self._cpu.sum())
        """All hundredths of cards, and all thousandths of a cpu."""
        self._most_cards, self._most_cpu = int(of_rows.max(initial=0)), int(self._cpu.max(initial=0))
        """The most of one row."""
        self._compute(fleet)

    def shortage(self, fleet: Fleet) -> float:
        """Return the free part of the cards over the free part of the cpu; 0 if cpu has no price."""
        if not self._may_be_short(fleet.column_cache.changes - self._seen):
            return 0.0
        self.update(fleet)
        if not self._may_be_short(changes=0):
            return 0.0
        return self.all_free_cards * self.cpu / (self.cards * max(self.all_free_cpu, 1))

    def _may_be_short(self, changes: int) -> bool:
        """Return whether cpu may have a price after so many changes since the last update, each of one row."""
        cards, cpu = changes * self._most_cards, changes * self._most_cpu
        if self.all_free_cards - cards > (1.0 - USED) * self.cards:
            return False
        return (self.all_free_cards + cards) * self.cpu > self.cards * (self.all_free_cpu - cpu)

    def update(self, fleet: Fleet) -> None:
        """Compute the rows that changed, and change the sums by the difference."""
        moved = fleet.column_cache.moved_since(self._seen)
        rows = None if moved is None else {*moved}
        if rows is None or len(rows) > MAX_ROWS:
            self._compute(fleet)
            return
        for row in rows:
            cards, cpu = self._free_of(fleet, row)
            self.all_free_cards += cards - int(self.free_cards[row])
            self.all_free_cpu += cpu - int(self.free_cpu[row])
            self.free_cards[row], self.free_cpu[row] = cards, cpu
        self._seen = fleet.column_cache.changes

    def _compute(self, fleet: Fleet) -> None:
        cards, slots = fleet.cards[GPU], self._core.shape[1]
        # Slots that were added since are of cards that no Device lists.
        core, ratio = (cards.used[resource, :, :slots] for resource in least_waste.HUNDREDTHS)
        free = np.maximum(np.minimum(self._core - core, self._ratio - ratio), 0)
        self.free_cards = free.sum(axis=1)
        self.free_cpu = np.maximum(self._cpu - fleet.requested[fleet.resources[CPU]], 0)
        self.all_free_cards, self.all_free_cpu = int(self.free_cards.sum()), int(self.free_cpu.sum())
        self._seen = fleet.column_cache.changes

    def _free_of(self, fleet: Fleet, row: int) -> tuple[int, int]:
        """Return the free cards and cpu of one row, with Python's numbers: for a few cards, arrays take longer."""
        used, cards = fleet.cards[GPU].used, 0
        core, ratio = least_waste.HUNDREDTHS
        amounts = zip(
            self._core[row].tolist(),
            used[core, row].tolist(),
            self._ratio[row].tolist(),
            used[ratio, row].tolist(),
            strict=False,
        )
        for all_core, used_core, all_ratio, used_ratio in amounts:
            cards += max(min(all_core - used_core, all_ratio - used_ratio), 0)
        return cards, max(int(self._cpu[row] - fleet.requested[fleet.resources[CPU], row]), 0)
