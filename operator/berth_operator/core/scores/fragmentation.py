"""Waste as little as possible: keep what is left of cards, nodes and models usable for the pods that typically come.

    waste = what is left of the cards         and spoilt of them: allocators/least_waste.py
          + change of the node's imbalance    |free cpu - cpu that typically goes with its free cards|, in cards
          + change of its stranded cards      free cards * part of typical demand that needs more cpu than is free
          + size of the request * scarcity    of the card's model: its part of demand over its part of free cards

all in hundredths of a card. The second and third term keep the cards of a node from outliving its processor time, and
the other way round; the fourth keeps rare models for pods that accept no other. docs/placement.md explains it.

Where nodes waste the same, those with cards are filled one after the other, and those without evenly.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU
from berth_api.request import CARD
from berth_api.resources import CPU
from berth_operator.core.allocators import least_waste
from berth_operator.core.cards import Column, Mask
from berth_operator.core.fleet import Fleet
from berth_operator.core.request import PodRequest

NAME: Final = "fragmentation"
BEST: Final = 100.0
MOST_SCARCE: Final = 10.0
"""More than this a model's scarcity does not count."""

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts:
    """Give the row that wastes least 100, and each other one a point less for each hundredth that it wastes more."""
    lost = waste(fleet, request)
    least, most = lost[fits].min(initial=np.inf), lost[fits].max(initial=-np.inf)
    if least >= most:
        return np.full(len(fleet.names), BEST)
    # Other preferences are weighed against true hundredths, unless there are more of them than points.
    points: Amounts = BEST - np.clip(lost - least, 0.0, most - least) * min(1.0, BEST / (most - least))
    return points


def waste(fleet: Fleet, request: PodRequest) -> Amounts:
    """Give what the pod would waste on each row, in hundredths of a card; below 0 where it mends something."""
    cards = fleet.cards[GPU]
    left = least_waste.left(cards)
    part = next((each for each in request.devices.parts if each.type == GPU), None)
    if part is None:
        return _mismatch(fleet, request, left, np.zeros(len(fleet.names))) + _tie(fleet, left)
    need = least_waste.need(cards, part)
    wasted = least_waste.waste(fleet, request, part, left, need)
    rows, slots = np.arange(len(wasted)), wasted.argmin(axis=1)
    taken = part.count * need[rows, slots]
    lost: Amounts = part.count * wasted[rows, slots] + _mismatch(fleet, request, left, taken) + _tie(fleet, left)
    if fleet.workload.constrained:
        lost += np.rint(taken * _scarcity(fleet, left)[cards.model[rows, slots]])
    return lost


def _mismatch(fleet: Fleet, request: PodRequest, left: Column, taken: Column | Amounts) -> Amounts:
    """Give by how much each node's free cpu and free cards match less, in hundredths of a card."""
    per_hundredth = fleet.workload.cpu_per_card / CARD
    if not per_hundredth:
        return np.zeros(len(fleet.names))
    free, cards = fleet.left(CPU), left.sum(axis=1)
    rest = free - dict(request.resources).get(CPU, 0)
    imbalance = np.abs(rest / per_hundredth - (cards - taken)) - np.abs(free / per_hundredth - cards)
    stranded = (cards - taken) * fleet.workload.starved(rest) - cards * fleet.workload.starved(free)
    # Whole hundredths, so that equal nodes are equal whatever the rounding of fractions.
    change: Amounts = np.rint(imbalance + stranded)
    return change


def _scarcity(fleet: Fleet, left: Column) -> Amounts:
    """Give each model's part of what is asked for over its part of what is free."""
    free = np.bincount(fleet.cards[GPU].model.ravel(), weights=left.ravel(), minlength=fleet.models)
    scarcity = np.zeros_like(free)
    for model, share in fleet.workload.demand.items():
        accepted = fleet.accepted_models(model)
        scarcity[: len(accepted)][accepted] += share * free.sum() / max(free[: len(accepted)][accepted].sum(), CARD)
    return np.minimum(scarcity, MOST_SCARCE)


def _tie(fleet: Fleet, left: Column) -> Amounts:
    """Give less than a hundredth: nodes with cards are filled one after the other, the others evenly."""
    cpu = _idle(fleet.left(CPU), fleet.allocatable[fleet.resource(CPU)])
    cards = _idle(left.sum(axis=1), CARD * fleet.cards[GPU].healthy.sum(axis=1))
    return 0.9 * np.where(fleet.has_device, (cpu + cards) / 2.0, 1.0 - cpu)


def _idle(free: Column, total: Column) -> Amounts:
    idle: Amounts = np.clip(free / np.maximum(total, 1), 0.0, 1.0)
    return idle
