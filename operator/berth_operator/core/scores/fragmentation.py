"""Waste as little as possible: keep what is left of cards, nodes and models usable for the pods that typically come.

    waste = what is left of the card          the tightest card that fits strands least
          + change of the node's imbalance    |free cpu - cpu that typically goes with its free cards|, in cards
          + change of its stranded cards      free cards * part of typical pods that need more cpu than is free
          + size of the request * scarcity    of the card's model: its part of demand over its part of free cards

all in hundredths of a card. The second and third term keep the cards of a node from outliving its processor time, and
the other way round; the fourth keeps rare models for pods that accept no other. docs/placement.md explains it.

Where nodes waste the same, those with cards are filled one after the other, and those without evenly.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_api.resources import CPU
from berth_operator.core.allocators import candidates
from berth_operator.core.cards import Cards, Column, Mask
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
    left = _left(fleet.cards[GPU])
    part = next((each for each in request.devices.parts if each.type == GPU), None)
    if part is None:
        return _mismatch(fleet, request, left, np.zeros(len(fleet.names))) + _tie(fleet, left)
    need = _need(fleet.cards[GPU], part)
    rest = np.where(candidates.fitting(fleet, request, part), left - need, CARD)
    slot = rest.argmin(axis=1)
    taken = part.count * _of_slot(need, slot)
    lost: Amounts = _of_slot(rest, slot) + _mismatch(fleet, request, left, taken) + _tie(fleet, left)
    if fleet.workload.constrained:
        model = fleet.cards[GPU].model[np.arange(len(slot)), slot]
        lost += np.rint(taken * _scarcity(fleet, left)[model])
    return lost


def _left(cards: Cards) -> Column:
    """Give the hundredths that are left of each healthy card, of core or of memory, whichever is less."""
    core, ratio = (cards.total[i] - cards.used[i] for i in (cards.index[GPU_CORE], cards.index[GPU_MEMORY_RATIO]))
    left: Column = np.where(cards.healthy, np.maximum(np.minimum(core, ratio), 0), 0)
    return left


def _need(cards: Cards, part: Part) -> Column:
    """Give the hundredths of each card that a part takes: bytes are more of a small card than of a large one."""
    wanted = dict(part.amounts)
    need = np.full(cards.healthy.shape, max(wanted.get(GPU_CORE, 0), wanted.get(GPU_MEMORY_RATIO, 0)), np.int64)
    if GPU_MEMORY in wanted and GPU_MEMORY_RATIO not in wanted:
        memory = np.maximum(cards.total[cards.index[GPU_MEMORY]], 1)
        need = np.maximum(need, np.minimum(CARD * (wanted[GPU_MEMORY] / memory), CARD).astype(np.int64))
    return need


def _of_slot(values: npt.NDArray[np.generic], slot: npt.NDArray[np.intp]) -> Amounts:
    return values[np.arange(len(slot)), slot].astype(np.float64)


def _mismatch(fleet: Fleet, request: PodRequest, left: Column, taken: Amounts) -> Amounts:
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
