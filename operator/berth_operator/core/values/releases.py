"""kube-scheduler's changes by minor version of Kubernetes. The API server's version counts (docs/next-to.md)."""

from typing import Final

NEWEST: Final = 37
"""The version whose rules apply if the API server's is unknown."""

RESIZES_BY_SUMS: Final = 37
"""A pod that is resized counts by the sums over its containers (`resize.held`)."""
NAMESPACES_BY_LABELS: Final = 37
"""Namespace selectors of the pod to be placed match labels of namespaces alone (`Peers.matches_for_incoming_pod`)."""
IMAGE_VOLUMES: Final = 37
"""Image volumes count as containers do when images are scored."""
PREEMPTION_FOUND: Final = 37
"""The message of a pod that preempts others names its node and their number."""
STORAGE_CAPACITY: Final = 37
"""Nodes are scored by the volumes and the storage that claims get there."""
