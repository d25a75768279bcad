"""No pod on the node uses the host ports that the pod requests."""

from typing import Final

from berth_operator.core.filters.reasons import Reasons
from berth_operator.core.filters.traits import Traits
from berth_operator.core.fleet.events import ClusterEvent
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.cards import Mask
from berth_operator.core.values.request import PodRequest
from berth_operator.core.values.verdict import Change, Verdict

NAME: Final = "host-ports"
VERDICT: Final = Verdict.UNSCHEDULABLE
WAKES_ON: Final = Change.CAPACITY_FREED | Change.NODE_ADDED
TRAITS: Final = Traits(
    plugin="NodePorts",
    needed="kubelet rejects a pod whose ports are in use, and its controller creates others without end",
)
REASON: Final = "node(s) didn't have free ports for the requested pod ports"


def passes(fleet: Fleet, request: PodRequest) -> Mask:
    """Return the rows where all the ports are free."""
    mask = fleet.present
    for port in request.ports:
        mask = mask & ~fleet.ports.taken(port)
    return mask


def could_pass(fleet: Fleet, _request: PodRequest) -> Mask:
    """Return all rows: only pods use ports."""
    return fleet.present


def reasons(_fleet: Fleet, _request: PodRequest, rejected: Mask) -> Reasons:
    """Yield one reason for all rows."""
    yield REASON, rejected


def may_help(_fleet: Fleet, request: PodRequest, event: ClusterEvent) -> bool:
    """Return whether a pod that used one of the ports was deleted; True if the event has no pod."""
    if event.before is None:
        return True
    freed = {(port.protocol, port.port) for port in event.before.ports}
    return any((port.protocol, port.port) in freed for port in request.ports)
