"""The verdict of a filter about a node, and the changes of the cluster that may alter it."""

import enum


class Verdict(enum.Enum):
    """Whether a node can take a pod."""

    OK = "ok"
    UNSCHEDULABLE = "unschedulable"
    """The pod does not fit now; removing other pods may help."""
    UNRESOLVABLE = "unresolvable"
    """The pod does not fit, even if all other pods were removed."""


class Change(enum.IntFlag):
    """A change in the cluster. A filter's WAKES_ON names the changes that may make it pass."""

    NODE_ADDED = enum.auto()
    NODE_LABELS = enum.auto()
    NODE_TAINTS = enum.auto()
    """Taints, cordon or readiness."""
    NODE_ALLOCATABLE = enum.auto()
    NODE_FEATURES = enum.auto()
    """The features that kubelet declares."""
    DEVICE = enum.auto()
    """A Device's inventory, health or freshness."""
    CAPACITY_FREED = enum.auto()
    """A pod left its node, and what it used there is free."""
    POD_ASSIGNED = enum.auto()
    """A pod was assigned to a node."""
    POD_LABELS = enum.auto()
    """A placed pod's labels changed, or the pod started to terminate."""
    NAMESPACE_LABELS = enum.auto()
    NODE_REMOVED = enum.auto()
    VOLUME_CLAIM = enum.auto()
    """A PersistentVolumeClaim was added or changed; only pods that use it wait for this."""
    VOLUME = enum.auto()
    """A PersistentVolume was added or changed, or is no longer reserved for a pod."""
    STORAGE_CLASS = enum.auto()
    STORAGE_CAPACITY = enum.auto()
    """A driver has more capacity, or no longer reports its capacity."""
    VOLUME_LIMITS = enum.auto()
    """A node can attach more volumes of a driver, or a volume was detached from it."""
    POD_DELETED = enum.auto()
    """A pod left its node. This is for filters that depend on the pod's existence, not only on what it used of its
    node."""
    BOUND = enum.auto()
    """The binding of a pod was confirmed, so the pod can now be preempted."""
    DEVICE_CLASS = enum.auto()
    """A DeviceClass started or stopped providing an extended resource."""
    GPU_METRICS = enum.auto()
    """More of a GPU's memory was measured as free, or a measurement is too old."""
    RESOURCE_CLAIM = enum.auto()
    """A ResourceClaim was added or changed; only pods that use it wait for this."""
    CLAIM_DEVICES = enum.auto()
    """Devices that ResourceSlices list were added, changed, or are free again."""
    EVICTABLE = enum.auto()
    """A pod left its node, and the remaining pods there may now be preempted for a pending pod."""


ANY = ~Change(0)
NODE_CHANGES = (
    Change.NODE_ADDED
    | Change.NODE_LABELS
    | Change.NODE_TAINTS
    | Change.NODE_ALLOCATABLE
    | Change.NODE_FEATURES
    | Change.DEVICE
)
"""Changes of a Node or of its Device."""
