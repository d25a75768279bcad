"""Use up cards and nodes that are in use already, so that whole cards and whole nodes stay free."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_operator.core import allocators
from berth_operator.core.allocators import candidates
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows

NAME: Final = "card-packing"
PIECES: Final = "pieces"
"""Tells what is kept of cards that are given out in pieces from the rest."""

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> Amounts | None:
    """Prefer the fullest card that fits a share, and the fullest node for whole cards."""
    if not request.devices:
        return None
    part = request.devices.parts[0]
    if allocators.in_pieces(fleet, part):
        key = (NAME, PIECES, part, request.model)
        return fleet.rowwise.column(key, lambda rows: _fullest_in_pieces(fleet, request, part, rows))
    if part.whole:
        return fleet.rowwise.column((NAME, part.type), lambda rows: _fullest_node(fleet, part, rows))
    return fleet.rowwise.column((NAME, part, request.model), lambda rows: _fullest_card(fleet, request, part, rows))


def _fullest_in_pieces(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Amounts:
    packed = 100.0 - allocators.pieces_unused(fleet, request, part, rows).min(axis=1)
    return np.where(allocators.divided(fleet, part, rows), packed, _fullest_node(fleet, part, rows))


def _fullest_node(fleet: Fleet, part: Part, rows: Rows) -> Amounts:
    cards = fleet.cards[part.type]
    idle = (cards.healthy[rows] & (cards.users[rows] == 0)).sum(axis=1)
    packed: Amounts = 100.0 * (1.0 - idle / np.maximum(cards.present[rows].sum(axis=1), 1))
    return packed


def _fullest_card(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Amounts:
    cards = fleet.cards[part.type]
    index = cards.index.get(GPU_MEMORY_RATIO, 0)
    free = cards.total[index, rows] - cards.used[index, rows]
    least = np.where(candidates.fitting(fleet, request, part, rows), free, CARD).min(axis=1)
    fullest: Amounts = 100.0 - least
    return fullest
