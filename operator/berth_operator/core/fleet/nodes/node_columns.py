"""The columns of nodes: arrays whose last axis is the row."""

import numpy as np
import numpy.typing as npt

from berth_operator.core.fleet.nodes.cards import Column, Mask


class NodeColumns:
    """The columns of all nodes."""

    present: Mask
    """Rows whose Node exists. No pod fits on other rows, and they are not counted."""
    ready: Mask
    unreachable: Mask
    cordoned: Mask
    has_device: Mask
    has_agent: Mask
    """Rows with an agent's Lease or pod. The node gets a Device once its agent works."""
    fresh: Mask
    """Rows whose agent is alive and whose Device has the values that the agent published."""
    foreign: Mask
    """Rows whose agent is alive and whose Device has values of other field managers."""
    heard: npt.NDArray[np.int64]
    """When the agent of a row that is not fresh last reported, in seconds since 1970; 0 if unknown."""
    starting: Mask
    """Rows with a new Node that has or will have devices. Its agent may not have reported all of them yet."""
    was_used: Mask
    """Starting rows whose devices pods hold or have held. Later losses of such a node are not a part of its start."""
    vendor: npt.NDArray[np.int32]
    """The number of the Device's vendor."""
    without_shares: Mask
    """Rows whose vendor's GPUs pods get only by its own resources (`values.vendors.gives_shares`)."""
    partitions: npt.NDArray[np.int32]
    """The number of the partition table in `InternTable.tables`."""
    partitions_only: Mask
    """As in `DeviceInventory`, or from the Node's label if the Device does not set it."""
    mig_single: Mask
    """As in `DeviceInventory`."""
    kubelet_chooses: Mask
    """As in `DeviceInventory`."""
    one_replica: Mask
    """As in `DeviceInventory`."""
    node_partitions_only: Mask
    """Rows whose Node has the label for partitions only."""
    cards_by_claim: Mask
    """Rows whose Node's label gives all cards to claims. An excerpt of the Fleet has no labels."""
    device_decides: Mask
    """Rows whose Device sets `partitions_only`."""
    allocatable: Column
    """Shape (resources, nodes)."""
    requested: Column
    """Shape (resources, nodes)."""
    mps_pods: Column
    """How many pods with MPS hold GPUs of the node."""
    other_gpu_pods: Column
    """How many others hold GPUs of the node, ResourceClaims included."""
    nonzero_requested: Column
    """Requested cpu and memory, with defaults for containers that request none: shape (2, nodes)."""


def node_columns(rows: int, resources: int) -> NodeColumns:
    """Return columns of zeros."""
    columns = NodeColumns()
    masks = (
        "present",
        "ready",
        "unreachable",
        "cordoned",
        "has_device",
        "has_agent",
        "fresh",
        "foreign",
        "starting",
        "was_used",
    )
    of_device = ("without_shares", "partitions_only", "mig_single", "kubelet_chooses", "one_replica", "device_decides")
    for name in (*masks, *of_device, "node_partitions_only", "cards_by_claim"):
        setattr(columns, name, np.zeros(rows, np.bool_))
    columns.heard = np.zeros(rows, np.int64)
    columns.vendor, columns.partitions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    columns.allocatable = np.zeros((resources, rows), np.int64)
    columns.requested = np.zeros((resources, rows), np.int64)
    columns.mps_pods, columns.other_gpu_pods = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    columns.nonzero_requested = np.zeros((2, rows), np.int64)
    return columns
