"""What a filter says, and what may change its mind."""

import enum


class Verdict(enum.Enum):
    """Whether a node can take a pod."""

    OK = "ok"
    UNSCHEDULABLE = "unschedulable"
    """Not now: it could once other pods left."""
    UNRESOLVABLE = "unresolvable"
    """Not even if all other pods left."""


class Change(enum.IntFlag):
    """What happened in the cluster; a filter's WAKES_ON names the changes that may make it pass."""

    NODE_ADDED = enum.auto()
    NODE_LABELS = enum.auto()
    NODE_TAINTS = enum.auto()
    """Taints, cordon or readiness."""
    NODE_ALLOCATABLE = enum.auto()
    NODE_FEATURES = enum.auto()
    """What its kubelet declares that it can do."""
    DEVICE = enum.auto()
    """A Device's inventory, health or freshness."""
    CAPACITY_FREED = enum.auto()
    """A pod left its node, and what it held there is free."""
    POD_ASSIGNED = enum.auto()
    """A pod came to a node."""
    POD_LABELS = enum.auto()
    """A placed pod's labels changed, or it began to terminate."""
    NAMESPACE_LABELS = enum.auto()
    NODE_REMOVED = enum.auto()
    CLAIM = enum.auto()
    """A PersistentVolumeClaim came or changed; only its own pods wait for it."""
    VOLUME = enum.auto()
    """A PersistentVolume came or changed, or is no longer promised to a pod."""
    STORAGE_CLASS = enum.auto()
    STORAGE_CAPACITY = enum.auto()
    """A driver has more space, or no longer says how much it has."""
    VOLUME_LIMITS = enum.auto()
    """A node can hold more volumes of a driver, or one was detached from it."""
    POD_DELETED = enum.auto()
    """The same, to those who mind that the pod is there at all, and not only what it holds of its own node."""
    BOUND = enum.auto()
    """A pod that was on its way to a node is certainly bound: now it may be told to leave."""
    DEVICE_CLASS = enum.auto()
    """A DeviceClass provides an extended resource, or no longer does."""
    EVICTABLE = enum.auto()
    """A pod left its node, and those that stay there may be evicted for one that waits."""


ANY = ~Change(0)
NODE_CHANGES = (
    Change.NODE_ADDED
    | Change.NODE_LABELS
    | Change.NODE_TAINTS
    | Change.NODE_ALLOCATABLE
    | Change.NODE_FEATURES
    | Change.DEVICE
)
"""What a Node or its Device newly says."""
