"""The columns of cards: arrays of shape (nodes, slots), but for the few that are of nodes or of resources."""

from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet import columns
from berth_operator.core.fleet.columns import Array

Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.int32]

EMPTY: Final = -1
"""The minor of a slot that holds no card."""
_FILL: Final = {"minor": EMPTY, "numa": -1}
"""What an empty slot has in columns in which it does not have a 0."""


class CardColumns:
    """What each card offers, what is taken of it, where it sits and what it is.

    `users` counts who holds something of a card; what is used shows whether they share it, or have slices or instances.
    """

    minor: Numbers
    present: Mask
    healthy: Mask
    withheld: Mask
    """Cards that kubelet cannot give out now, because its agent keeps them for pods with shares."""
    announced: Mask
    """Healthy cards that are not withheld."""
    replicas_as: npt.NDArray[np.int8]
    """By `REPLICA_NAMES`: what pods must ask for to get replicas of it."""
    model: Numbers
    """By `InternTable.models`."""
    users: Numbers
    numa: npt.NDArray[np.int16]
    pcie: Numbers
    """By `InternTable.switches`; 0 if it is not known."""
    labels: Numbers
    """By `InternTable.labels`."""
    functions: Numbers
    """By `InternTable.functions`."""
    spare: Numbers
    """Groups of virtual functions in which one is free: a bit each, in the order of the groups."""
    wiring: Numbers
    """By `InternTable.wirings`: shape (nodes,)."""
    total: Column
    """What each card offers: shape (resources, nodes, slots)."""
    used: Column
    """What is taken of it: shape (resources, nodes, slots)."""
    unknown: Numbers
    """Pods of the node that may hold any of its cards: shape (nodes,)."""
    unlocated: Numbers
    """MIG instances of the node that pods hold and whose card is not known, so any in MIG mode: shape (nodes,)."""


def card_columns(rows: int, resources: int) -> CardColumns:
    """Return columns with one empty slot for each node."""
    columns_ = CardColumns()
    for name in ("present", "healthy", "withheld", "announced"):
        setattr(columns_, name, np.zeros((rows, 1), np.bool_))
    for name in ("model", "users", "pcie", "labels", "functions", "spare"):
        setattr(columns_, name, np.zeros((rows, 1), np.int32))
    for name in ("wiring", "unknown", "unlocated"):
        setattr(columns_, name, np.zeros(rows, np.int32))
    columns_.minor, columns_.numa = np.full((rows, 1), EMPTY, np.int32), np.full((rows, 1), -1, np.int16)
    columns_.replicas_as = np.zeros((rows, 1), np.int8)
    columns_.total, columns_.used = np.zeros((resources, rows, 1), np.int64), np.zeros((resources, rows, 1), np.int64)
    return columns_


def grown(of: CardColumns, rows: int, slots: int) -> CardColumns:
    """Return columns with room for at least so many rows and slots, and what there was."""
    old_rows, old_slots = of.minor.shape
    more = ((0, max(0, rows - old_rows)), (0, max(0, slots - old_slots)))
    widths = {1: more[:1], 2: more, 3: ((0, 0), *more)}
    made = CardColumns()
    for name, values in vars(of).items():
        setattr(made, name, np.pad(values, widths[values.ndim], constant_values=_FILL.get(name, 0)))
    return made


def excerpt(of: CardColumns, rows: Indices) -> CardColumns:
    """Return copies of some rows, in this order and each as often as it is named."""

    def picked(values: Array) -> Array:
        return values.take(rows, axis=1 if values.ndim == 3 else 0)  # noqa: PLR2004 - (resources, nodes, slots)

    return columns.each_by(of, picked)
