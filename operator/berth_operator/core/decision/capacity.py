"""Estimate how many pods of one class each node can take. The estimate is never too low.

It considers each resource separately and ignores interactions between pods of the class (affinity, spread). So fewer
pods may actually fit. An estimate costs about as much as one decision.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from berth_api.request import NOTHING
from berth_operator.core import allocators
from berth_operator.core.allocators import candidates
from berth_operator.core.fleet import extended_resources
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Column, Mask
from berth_operator.core.values.request import PodRequest

NAME: Final = "capacity"
UNLIMITED: Final = 1_000_000
"""Pods per node if nothing limits them."""


def of_class(fleet: Fleet, request: PodRequest, fits: Mask) -> Column:
    """Return for each row how many such pods it can take at most. `fits` are the rows that can take one."""
    key = (NAME, request.resources, request.devices, request.model, bool(request.ports))
    alike = not request.devices.names_cards
    column = fleet.column_cache.column(key, lambda rows: _of_rows(fleet, request, rows), alike=alike)
    if by_class := extended_resources.rows_by_class(fleet, request):
        # What their devices suffice for is not estimated.
        other = tuple(amount for amount in request.resources if amount[0] not in by_class)
        rest = replace(request, resources=other, devices=NOTHING)
        column = np.where(np.logical_or.reduce(list(by_class.values())), _of_rows(fleet, rest, ALL), column)
    if (counted := extended_resources.rows_by_count(fleet, request)) is not None:
        column = np.where(counted, _of_rows(fleet, replace(request, devices=NOTHING), ALL), column)
    return np.where(fits, column, 0)


def _of_rows(fleet: Fleet, request: PodRequest, rows: Rows) -> Column:
    pods = np.full_like(fleet.vendor[rows], 1 if request.ports else UNLIMITED, np.int64)
    for name, amount in request.resources:
        if amount:
            pods = np.minimum(pods, fleet.left(name, rows) // amount)
    for part in request.devices.parts:
        # What its cards can serve.
        if allocators.in_subdevices(fleet, part):
            per_card = allocators.subdevices_left(fleet, request, part, rows)
        else:
            cards = fleet.cards[part.type]
            per_card = np.where(candidates.fitting(fleet, request, part, rows), UNLIMITED, 0)
            for index, needed in candidates.needs(cards, part, rows):
                free = cards.left(index, rows)
                per_card = np.minimum(per_card, np.maximum(free, 0) // np.maximum(needed, 1))
        pods = np.minimum(pods, per_card.sum(axis=1) // part.count)
    return np.maximum(pods, 0)
