"""A real node in a development cluster: kubelet and containerd, with root on Linux.

`namespaces` ties the node's mounts and processes together, so that they end together. `cgroups` has its control groups.
`config` has the setup of kubelet and containerd. `image` and `tools` build what its containers run. `node` is the
handle of everything.
"""

from devcluster.real_node.node import Container, RealNode, obstacle

__all__ = ["Container", "RealNode", "obstacle"]
