"""The node has the isolation mode that the pod needs. MPS nodes take only shares with MPS. Other nodes take none.

The mode is the label `berth.dev/isolation` of the Node. A node may be relabelled while pods of the other mode hold its
GPUs. It then takes no pod of the new mode until these pods have left. Evictions do not help, because relabelled nodes
are drained. A node has HAMi-core if it has HAMi-core's resource, as with any device plugin.
"""

from typing import Final

from berth_api import names
from berth_api.names import GPU
from berth_api.request.isolation import MPS
from berth_api.values.selectors import IN, Requirement
from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "isolation"
VERDICT: Final = Verdict.UNRESOLVABLE
WAKES_ON: Final = Change.NODE_LABELS | Change.NODE_ADDED | Change.CAPACITY_FREED
TRAITS: Final = Traits(needed="a pod without MPS on a node with MPS would take what the others were promised")
OF_MPS: Final = Requirement(key=names.ISOLATION_KEY, operator=IN, values=(MPS,))


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows in the pod's mode on which no pod of the other mode holds GPUs."""
    labelled, some = _labelled(fleet)
    if request.isolation == MPS:
        mask: Mask = labelled & (fleet.other_gpu_pods == 0)
    elif (some or fleet.mps_pods_placed) and any(part.type == GPU for part in request.devices.parts):
        mask = ~labelled & (fleet.mps_pods == 0)
    else:
        # Also in every fleet without MPS, where this filter must cost nothing.
        mask = fleet.present
    return mask


def reasons(fleet: Fleet, request: PodRequest, rejected: Mask) -> Reasons:
    """Yield whether the label of a row is wrong, or the pods that hold its GPUs."""
    labelled, _ = _labelled(fleet)
    if request.isolation == MPS:
        yield f"node(s) don't share GPUs by MPS (label {names.ISOLATION_KEY}: {MPS})", rejected & ~labelled
        yield "node(s) have GPUs held by pods without MPS", rejected & labelled
    else:
        yield f"node(s) share GPUs by MPS alone (label {names.ISOLATION_KEY}: {MPS})", rejected & labelled
        yield "node(s) have GPUs held by pods with MPS", rejected & ~labelled


def may_help(_fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether the node's label has changed, or a pod of the other mode has left."""
    if event.before is None:
        return bool(event.change & ~Change.NODE_LABELS) or names.ISOLATION_KEY in event.labels
    return (event.before.isolation == MPS) != (request.isolation == MPS)


def _labelled(fleet: Fleet) -> tuple[Mask, bool]:
    """Return the rows with the label for MPS, and whether there are any."""

    def find() -> tuple[Mask, bool]:
        labelled = fleet.labels.meeting(OF_MPS)
        return labelled, bool(labelled.any())

    return fleet.column_cache.of_nodes(NAME, find)
