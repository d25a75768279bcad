"""A real Kubernetes on one machine: etcd, the control plane, and kwok, which simulates nodes without a kubelet.

`programs` finds, downloads or builds the programs. `supervisor` holds them as one process tree that never outlives its
owner. `Cluster` is the owner's handle, and `Arena` is one test's part of a cluster. `python -m devcluster` is the
command line. Everything listens on loopback. This works only on Linux, because the process tree relies on the
parent-death signal.
"""

from devcluster.arena import Arena
from devcluster.control_plane.cluster import Cluster
from devcluster.errors import DevclusterError

__all__ = ["Arena", "Cluster", "DevclusterError"]
