"""Labels with which other programs show that a Node has GPUs, before an agent reports them."""

from collections.abc import Mapping
from typing import Final

from berth_api import names

DEVICE_LABELS: Final = frozenset(
    {
        # NVIDIA's feature discovery and node feature discovery
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
        # Karpenter's providers
        "karpenter.k8s.aws/instance-gpu-count",
        "karpenter.azure.com/sku-gpu-count",
        # the clouds' node groups, as cluster-autoscaler reads them
        "cloud.google.com/gke-accelerator",
        "k8s.amazonaws.com/accelerator",
        "kubernetes.azure.com/accelerator",
    }
)
"""Labels of nodes with GPUs."""
NONE: Final = frozenset({"", "0", "false"})
"""Values of such labels on nodes without GPUs."""


def has_devices(labels: Mapping[str, str]) -> bool:
    """Return whether the labels of a Node show that it has GPUs."""
    return any(
        value not in NONE and (key in DEVICE_LABELS or key.startswith(names.MODEL_PREFIX))
        for key, value in labels.items()
    )
