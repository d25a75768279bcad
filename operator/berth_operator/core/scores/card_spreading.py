"""Use the emptiest cards and nodes first, so that pods disturb each other least. The opposite of `card_packing`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU_MEMORY_RATIO
from berth_operator.core.allocators import candidates
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest

NAME: Final = "card-spreading"


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> npt.NDArray[np.float64]:
    """Prefer the emptiest card that fits a share, and the emptiest node for whole cards."""
    if not request.devices:
        return np.zeros(len(fleet.names))
    part = request.devices.parts[0]
    cards = fleet.cards[part.type]
    if part.whole:
        idle = (cards.healthy & (cards.users == 0)).sum(axis=1)
        spread: npt.NDArray[np.float64] = 100.0 * idle / np.maximum(cards.present.sum(axis=1), 1)
        return spread
    index = cards.index.get(GPU_MEMORY_RATIO, 0)
    free = np.where(candidates.fitting(fleet, request, part), cards.total[index] - cards.used[index], 0)
    emptiest: npt.NDArray[np.float64] = free.max(axis=1).astype(np.float64)
    return emptiest
