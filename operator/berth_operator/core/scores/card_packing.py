"""Use up cards and nodes that are in use already, so that whole cards and whole nodes stay free."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU_MEMORY_RATIO
from berth_api.request import CARD
from berth_operator.core.allocators import candidates
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest

NAME: Final = "card-packing"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64]:
    """Prefer the fullest card that fits a share, and the fullest node for whole cards."""
    if not request.devices:
        return np.zeros(len(fleet.names))
    part = request.devices.parts[0]
    cards = fleet.cards[part.type]
    if part.whole:
        idle = (cards.healthy & (cards.users == 0)).sum(axis=1)
        packed: npt.NDArray[np.float64] = 100.0 * (1.0 - idle / np.maximum(cards.present.sum(axis=1), 1))
        return packed
    index = cards.index.get(GPU_MEMORY_RATIO, 0)
    free = np.where(candidates.fitting(fleet, request, part), cards.total[index] - cards.used[index], CARD)
    fullest: npt.NDArray[np.float64] = 100.0 - free.min(axis=1)
    return fullest
