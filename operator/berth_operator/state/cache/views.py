"""Views of the state for the status writer: immutable values that are safe to pass to another thread."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from berth_api.request import BUILT_IN, Kinds
from berth_api.words import OWN_GROUPS, PodGroupKind
from berth_operator.core.queue.gang_tracker import Counts, Group
from berth_operator.core.values.charge import Charge
from berth_operator.state.objects.devices import DeviceRecord
from berth_operator.state.objects.kubelet import Consistency, GpuPodRecord
from berth_operator.state.objects.nodes import NodeRecord


class StatusKind(enum.Enum):
    """The kinds of objects whose status the operator writes."""

    NODE = "node"
    """A Node's sums and labels, and the Device of the same name."""
    DEVICE = "device"
    """This Device alone, as only pods have changed; the Node's sums follow where they depend on pods."""
    POD_GROUP = "podgroup"
    """Named namespace/name."""
    GPU_POD = "gpupod"
    """Named namespace/name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """All that is known of one node's devices at one moment."""

    name: str
    node: NodeRecord | None
    device: DeviceRecord | None
    ours: bool
    """Whether this instance may write the Device: other instances' Devices have no Node that we watch."""
    alive: bool
    last_renewal: str = ""
    """The time in the Lease of its agent; empty if there is none."""
    charges: tuple[Charge, ...]
    doubled: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    """(type, minor, holders) of each card that two pods hold though only one may; a holder is namespace/name."""
    surplus_drivers: tuple[str, ...] = ()
    """The drivers with more ResourceSlices for the node than are used."""
    kinds: Kinds = BUILT_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """All that is known of one PodGroup at one moment."""

    kind: PodGroupKind = OWN_GROUPS
    group: Group
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The metadata of the object on the API server."""
    status: Mapping[str, Any]
    """The status on the API server."""
    counts: Counts
    problem: str = ""
    """Why its waiting members cannot be decided; empty if they can."""
    unscheduled: tuple[str, str] = ("", "")
    """Why the last decision placed too few members: reason and message of their condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPodView:
    """What a GpuPod should show at one moment."""

    record: GpuPodRecord
    consistency: Consistency | None
    """None if the pod is not known."""
    is_of_known_pod: bool = True
    """Whether a bound pod has its name, UID and node."""


View = NodeView | GroupView | GpuPodView
