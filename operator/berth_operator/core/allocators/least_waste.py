"""Choose the cards of a node on which a pod wastes least.

    waste = what is left of the card + 4 * growth of its residue

A card's residue is what stays unused of it even if the common shares fill it as well as they can. So of two cards the
tighter one is taken, unless that spoils it for the shares that typically come.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from berth_api.allocation import Grant
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_operator.core.allocators import best_fit, candidates
from berth_operator.core.cards import RESOURCES, Cards, Column
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import ALL, Rows

_HUNDREDTHS: Final = tuple(RESOURCES[GPU].index(name) for name in (GPU_CORE, GPU_MEMORY_RATIO))
SPOILT: Final = 4
"""How much a hundredth of residue counts beside one that is left."""
UNFIT: Final = (1 + 2 * SPOILT) * CARD
"""More than any card wastes that the part fits on."""


def choose(fleet: Fleet, row: int, request: PodRequest) -> tuple[Grant, ...]:
    """Give the cards for every part of the request; the row has passed every filter."""
    return tuple(grant for part in request.devices.parts for grant in _choose_part(fleet, row, request, part))


def _choose_part(fleet: Fleet, row: int, request: PodRequest, part: Part) -> tuple[Grant, ...]:
    if part.type != GPU:
        return best_fit.choose_part(fleet, row, request, part)
    cards = fleet.cards[part.type]
    rows = np.array([row])
    [wasted] = waste(fleet, request, part, left(cards, rows), rows)
    # The last key sorts first: what is wasted, then the minor.
    order = np.lexsort((cards.minor[row], wasted))
    return tuple(best_fit.grant(cards, row, int(slot), part) for slot in order[: part.count])


def left(cards: Cards, rows: Rows = ALL) -> Column:
    """Give the hundredths that are left of each healthy GPU, of core or of memory, whichever is less."""
    core, ratio = (cards.total[i, rows] - cards.used[i, rows] for i in _HUNDREDTHS)
    found: Column = np.maximum(np.minimum(core, ratio), 0) * cards.healthy[rows]
    return found


def need(cards: Cards, part: Part, rows: Rows = ALL) -> int | Column:
    """Give the hundredths of each GPU that a part takes: bytes are more of a small card than of a large one."""
    wanted = dict(part.amounts)
    hundredths = max(wanted.get(GPU_CORE, 0), wanted.get(GPU_MEMORY_RATIO, 0))
    if GPU_MEMORY not in wanted or GPU_MEMORY_RATIO in wanted:
        return hundredths
    memory = np.maximum(cards.total[cards.index[GPU_MEMORY], rows], 1)
    found: Column = np.maximum(hundredths, np.minimum(CARD * (wanted[GPU_MEMORY] / memory), CARD).astype(np.int64))
    return found


def waste(fleet: Fleet, request: PodRequest, part: Part, free: Column, rows: Rows = ALL) -> Column:
    """Give the hundredths that each GPU would waste, by what is left of it; UNFIT where the part does not fit."""
    spoilt = residues(fleet.workload.typical.common)
    rest = free - need(fleet.cards[part.type], part, rows)
    wasted: Column = rest + SPOILT * (spoilt[rest] - spoilt[free])
    return np.where(candidates.fitting(fleet, request, part, rows), wasted, UNFIT)


@lru_cache(maxsize=256)
def residues(common: tuple[int, ...]) -> Column:
    """Give for each number of hundredths how many stay unused when pods of these sizes fill it as well as they can.

    A whole card has none: it can be had as a whole. Where no size is common, nothing can be told. Numbers below 0, of
    cards on which a pod does not fit, count from the end and mean nothing.
    """
    residue = np.zeros(2 * CARD + 1, np.int64)
    if not common:
        return residue
    filled = [0] * CARD
    for free in range(1, CARD):
        filled[free] = max([filled[free - 1], *(filled[free - size] + size for size in common if size <= free)])
    residue[:CARD] = np.arange(CARD) - np.array(filled)
    return residue
