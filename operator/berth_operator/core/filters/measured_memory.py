"""The node's GPUs have enough free memory by measurement, not only by allocation.

The filter applies only to pods that request by Genius' labels, because Genius compares them with measured memory.
Memory used beyond the charges (by processes outside Kubernetes, or by pods beyond their share) stays constant until the
next refresh. Charges count at once. So the pods of a burst do not all get the memory that was free at the measurement.
"""

from typing import Final

import numpy as np

from berth_api.allocation import message_text
from berth_api.names import GPU, GPU_MEMORY
from berth_api.request import Part
from berth_operator.core.allocators import gpu
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "measured-memory"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.GPU_METRICS | Change.DEVICE | Change.NODE_ADDED | Change.CAPACITY_FREED
TRAITS: Final = Traits(capacity=True)


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows with enough GPUs whose measured free memory is enough."""
    part = _part(fleet, request)
    if part is None:
        return fleet.present
    key = (NAME, request.devices, request.model, fleet.prepared.version)
    return fleet.column_cache.column(key, lambda rows: gpu.passes_measured(fleet, request, part, rows), alike=False)


def could_pass(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows that would have enough if no pod were there."""
    part = _part(fleet, request)
    return np.ones_like(fleet.present) if part is None else gpu.could_pass_measured(fleet, request, part)


def reasons(_fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    part = request.devices.parts[0]
    amount = message_text(GPU_MEMORY, dict(part.amounts)[GPU_MEMORY])
    requested = f"({part.count} requested with {GPU_MEMORY} {amount})"
    yield f"node(s) have too few GPUs with enough measured free memory {requested}", rejected


def _part(fleet: Fleet, request: PodRequest) -> Part | None:
    """Return the part whose memory is compared; None if there is none, or if no memory was measured as used."""
    if not request.devices.labelled:
        return None
    part = request.devices.parts[0]
    return part if GPU_MEMORY in dict(part.amounts) and fleet.cards[GPU].unaccounted.any() else None
