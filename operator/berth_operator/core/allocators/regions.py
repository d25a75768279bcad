"""Groups of cards that meet a part's locality and partitions. Any cards of one group can be combined.

`locality` and `partitions` only count the cards in these groups. Joint allocation iterates over the groups.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_api.request import Part
from berth_operator.core.allocators import locality, partitions
from berth_operator.core.allocators.locality import UNKNOWN_PLACE, Locality
from berth_operator.core.fleet.arrays.column_cache import Rows
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

ANY_NUMBER: Final = 256
"""No limit: more switches than any node has."""
MAX_GROUPS: Final = 512
"""Maximum number of groups of a part. Those with too few cards on every row are left out."""


def of_part(
    fleet: Fleet, request: PodRequest, part: Part, mask: Mask, rows: Rows, *, more: bool
) -> Iterator[tuple[Mask, int]]:
    """Yield the groups of these cards, each with the maximum number of switches that the part's cards may be under.

    `mask` has one line for each of the rows; with `more` the part may get more cards than it requests.
    """
    if part.type == GPU:
        within = locality.required(fleet, request, part, rows)
    else:
        within = locality.of(replace(part, count=part.count + 1) if more else part, None)
    if within.alone:
        if part.count == 1:
            yield mask, 1
        return
    budget = count(MAX_GROUPS, -1)
    for group, limit in _groups(fleet, request, part, mask, rows=rows, within=within):
        if (group.sum(axis=1) >= part.count).any():
            yield group, limit
        if not next(budget):
            return


def _groups(
    fleet: Fleet, request: PodRequest, part: Part, mask: Mask, *, rows: Rows, within: Locality
) -> Iterator[tuple[Mask, int]]:
    """Yield the groups, including groups with too few cards."""
    max_switches = 1 if "pcie" in within.places else ANY_NUMBER
    for alike in _of_models(fleet, mask, rows) if "model" in within.places else (mask,):
        for place, limit in (
            _on_nodes(fleet, part, alike, rows, max_switches) if "numa" in within.places else ((alike, max_switches),)
        ):
            for linked in _linked(fleet, place, rows, within.link) if within.link else (place,):
                for group in _partitions(fleet, request, part, linked, rows):
                    yield group, limit


def _of_models(fleet: Fleet, mask: Mask, rows: Rows) -> Iterator[Mask]:
    model = fleet.cards[GPU].model[rows]
    for number in np.unique(model[mask]).tolist():
        yield mask & (model == number)


def _on_nodes(fleet: Fleet, part: Part, mask: Mask, rows: Rows, max_switches: int) -> Iterator[tuple[Mask, int]]:
    numa = fleet.cards[part.type].numa[rows]
    for node in np.unique(numa[mask]).tolist():
        if node != UNKNOWN_PLACE["numa"]:
            yield mask & (numa == node), max_switches
        elif part.count == 1:
            # A card whose NUMA node is not known can only be allocated alone.
            yield mask & (numa == node), 1


def _linked(fleet: Fleet, mask: Mask, rows: Rows, link: str) -> Iterator[Mask]:
    wiring = fleet.cards[GPU].wiring[rows]
    for number in np.unique(wiring).tolist():
        of_wiring = (wiring == number)[:, np.newaxis]
        for clique in locality.cliques(fleet.intern_table.wirings[number], mask.shape[1], link):
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
