"""Use the emptiest cards and nodes first, so that pods disturb each other least. The opposite of `card_packing`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU_MEMORY_RATIO
from berth_api.request import Part
from berth_operator.core import allocators
from berth_operator.core.allocators import candidates
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows

NAME: Final = "card-spreading"
PIECES: Final = "pieces"
"""Tells what is kept of cards that are given out in pieces from the rest."""

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> Amounts | None:
    """Prefer the emptiest card that fits a share, and the emptiest node for whole cards."""
    if not request.devices:
        return None
    part = request.devices.parts[0]
    if allocators.in_pieces(fleet, part):
        key = (NAME, PIECES, part, request.model)
        return fleet.rowwise.column(key, lambda rows: _emptiest_in_pieces(fleet, request, part, rows))
    if part.whole:
        return fleet.rowwise.column((NAME, part.type), lambda rows: _emptiest_node(fleet, part, rows))
    return fleet.rowwise.column((NAME, part, request.model), lambda rows: _emptiest_card(fleet, request, part, rows))


def _emptiest_in_pieces(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Amounts:
    unused = allocators.pieces_unused(fleet, request, part, rows)
    spread = np.where(allocators.pieces_left(fleet, request, part, rows) > 0, unused, 0).max(axis=1)
    return np.where(allocators.divided(fleet, part, rows), spread, _emptiest_node(fleet, part, rows))


def _emptiest_node(fleet: Fleet, part: Part, rows: Rows) -> Amounts:
    cards = fleet.cards[part.type]
    idle = (cards.healthy[rows] & (cards.users[rows] == 0)).sum(axis=1)
    spread: Amounts = 100.0 * idle / np.maximum(cards.present[rows].sum(axis=1), 1)
    return spread


def _emptiest_card(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Amounts:
    cards = fleet.cards[part.type]
    index = cards.index.get(GPU_MEMORY_RATIO, 0)
    free = cards.total[index, rows] - cards.used[index, rows]
    emptiest: Amounts = np.where(candidates.fitting(fleet, request, part, rows), free, 0).max(axis=1).astype(np.float64)
    return emptiest
