"""Least waste: prefer the cards of a node on which a pod wastes least.

    waste = what is left of the card + 4 * growth of its residue

A card's residue is what stays unused even if pods of the common sizes fill the card as well as possible. So the tighter
of two cards is preferred, unless its remainder no longer fits the common sizes.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_operator.core.allocators import candidates
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, only, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import RESOURCES, Cards, Column, Indices
from berth_operator.core.values.request import PodRequest

HUNDREDTHS: Final = tuple(RESOURCES[GPU].index(name) for name in (GPU_CORE, GPU_MEMORY_RATIO))
"""Indices of a GPU's core and memory in hundredths."""
SPOILT: Final = 4
"""The weight of a hundredth of residue, relative to a hundredth that is left."""
UNFIT: Final = (2 + 2 * SPOILT) * CARD
"""The waste of a card on which the part does not fit: more than the waste of any card on which it fits."""


def cost(fleet: Fleet, row: int, part: Part, slots: Indices) -> Column:
    """Return the hundredths that the part would waste on each of these slots of a row."""
    rows = only(row)
    [wasted] = _wasted(fleet, part, left(fleet.cards[GPU], rows), rows)
    costs: Column = wasted[slots]
    return costs


def left(cards: Cards, rows: Rows = ALL) -> Column:
    """Return the free hundredths of each healthy GPU: the smaller of core and memory."""
    core, ratio = (cards.left(index, rows) for index in HUNDREDTHS)
    hundredths: Column = np.maximum(np.minimum(core, ratio), 0) * pick(cards.healthy, rows)
    return hundredths


def need(cards: Cards, part: Part, rows: Rows = ALL) -> int | Column:
    """Return the hundredths of a GPU that a part takes; for memory in bytes they depend on the card's memory."""
    requested = dict(part.amounts)
    hundredths = max(requested.get(GPU_CORE, 0), requested.get(GPU_MEMORY_RATIO, 0))
    if GPU_MEMORY not in requested or GPU_MEMORY_RATIO in requested:
        return hundredths
    memory = np.maximum(cards.total[cards.index[GPU_MEMORY], rows], 1)
    needed: Column = np.maximum(hundredths, np.minimum(CARD * (requested[GPU_MEMORY] / memory), CARD).astype(np.int64))
    return needed


def waste(fleet: Fleet, request: PodRequest, part: Part, free: Column, rows: Rows = ALL) -> Column:
    """Return the hundredths that each GPU would waste, given its `free` amounts; UNFIT if the part does not fit.

    A card whose slices become unavailable is wasted as a whole.
    """
    wasted = _wasted(fleet, part, free, rows)
    if (lost := candidates.slices_lost(fleet.cards[GPU], part, rows)) is not None:
        wasted = wasted + CARD * lost
    return np.where(candidates.fitting(fleet, request, part, rows), wasted, UNFIT)


def _wasted(fleet: Fleet, part: Part, free: Column, rows: Rows) -> Column:
    spoilt = residues(fleet.pod_mix.typical.common)
    rest = free - need(fleet.cards[part.type], part, rows)
    wasted: Column = rest + SPOILT * (spoilt[rest] - spoilt[free])
    return wasted


@lru_cache(maxsize=256)
def residues(common: tuple[int, ...]) -> Column:
    """Return, for each number of free hundredths, how many stay unused if pods of these sizes fill it best.

    The residue of a whole card is 0, because a pod can request a whole card. Without common sizes every residue is 0.
    Negative indices, of cards on which a pod does not fit, read the padding at the end.
    """
    residue = np.zeros(2 * CARD + 1, np.int64)
    if not common:
        return residue
    filled = [0] * CARD
    for free in range(1, CARD):
        filled[free] = max([filled[free - 1], *(filled[free - size] + size for size in common if size <= free)])
    residue[:CARD] = np.arange(CARD) - np.array(filled)
    return residue
