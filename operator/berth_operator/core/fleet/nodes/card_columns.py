"""The columns of cards: arrays of shape (nodes, slots), unless noted otherwise."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.arrays import columns
from berth_operator.core.fleet.arrays.columns import Array
from berth_operator.core.values.gpu_metrics import Quantity
from berth_operator.core.values.inventory import CardFacts

Mask = npt.NDArray[np.bool_]
Column = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Numbers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

EMPTY: Final = -1
"""The minor of a slot that holds no card."""
UNMEASURED: Final = -1.0
"""Not NaN, so that equal columns compare equal."""
NEVER: Final = -math.inf
_FILL: Final = {"minor": EMPTY, "numa": -1, "measured": UNMEASURED, "measured_at": NEVER}
"""Column -> the value of an empty slot, if it is not 0."""


class CardColumns:
    """Each card's description, place, capacity and use.

    `users` counts the grants of a card; `used` shows whether they are shares, replicas or instances.
    """

    minor: Numbers
    present: Mask
    healthy: Mask
    failed: Mask
    """Cards that could be allocated if their agent reported them as healthy."""
    withheld: Mask
    """Cards that kubelet cannot allocate now, because the agent withholds them for pods with shares."""
    announced: Mask
    """Healthy cards that are not withheld."""
    replicas_as: npt.NDArray[np.int8]
    """Index in `REPLICA_NAMES` of the resource name under which pods request the card's replicas."""
    model: Numbers
    """Number of the model in `InternTable.models`."""
    bar: Numbers
    """Why the card is not allocated by name, by `InternTable.bars`; 0 if it is."""
    kind: Numbers
    """Number of the kind in `InternTable.kinds`; 0 for cards without replicas and instances."""
    instance_memory: Numbers
    """Number in `InternTable.instance_memory`."""
    mixed: Mask
    """Whether the node's cards are of several models or kinds: shape (nodes,)."""
    users: Numbers
    numa: npt.NDArray[np.int16]
    pcie: Numbers
    """Number of the PCIe switch (`InternTable.switches`); 0 if unknown."""
    labels: Numbers
    """Number of the labels in `InternTable.labels`."""
    functions: Numbers
    """Number of the functions in `InternTable.functions`."""
    of_gang: Numbers
    """Number of replicas of the card that members of the gang hold whose slices are kept apart
    (`Fleet.slices_apart`)."""
    sliced_instances: Mask
    """Whether the card's MIG instances are time-sliced."""
    spare: Numbers
    """Bit mask of the groups of virtual functions with a free function, in the order of the groups."""
    wiring: Numbers
    """Number of the wiring in `InternTable.wirings`: shape (nodes,)."""
    total: Column
    """Each card's capacity: shape (resources, nodes, slots)."""
    used: Column
    """What is charged to each card: shape (resources, nodes, slots)."""
    unknown: Numbers
    """Number of pods that may hold any card of the node: shape (nodes,)."""
    refused: Mask
    """Whether a policy refuses that the operator writes the type's resources to the Node: shape (nodes,)."""
    unlocated: Numbers
    """Number of MIG instances that pods hold and whose card is not known: shape (nodes,)."""
    facts: Floats
    """Facts in the order of `CardFacts`: shape (facts, nodes, slots)."""
    measured: Floats
    """Values by `Quantity`; UNMEASURED if unknown or too old: shape (quantities, nodes, slots)."""
    measured_at: npt.NDArray[np.float64]
    """When the GPU was measured, in seconds of the operator's monotonic clock; NEVER if it was not, or too long ago."""
    unaccounted: Column
    """Bytes of memory that were measured as used in excess of the charges."""


def card_columns(rows: int, resources: int, *, metrics: bool) -> CardColumns:
    """Return columns with one empty slot for each node; `metrics` if the cards have facts and are measured."""
    columns_ = CardColumns()
    for name in ("present", "healthy", "failed", "withheld", "announced", "sliced_instances"):
        setattr(columns_, name, np.zeros((rows, 1), np.bool_))
    for name in ("model", "bar", "kind", "instance_memory", "users", "of_gang", "pcie", "labels", "functions", "spare"):
        setattr(columns_, name, np.zeros((rows, 1), np.int32))
    for name in ("wiring", "unknown", "unlocated"):
        setattr(columns_, name, np.zeros(rows, np.int32))
    columns_.mixed, columns_.refused = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    columns_.minor, columns_.numa = np.full((rows, 1), EMPTY, np.int32), np.full((rows, 1), -1, np.int16)
    columns_.replicas_as = np.zeros((rows, 1), np.int8)
    columns_.total, columns_.used = np.zeros((resources, rows, 1), np.int64), np.zeros((resources, rows, 1), np.int64)
    columns_.facts = np.zeros((len(CardFacts._fields) if metrics else 0, rows, 1), np.float32)
    columns_.measured = np.full((len(Quantity) if metrics else 0, rows, 1), UNMEASURED, np.float32)
    columns_.measured_at, columns_.unaccounted = np.full((rows, 1), NEVER), np.zeros((rows, 1), np.int64)
    return columns_


def grown(of: CardColumns, rows: int, slots: int) -> CardColumns:
    """Return copies of the columns with at least this number of rows and slots."""
    least = {1: (rows,), 2: (rows, slots), 3: (0, rows, slots)}
    made = CardColumns()
    for name, values in vars(of).items():
        # numpy.pad takes several times as long, and each new node of a small cluster comes here
        larger = np.full(np.maximum(values.shape, least[values.ndim]), _FILL.get(name, 0), values.dtype)
        larger[tuple(map(slice, values.shape))] = values
        setattr(made, name, larger)
    return made


def axis_of_rows(values: Array) -> int:
    """Return which axis of a column is the nodes."""
    return 1 if values.ndim == 3 else 0  # noqa: PLR2004 - (resources, nodes, slots)


def excerpt(of: CardColumns, rows: Indices) -> CardColumns:
    """Return copies of these rows, in this order; rows may be repeated."""

    def picked(values: Array) -> Array:
        return values.take(rows, axis=axis_of_rows(values))

    return columns.each_by(of, picked)
