"""Minimize waste: keep the remaining cards, nodes and models usable for typical pods.

    waste = unusable remainder of the cards   see allocators/least_waste.py
          + change of the node's imbalance    |free cpu - cpu that typically goes with its free cards|, in cards
          + delay of the node's emptying      what the empty node is worth, over 1 + the number of its cards' users
          + size of the request * scarcity    of the card's model: its share of demand over its share of free cards
          + free cpu * price                  where less of the cpu than of the cards is left, see cpu_price

All terms are in hundredths of a card. The second term prevents a node from running out of cpu before it runs out of
cards, or the other way round. The third term keeps nodes empty, or lets them become empty, for pods with several cards
(see `empty_nodes`). The fourth term keeps rare models for pods that accept no other. The fifth term leaves cpu
in large pieces where it is short. See docs/placement.md.

Among nodes with equal waste, nodes with cards are taken in the order of rows, and nodes without cards evenly.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.allocation import REPLICAS
from berth_api.names import GPU
from berth_api.request import CARD, INSTANCE, PLUGIN_UNIT, REPLICA, Part
from berth_api.resources import CPU
from berth_operator.core import allocators
from berth_operator.core.allocators import gpu, least_waste
from berth_operator.core.fleet.arrays.column_cache import Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.fleet.pods.pod_mix import Typical
from berth_operator.core.scores import cpu_price, empty_nodes
from berth_operator.core.values.request import PodRequest

NAME: Final = "fragmentation"
SUBDEVICES: Final = "subdevices"
"""Key of the cached columns for cards that are allocated as subdevices, next to NAME for whole cards and shares."""
BEST: Final = 100.0
MAX_SCARCITY: Final = 10.0
"""Upper limit of a model's scarcity."""

Amounts = npt.NDArray[np.float64]


def score(fleet: Fleet, request: PodRequest, fits: Mask) -> Amounts:
    """Return 100 for the row with the least waste, and a point less for each further hundredth of a card wasted."""
    lost = waste(fleet, request)
    fitting = lost[fits]
    lowest, highest = fitting.min(initial=np.inf), fitting.max(initial=-np.inf)
    if lowest >= highest:
        return np.full(len(lost), BEST)
    # Keep one point per hundredth, so that weights are comparable with other scores; scale only if 100 is not enough.
    points: Amounts = BEST - (lost - lowest) * min(1.0, BEST / (highest - lowest))
    return points


def waste(fleet: Fleet, request: PodRequest) -> Amounts:
    """Return the waste by the pod on each row in hundredths of a card; negative if the pod improves a row."""
    cpu = dict(request.resources).get(CPU, 0)
    wasted = _without_price(fleet, request, cpu)
    # Not part of the cached columns, because each charge changes the price.
    cost = cpu_price.cost(fleet, cpu)
    return wasted if cost is None else wasted + cost


def _without_price(fleet: Fleet, request: PodRequest, cpu: int) -> Amounts:
    typical = fleet.pod_mix.typical
    worth = empty_nodes.worth(fleet)
    part = next((part for part in request.devices.parts if part.type == GPU), None)
    if part is None:
        key = (NAME, typical, worth.key, cpu)
        return fleet.column_cache.column(key, lambda rows: _without_cards(fleet, cpu, rows))
    compute, kind = (_in_subdevices, SUBDEVICES) if allocators.in_subdevices(fleet, part) else (_with_cards, NAME)
    lost: Amounts = fleet.column_cache.column(
        (NAME, kind, typical, worth.key, cpu, part, request.model),
        lambda rows: compute(fleet, request, cpu, part, rows),
        alike=not part.names_cards,
    )
    if not typical.constrained or not fleet.models or part.unit in (INSTANCE, REPLICA):
        return lost
    taken, model = fleet.column_cache.column(
        (NAME, typical.common, part, request.model),
        lambda rows: _models(fleet, request, part, rows),
        alike=not part.names_cards,
    ).T
    scarce: Amounts = lost + np.rint(taken * _scarcity(fleet)[model])
    return scarce


def _without_cards(fleet: Fleet, cpu: int, rows: Rows) -> Amounts:
    left = least_waste.left(fleet.cards[GPU], rows).sum(axis=1)
    return _of_node(fleet, cpu, left, 0, rows)


def _with_cards(fleet: Fleet, request: PodRequest, cpu: int, part: Part, rows: Rows) -> Amounts:
    free = least_waste.left(fleet.cards[GPU], rows)
    wasted = least_waste.waste(fleet, request, part, free, rows)
    left, taken = free.sum(axis=1), _taken(fleet, part, wasted, rows)
    # Whole cards waste the same unless some are sliced.
    if part.count == 1 or (part.whole and REPLICAS not in fleet.cards[GPU].index):
        wasted_in_all: Column = part.count * wasted.min(axis=1)
    else:
        wasted_in_all = np.sort(wasted, axis=1)[:, : part.count].sum(axis=1)
    return wasted_in_all + _of_node(fleet, cpu, left, taken, rows)


def _in_subdevices(fleet: Fleet, request: PodRequest, cpu: int, part: Part, rows: Rows) -> Amounts:
    """Return for each row the waste of a part in subdevices: the remainder of the fullest card that has one free.

    Where whole cards serve the part, it is theirs.
    """
    wasted = allocators.subdevices_unused(fleet, request, part, rows).min(axis=1)
    lost: Amounts = wasted + _without_cards(fleet, cpu, rows)
    if part.unit != PLUGIN_UNIT:
        return lost
    takes_cards = gpu.passes(fleet, request, part, rows)
    return np.where(takes_cards, _with_cards(fleet, request, cpu, part, rows), lost)


def _taken(fleet: Fleet, part: Part, wasted: Column, rows: Rows) -> int | Column:
    """Return for each row the amount that the pod would take, in hundredths of a card."""
    need = least_waste.need(fleet.cards[GPU], part, rows)
    return part.count * (need if isinstance(need, int) else need[np.arange(len(need)), wasted.argmin(axis=1)])


def _models(fleet: Fleet, request: PodRequest, part: Part, rows: Rows) -> npt.NDArray[np.int32]:
    """Return for each row the hundredths of a card that the pod would take, and the model: shape (rows, 2)."""
    free = least_waste.left(fleet.cards[GPU], rows)
    wasted = least_waste.waste(fleet, request, part, free, rows)
    model = fleet.cards[GPU].model[rows][np.arange(len(wasted)), wasted.argmin(axis=1)]
    amounts_and_models = np.empty((len(model), 2), np.int32)
    amounts_and_models[:, 0], amounts_and_models[:, 1] = _taken(fleet, part, wasted, rows), model
    return amounts_and_models


def _of_node(fleet: Fleet, cpu: int, left: Column, taken: int | Column, rows: Rows) -> Amounts:
    """Return the waste of each node as a whole in hundredths of a card, plus the tie-breaker."""
    typical, free = fleet.pod_mix.typical, fleet.left(CPU, rows)
    wasted = empty_nodes.worth(fleet).delay(fleet, rows)
    if typical.cpu_per_card:
        wasted += _imbalance(typical, free - cpu, left - taken) - _imbalance(typical, free, left)
    # Round to whole hundredths, so that rounding errors do not order equal nodes.
    whole: Amounts = np.rint(wasted)
    has_device = pick(fleet.has_device, rows)
    if has_device.all():
        return whole
    # A tie-breaker below one hundredth fills nodes without cards evenly. Nodes with cards are filled in the order of
    # rows: if the fullest was taken, all nodes would stay in use.
    unused = 0.9 * free / np.maximum(pick(fleet.allocatable[fleet.resources[CPU]], rows), 1)
    return whole + np.where(has_device, 0.0, 0.9 - unused)


def _imbalance(typical: Typical, free: Column, cards: Column) -> Amounts:
    """Return the imbalance of free cpu and free cards, in hundredths of a card."""
    imbalance: Amounts = np.abs(free * (CARD / typical.cpu_per_card) - cards)
    return imbalance


def _scarcity(fleet: Fleet) -> Amounts:
    """Return each model's share of demand over its share of free cards."""

    def left_by_model(rows: Rows) -> npt.NDArray[np.float32]:
        cards = fleet.cards[GPU]
        left, model = least_waste.left(cards, rows), pick(cards.model, rows)
        by_model = [np.where(model == number, left, 0).sum(axis=1) for number in range(fleet.models)]
        return np.stack(by_model, axis=1).astype(np.float32)

    typical = fleet.pod_mix.typical
    free = fleet.column_cache.column((NAME, fleet.models), left_by_model).sum(axis=0)
    accepts = fleet.accepting(typical.constraints)
    scarcity: Amounts = (typical.demand * free.sum() / np.maximum(accepts @ free, CARD)) @ accepts
    return np.minimum(scarcity, MAX_SCARCITY)
