"""A real Kubernetes on one machine: etcd, the control plane, and kwok, which plays nodes without a kubelet.

`programs` finds or builds the programs, `supervisor` holds them as one process tree that never outlives its
owner, `Cluster` is the owner's handle, `Arena` is one test's corner of a cluster, `python -m devcluster` is
the command line. Everything listens on loopback. Linux only: the tree relies on the parent-death signal.
"""

from devcluster.arena import Arena
from devcluster.control_plane.cluster import Cluster
from devcluster.errors import DevclusterError

__all__ = ["Arena", "Cluster", "DevclusterError"]
