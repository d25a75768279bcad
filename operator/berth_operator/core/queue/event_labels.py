"""kube-scheduler's names of queues, and of the events that move pods between them, as in its metrics."""

from typing import Final

from berth_operator.core.values.verdict import ANY, Change

ACTIVE: Final = "active"
BACKOFF: Final = "backoff"
UNSCHEDULABLE: Final = "unschedulable"
GATED: Final = "gated"
QUEUES: Final = (ACTIVE, BACKOFF, UNSCHEDULABLE, GATED)

POD_ADD: Final = "UnschedulablePodAdd"
ATTEMPT_FAILURE: Final = "ScheduleAttemptFailure"
BACKOFF_COMPLETE: Final = "BackoffComplete"
TIMEOUT: Final = "UnschedulableTimeout"
"""A pod that nothing woke is decided once more."""
FORCED: Final = "ForceActivate"
"""All pods are decided once more."""

OF_MEMBERS: Final = (POD_ADD, "PodGroupAdd", "PodGroupUpdate")
"""What may complete a gang."""

_OF_CHANGES: Final = (
    # A pod that leaves its node also frees capacity and may release volumes: the first label counts.
    (Change.POD_DELETED | Change.CAPACITY_FREED | Change.EVICTABLE, "AssignedPodDelete"),
    (Change.POD_ASSIGNED | Change.BOUND, "AssignedPodAdd"),
    (Change.POD_LABELS, "AssignedPodUpdate"),
    (Change.NODE_ADDED, "NodeAdd"),
    (Change.NODE_REMOVED, "NodeDelete"),
    (Change.NODE_ALLOCATABLE, "NodeUpdateNodeAllocatable"),
    (Change.NODE_LABELS, "NodeUpdateNodeLabel"),
    (Change.NODE_TAINTS, "NodeUpdateNodeTaint"),
    (Change.NODE_FEATURES, "NodeUpdateNodeDeclaredFeature"),
    (Change.DEVICE, "DeviceUpdate"),
    (Change.GPU_METRICS, "GPUMetricsUpdate"),
    (Change.NAMESPACE_LABELS, "NamespaceUpdate"),
    (Change.VOLUME_CLAIM, "PersistentVolumeClaimUpdate"),
    (Change.VOLUME, "PersistentVolumeUpdate"),
    (Change.STORAGE_CLASS, "storage.k8s.io/StorageClassUpdate"),
    (Change.STORAGE_CAPACITY, "storage.k8s.io/CSIStorageCapacityUpdate"),
    (Change.VOLUME_LIMITS, "storage.k8s.io/CSINodeUpdate"),
    (Change.DEVICE_CLASS, "resource.k8s.io/DeviceClassUpdate"),
    (Change.RESOURCE_CLAIM, "resource.k8s.io/ResourceClaimUpdate"),
    (Change.CLAIM_DEVICES, "resource.k8s.io/ResourceSliceUpdate"),
)


def awaited(change: Change) -> list[str]:
    """Return the labels of all events that a pod waits for."""
    return [label for changes, label in _OF_CHANGES if int(changes) & int(change)]


def of(change: Change) -> str:
    """Return the event's label. For several changes at once, return the label of the first in `_OF_CHANGES`."""
    if change == ANY:
        return FORCED
    bits = int(change)
    return next(label for changes, label in _OF_CHANGES if int(changes) & bits)
