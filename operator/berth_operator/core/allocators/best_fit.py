"""Choose the cards of a node that are left with least, so that larger requests find room elsewhere; or with most."""

import numpy as np

from berth_api.allocation import Grant
from berth_api.request import Part
from berth_operator.core.allocators import candidates
from berth_operator.core.cards import Cards
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest


def choose(fleet: Fleet, row: int, request: PodRequest, *, spread: bool = False) -> tuple[Grant, ...]:
    """Give the cards for every part of the request; the row must have passed the devices filter.

    The fullest that have room come first, or the emptiest where pods shall spread.
    """
    parts = request.devices.parts
    return tuple(grant for part in parts for grant in choose_part(fleet, row, request, part, spread=spread))


def choose_part(fleet: Fleet, row: int, request: PodRequest, part: Part, *, spread: bool = False) -> tuple[Grant, ...]:
    """Give the cards for one part."""
    cards = fleet.cards[part.type]
    slots = np.flatnonzero(candidates.fitting(fleet, request, part, slice(row, row + 1)))
    # The last key sorts first: what is free, then the minor.
    left = _left(cards, row, slots)
    order = np.lexsort((cards.minor[row, slots], -left if spread else left))
    return tuple(grant(cards, row, int(slot), part) for slot in slots[order][: part.count])


def _left(cards: Cards, row: int, slots: np.ndarray) -> np.ndarray:
    """Give the free part of each slot's scarcest resource, in hundredths of the card."""
    total = np.maximum(cards.total[:, row, slots], 1)
    free: np.ndarray = ((total - cards.used[:, row, slots]) * 100 // total).min(axis=0)
    return free


def grant(cards: Cards, row: int, slot: int, part: Part) -> Grant:
    """Give a part's amounts on one card."""
    minor = int(cards.minor[row, slot])
    grant = Grant(type=part.type, minor=minor, amounts=part.amounts, id=cards.ids[row].get(minor, ""))
    return cards.completed(row, grant)
