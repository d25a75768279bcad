"""A real node in a development cluster: kubelet and containerd, with root on Linux.

`namespaces` holds its mounts and processes together and lets them go together, `cgroups` its control groups,
`config` says how kubelet and containerd are set up, `image` and `tools` make what its containers run, `node` is
the handle of all.
"""

from devcluster.real_node.node import Container, RealNode, obstacle

__all__ = ["Container", "RealNode", "obstacle"]
