"""Partitions of a node's NVSwitch: the sets of whole cards in its partition table, and the best set that is free.

Pods with a partition spec must get a set of the table. So must all pods on a node that allocates by partition only.
Other pods get a set if possible. The set with the highest score is taken. Among sets with equal scores, the allocator
takes the one that leaves the most valuable other sets, of its size or larger, completely free.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import numpy as np

from berth_api.allocation import message_text
from berth_api.allocation.partitions import Partition, Table
from berth_api.names import GPU, GPU_MEMORY
from berth_api.request import Part, PartitionSpec
from berth_api.values.caching import sized_cache
from berth_operator.core.allocators import locality, topology
from berth_operator.core.allocators.topology import Candidates
from berth_operator.core.fleet.arrays.column_cache import ALL, Rows, pick
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest

_WORTH: Final = {8: 10_000, 4: 100, 2: 1}
"""Size of a set -> the value of one that stays completely free."""
_ANY: Final = PartitionSpec()


def bound(fleet: Fleet, request: PodRequest, part: Part, rows: Rows = ALL) -> Mask:
    """Return the rows on which the part must be allocated by partition."""
    mask = pick(fleet.partitions_only, rows)
    if not part.whole:
        return np.zeros_like(mask)
    return mask if request.devices.partition is None else np.ones_like(mask)


def feasible(fleet: Fleet, request: PodRequest, part: Part, fits: Mask, rows: Rows = ALL) -> Mask:
    """Return the rows with a partition of fitting cards for the part; `fits` has one line for each of the rows."""
    table, minor = fleet.partitions[rows], fleet.cards[GPU].minor[rows]
    places, mask = np.arange(len(fleet.names))[rows], np.zeros(len(fits), np.bool_)
    within = locality.required(fleet, request, part, rows)
    for number in np.unique(table):
        rows_here = np.flatnonzero(table == number)
        for partition in options(fleet.intern_table.tables[number], part.count, request.devices.partition):
            cards = fits[rows_here] & np.isin(minor[rows_here], partition.minors)
            free = cards.sum(axis=1) == part.count
            if free.any():
                rows_free = rows_here[free]
                colocated = locality.max_colocated(fleet, GPU, within, cards[free], places[rows_free])
                mask[rows_free] |= colocated == part.count
    return mask


@sized_cache(2**22)
def options(table: Table, count: int, spec: PartitionSpec | None) -> tuple[Partition, ...]:
    """Return the partitions of `count` cards that a pod accepts, the highest score first."""
    own = sorted(dict(table).get(count, ()), key=lambda partition: -partition.score)
    if spec is None:
        return tuple(own)
    if spec.restricted:
        own = [partition for partition in own if partition.score == own[0].score]
    if (least := spec.bandwidth) is None:
        return tuple(own)
    return tuple(partition for partition in own if partition.bandwidth is not None and partition.bandwidth >= least)


def best(table: Table, partitions: Sequence[Partition], used: Collection[int]) -> Partition | None:
    """Return the best of the free partitions, which are ordered by score, highest first; None if there are none.

    `used` are the minors of cards that pods use.
    """
    equal = [partition for partition in partitions if partition.score == partitions[0].score]
    if len(equal) < 2:  # noqa: PLR2004 - of one there is nothing to choose
        return equal[0] if equal else None
    larger = [(worth, minors) for worth, minors in _larger(table, len(equal[0].minors)) if minors.isdisjoint(used)]
    # Of equal ones `max` returns the first, in the order of the table.
    return max(equal, key=lambda taken: sum(worth for worth, minors in larger if minors.isdisjoint(taken.minors)))


@sized_cache(2**22)
def _larger(table: Table, size: int) -> tuple[tuple[int, frozenset[int]], ...]:
    """Return (value, minors) of the sets of at least this size that have the highest score of their size."""
    sized = [(_WORTH[number], sets) for number, sets in table if number in _WORTH and number >= size and sets]
    return tuple(
        (worth * partition.score, frozenset(partition.minors))
        for worth, sets in sized
        for partition in sets
        if partition.score == max(other.score for other in sets)
    )


def choose(fleet: Fleet, row: int, request: PodRequest, part: Part, candidates: Candidates) -> tuple[int, ...]:
    """Return the slots of the best partition of fitting cards; empty if there is no such partition."""
    table, minor = fleet.intern_table.tables[fleet.partitions[row]], fleet.cards[GPU].minor[row]
    slot_of = {int(minor[slot]): slot for slot in candidates.slots}
    used = [int(minor[slot]) for slot, taken in zip(candidates.slots, candidates.used, strict=True) if taken]
    chosen = best(table, free(fleet, row, request, part, candidates), used)
    return () if chosen is None else tuple(slot_of[minor] for minor in chosen.minors)


def free(fleet: Fleet, row: int, request: PodRequest, part: Part, candidates: Candidates) -> list[Partition]:
    """Return the partitions of fitting cards that the pod accepts, the highest score first."""
    table, minor = fleet.intern_table.tables[fleet.partitions[row]], fleet.cards[GPU].minor[row]
    minors = minor[list(candidates.slots)].tolist()
    at = {minor: place for place, minor in enumerate(minors) if candidates.fits[place]}
    partitions = [
        partition
        for partition in options(table, part.count, request.devices.partition)
        if at.keys() >= {*partition.minors}
    ]
    if candidates.within:
        pairs = candidates.pairs
        places = [[at[minor] for minor in partition.minors] for partition in partitions]
        partitions = [
            partition for partition, own in zip(partitions, places, strict=True) if pairs[np.ix_(own, own)].all()
        ]
    if candidates.companions is not None:
        sets = np.array([np.isin(minors, partition.minors) for partition in partitions]).reshape(-1, len(minors))
        accompanied = topology.accompanied(candidates, sets)
        partitions = [partition for partition, ok in zip(partitions, accompanied, strict=True) if ok]
    return partitions


def reasons(fleet: Fleet, request: PodRequest, part: Part, fits: Mask) -> Iterator[tuple[str, Mask]]:
    """Yield the possible reasons on rows where a partition is required, each with the rows it is true for."""
    required, spec, number = bound(fleet, request, part), request.devices.partition or _ANY, fleet.partitions
    tables = fleet.intern_table.tables
    of_size = np.array([bool(options(table, part.count, None)) for table in tables])
    accepted = np.array([bool(options(table, part.count, spec)) for table in tables])
    yield "node(s) have no partition table of GPUs", required & (number == 0)
    yield f"node(s) have no partition of {part.count} GPUs", required & ~of_size[number]
    if spec.bandwidth is not None:
        bandwidth = message_text(GPU_MEMORY, spec.bandwidth)
        yield (
            f"node(s) have no partition of {part.count} GPUs with a ring bandwidth of {bandwidth}",
            required & ~accepted[number],
        )
    best_only = " with the highest score" if spec.restricted else ""
    missing = required & ~feasible(fleet, request, part, fits)
    scope = f" {within}" if (within := locality.required(fleet, request, part, np.flatnonzero(missing))) else ""
    yield f"node(s) have no free partition of {part.count} GPUs{best_only}{scope}", missing
