"""Groups of cards among which a part may choose freely: any so many of one group will do, for all that it asks.

`reach` and `partitions` count what is in such groups; who has more to ask of a set takes them one after the other.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_api.request import Part
from berth_operator.core.allocators import locality, partitions
from berth_operator.core.allocators.locality import UNKNOWN_PLACE, Locality
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest

ANY_NUMBER: Final = 256
"""More switches than a node has."""


def of_part(
    fleet: Fleet, request: PodRequest, part: Part, mask: Mask, rows: Rows, *, more: bool
) -> Iterator[tuple[Mask, int]]:
    """Return the groups of these cards, and under how many switches at most the part's cards may be.

    `mask` has a line for each of these rows; `more` says that the part may be given more cards than it wants.
    """
    within = _within(request, part, more=more)
    if within.alone:
        if part.count == 1:
            yield mask, 1
        return
    most = 1 if "pcie" in within.places else ANY_NUMBER
    for place, limit in _on_nodes(fleet, part, mask, rows, most) if "numa" in within.places else ((mask, most),):
        for linked in _linked(fleet, place, rows) if within.linked else (place,):
            for group in _partitions(fleet, request, part, linked, rows):
                yield group, limit


def _within(request: PodRequest, part: Part, *, more: bool) -> Locality:
    if part.type == GPU:
        return locality.required(request, part)
    return locality.of(replace(part, count=part.count + 1) if more else part, None)


def _on_nodes(fleet: Fleet, part: Part, mask: Mask, rows: Rows, most: int) -> Iterator[tuple[Mask, int]]:
    numa = fleet.cards[part.type].numa[rows]
    for node in np.unique(numa[mask]).tolist():
        if node != UNKNOWN_PLACE["numa"]:
            yield mask & (numa == node), most
        elif part.count == 1:
            # A card whose NUMA node is not known can only be allocated alone.
            yield mask & (numa == node), 1


def _linked(fleet: Fleet, mask: Mask, rows: Rows) -> Iterator[Mask]:
    wiring = fleet.cards[GPU].wiring[rows]
    for number in np.unique(wiring).tolist():
        of_wiring = (wiring == number)[:, np.newaxis]
        for clique in locality.cliques(fleet.intern_table.wirings[number], mask.shape[1]):
            yield mask & of_wiring & clique


def _partitions(fleet: Fleet, request: PodRequest, part: Part, mask: Mask, rows: Rows) -> Iterator[Mask]:
    bound = partitions.bound(fleet, request, part, rows) & (part.type == GPU)
    if not bound.any():
        yield mask
        return
    yield mask & ~bound[:, np.newaxis]
    table, minor = fleet.partitions[rows], fleet.cards[GPU].minor[rows]
    for number in np.unique(table[bound]).tolist():
        of_table = (bound & (table == number))[:, np.newaxis]
        for partition in partitions.options(fleet.intern_table.tables[number], part.count, request.devices.partition):
            yield mask & of_table & np.isin(minor, partition.minors)
