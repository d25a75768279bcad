"""Use the emptiest cards and nodes first, so that pods disturb each other least. The opposite of `card_packing`."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.request import Part
from berth_operator.core import allocators, usage
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows

NAME: Final = "card-spreading"
PIECES: Final = "pieces"
"""Tells what is kept of cards that are given out in pieces from the rest."""

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> Amounts | None:
    """Prefer the cards that shares leave emptiest, and the nodes that whole cards leave emptiest."""
    if not request.devices:
        return None
    key, part = (request.devices.parts, request.model), request.devices.parts[0]
    if allocators.in_pieces(fleet, part):
        return fleet.rowwise.column((NAME, PIECES, *key), lambda rows: _of_pieces(fleet, request, part, rows))
    return fleet.rowwise.column((NAME, *key), lambda rows: _of_rows(fleet, request, rows))


def _of_pieces(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Amounts:
    unused = allocators.pieces_unused(fleet, request, part, rows)
    spread = np.where(allocators.pieces_left(fleet, request, part, rows) > 0, unused, 0).max(axis=1)
    return np.where(allocators.divided(fleet, part, rows), spread, _of_rows(fleet, request, rows))


def _of_rows(fleet: Fleet, request: PodRequest, rows: Rows) -> Amounts:
    return usage.left_of_cards(fleet, request, rows, most=True)
