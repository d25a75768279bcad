"""Take the cards of a node on which a pod wastes least.

    waste = what is left of the card + 4 * growth of its residue

A card's residue is what stays unused of it even if the common shares fill it as well as they can. So of two cards the
tighter one is taken, unless that spoils it for the shares that typically come.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_operator.core.allocators import candidates
from berth_operator.core.fleet.cards import RESOURCES, Cards, Column, Indices
from berth_operator.core.fleet.column_cache import ALL, Rows, only, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest

_HUNDREDTHS: Final = tuple(RESOURCES[GPU].index(name) for name in (GPU_CORE, GPU_MEMORY_RATIO))
SPOILT: Final = 4
"""How much a hundredth of residue counts beside one that is left."""
UNFIT: Final = (2 + 2 * SPOILT) * CARD
"""More than any card wastes that the part fits on."""


def cost(fleet: Fleet, row: int, part: Part, slots: Indices) -> Column:
    """Return what the part would waste on each slot of a row."""
    rows = only(row)
    [wasted] = _wasted(fleet, part, left(fleet.cards[GPU], rows), rows)
    costs: Column = wasted[slots]
    return costs


def left(cards: Cards, rows: Rows = ALL) -> Column:
    """Return the hundredths that are left of each healthy GPU, of core or of memory, whichever is less."""
    core, ratio = (cards.left(index, rows) for index in _HUNDREDTHS)
    hundredths: Column = np.maximum(np.minimum(core, ratio), 0) * pick(cards.healthy, rows)
    return hundredths


def need(cards: Cards, part: Part, rows: Rows = ALL) -> int | Column:
    """Return the hundredths of each GPU that a part takes: bytes are more of a small card than of a large one."""
    requested = dict(part.amounts)
    hundredths = max(requested.get(GPU_CORE, 0), requested.get(GPU_MEMORY_RATIO, 0))
    if GPU_MEMORY not in requested or GPU_MEMORY_RATIO in requested:
        return hundredths
    memory = np.maximum(cards.total[cards.index[GPU_MEMORY], rows], 1)
    needed: Column = np.maximum(hundredths, np.minimum(CARD * (requested[GPU_MEMORY] / memory), CARD).astype(np.int64))
    return needed


def waste(fleet: Fleet, request: PodRequest, part: Part, free: Column, rows: Rows = ALL) -> Column:
    """Return the hundredths that each GPU would waste, by what is left of it; UNFIT where the part does not fit.

    A card whose slices cannot be had any more is wasted as a whole.
    """
    wasted = _wasted(fleet, part, free, rows)
    if (broken := candidates.broken_up(fleet.cards[GPU], part, rows)) is not None:
        wasted = wasted + CARD * broken
    return np.where(candidates.fitting(fleet, request, part, rows), wasted, UNFIT)


def _wasted(fleet: Fleet, part: Part, free: Column, rows: Rows) -> Column:
    spoilt = residues(fleet.workload.typical.common)
    rest = free - need(fleet.cards[part.type], part, rows)
    wasted: Column = rest + SPOILT * (spoilt[rest] - spoilt[free])
    return wasted


@lru_cache(maxsize=256)
def residues(common: tuple[int, ...]) -> Column:
    """Return for each number of hundredths how many stay unused when pods of these sizes fill it as well as they can.

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
