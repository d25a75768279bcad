"""Use up cards and nodes that are in use already, so that whole cards and whole nodes stay free."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.request import Part
from berth_operator.core import allocators, usage
from berth_operator.core.cards import Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest
from berth_operator.core.rowwise import Rows

NAME: Final = "card-packing"
PIECES: Final = "pieces"
"""Tells what is kept of cards that are given out in pieces from the rest."""

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, _fits: Mask) -> Amounts | None:
    """Prefer the cards that shares leave fullest, and the nodes that whole cards leave fullest."""
    if not request.devices:
        return None
    key, part = (request.devices.parts, request.model), request.devices.parts[0]
    if allocators.in_pieces(fleet, part):
        return fleet.rowwise.column((NAME, PIECES, *key), lambda rows: _of_pieces(fleet, request, part, rows))
    return fleet.rowwise.column((NAME, *key), lambda rows: _of_rows(fleet, request, rows))


def _of_pieces(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> Amounts:
    packed = 100.0 - allocators.pieces_unused(fleet, request, part, rows).min(axis=1)
    return np.where(allocators.divided(fleet, part, rows), packed, _of_rows(fleet, request, rows))


def _of_rows(fleet: Fleet, request: PodRequest, rows: Rows) -> Amounts:
    return 100.0 - usage.left_of_cards(fleet, request, rows, most=False)
