"""A lower bound, by counts of devices, for the victims with devices that a pod's claims need on each node.

A bound is cheap for all nodes at once. Each node searched costs a what-if (`victims`). The bounds order the nodes, and
end the search early.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from berth_operator.core.fleet.nodes.cards import Column, Indices, Mask

LOWEST_PRIORITY: Final = -(2**62)
"""The highest priority of an empty set of victims; lower than any priority."""

OFFSET: Final = 2**31
"""Added to each priority in sums, so that every victim counts as positive; as in kube-scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBounds:
    """Lower bounds by place; shape (places,) each."""

    enough: Mask
    """Whether the pods hold as many devices as are missing."""
    highest: Column
    """The highest priority of a victim."""
    weight: Column
    """The sum of the victims' priorities, each with OFFSET."""
    number: Column
    """The number of victims."""


def bounds(missing: Column, place: Indices, devices: Column, priority: Column) -> ClaimBounds:
    """Return bounds for the victims on places that miss a number of devices: shape (places,).

    Each pod has a place, a number of devices, and a priority: shape (pods,) each.
    """
    holding = np.flatnonzero(devices)
    lowest_first = holding[np.lexsort((priority[holding], place[holding]))]
    place, devices, priority = place[lowest_first], devices[lowest_first], priority[lowest_first]
    first = np.searchsorted(place, np.arange(len(missing)))
    freed = _sums(devices)[1:] - _sums(devices)[first][place]
    last = np.full(len(missing), -1)
    # Of the pods of a place that free enough together with those before, the first one counts.
    suffices = np.flatnonzero(freed >= missing[place])[::-1]
    last[place[suffices]] = suffices
    most = np.ones(len(missing), np.int64)
    np.maximum.at(most, place, devices)
    evicting = (missing > 0) & (last >= 0)
    number = np.where(evicting, -(-missing // most), 0)
    weights = _sums(priority + OFFSET)
    return ClaimBounds(
        enough=(missing <= 0) | (last >= 0),
        highest=np.where(evicting, np.append(priority, LOWEST_PRIORITY)[last], LOWEST_PRIORITY),
        weight=weights[first + number] - weights[first],
        number=number,
    )


def _sums(values: Column) -> Column:
    """Return the sum of the first 0, 1, 2, ... values."""
    return np.concatenate(([0], np.cumsum(values)))
