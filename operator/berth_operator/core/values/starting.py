"""Nodes that are starting: what shows that a new node will have devices, and which taints it loses on its own.

An autoscaler creates a Node minutes before the agent there publishes its Device. Meanwhile, the autoscaler must not add
another node for the pods that this node was added for.
"""

from typing import Final

from berth_api import names
from berth_api.objects.node_labels import has_devices
from berth_api.request import BUILT_IN, Kinds, is_device
from berth_operator.core.values.inventory import NodeInfo
from berth_operator.core.values.request import Taint

STARTUP_TAINTS: Final = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/network-unavailable",
        "node.cloudprovider.kubernetes.io/uninitialized",
        "karpenter.sh/unregistered",
    }
)
"""Keys of taints that a node has while it starts."""
STARTUP_PREFIXES: Final = (
    "readiness.k8s.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
)
STARTUP_SUFFIX: Final = "/agent-not-ready"
"""What the startup taints of Berth, Cilium and the CSI drivers of AWS end with."""


def will_have_devices(node: NodeInfo, kinds: Kinds = BUILT_IN) -> bool:
    """Return whether a Node shows that it has devices, even if there is no Device yet."""
    return (
        any(taint.key in names.AGENT_NOT_READY for taint in node.taints)
        or any(amount and is_device(name, kinds) for name, amount in node.allocatable.items())
        or has_devices(node.labels)
    )


def is_startup_taint(taint: Taint) -> bool:
    """Return whether a node loses the taint on its own once it has started."""
    return taint.key in STARTUP_TAINTS or taint.key.startswith(STARTUP_PREFIXES) or taint.key.endswith(STARTUP_SUFFIX)
