"""Utilization of each node's cards, and of its cpu and memory as arrays of shape (2, nodes)."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU_MEMORY_RATIO
from berth_api.request import CARD, PLUGIN_UNIT, Part
from berth_operator.core import allocators
from berth_operator.core.allocators import candidates, gpu
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column
from berth_operator.core.values.request import PodRequest

BOTH: Final = slice(0, 2)
"""The indices of cpu and memory, the first two resources of every Fleet."""


def requested(fleet: Fleet, rows: Rows) -> tuple[Column, Column]:
    """Return the allocatable amounts, and the pods' requests."""
    return fleet.allocatable[BOTH, rows], fleet.requested[BOTH, rows]


def assumed(fleet: Fleet, request: PodRequest, rows: Rows) -> tuple[Column, Column]:
    """Return the allocatable amounts, and the nonzero requests of the placed pods and this pod."""
    total, _ = requested(fleet, rows)
    return total, fleet.nonzero_requested[:, rows] + np.array(request.nonzero_requested)[:, np.newaxis]


def mean(total: Column, amounts: Column) -> npt.NDArray[np.float64]:
    """Return the mean of both amounts in whole percent of the total; a resource that a node lacks is left out."""
    shares = amounts * 100 // np.maximum(total, 1)
    means: npt.NDArray[np.float64] = np.floor(shares.sum(axis=0) / np.maximum((total > 0).sum(axis=0), 1))
    return means


def left_of_cards(fleet: Fleet, request: PodRequest, rows: Rows, *, emptiest: bool) -> npt.NDArray[np.float64]:
    """Return the percentage that a pod leaves free for each row: the mean over all cards that it requests.

    For whole cards, it is the share of the node's cards of the type. For shares, it is the free share of the cards that
    the pod would take: the emptiest cards or, unless `emptiest`, the fullest cards that have enough free.
    """
    parts, weighted = request.devices.parts, []
    for part in parts:
        if not allocators.in_subdevices(fleet, part):
            left = _left_of_amounts(fleet, request, part, rows, emptiest=emptiest)
        else:
            unused = allocators.subdevices_unused(fleet, request, part, rows)
            free = allocators.subdevices_left(fleet, request, part, rows) > 0
            left = np.asarray(np.where(free, unused, 0).max(axis=1) if emptiest else unused.min(axis=1), np.float64)
            if part.unit == PLUGIN_UNIT:
                of_cards = _left_of_amounts(fleet, request, part, rows, emptiest=emptiest)
                left = np.where(gpu.passes(fleet, request, part, rows), of_cards, left)
        weighted.append(part.count * left)
    mean_left: npt.NDArray[np.float64] = np.sum(weighted, axis=0) / sum(part.count for part in parts)
    return mean_left


def _left_of_amounts(
    fleet: Fleet, request: PodRequest, part: Part, rows: Rows, *, emptiest: bool
) -> npt.NDArray[np.float64]:
    cards = fleet.cards[part.type]
    if part.whole:
        idle = (cards.healthy[rows] & (cards.users[rows] == 0)).sum(axis=1)
        of_node = np.maximum(idle - part.count, 0) / np.maximum(cards.present[rows].sum(axis=1), 1)
        return np.asarray(CARD * of_node, np.float64)
    index = cards.index.get(GPU_MEMORY_RATIO, 0)
    need = dict(candidates.needs(cards, part, rows)).get(index, 0)
    left = cards.left(index, rows) - need
    worst = 0 if emptiest else CARD
    ordered = np.sort(np.where(candidates.fitting(fleet, request, part, rows), left, worst), axis=1)
    taken = ordered[:, -part.count :] if emptiest else ordered[:, : part.count]
    return np.asarray(taken.mean(axis=1), np.float64)
