"""One control plane for all processes of a test session. An idle one takes a tenth of a core, and a start five seconds.

The first process starts it. It ends with the last process that uses it.
"""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from devcluster import Cluster
from devcluster.control_plane.components import CHECKS_POLICY_TYPES
from devcluster.processes import state

ARGUMENTS: Final = {"kube-controller-manager": [CHECKS_POLICY_TYPES]}


@contextlib.contextmanager
def opened(folder: Path, *, prepare: Callable[[Cluster], object]) -> Iterator[Cluster]:
    """Yield the cluster in a folder that the processes share; the process that starts it prepares it."""
    with (folder / "cluster.users").open("a") as users:
        cluster = Cluster(folder=folder / "cluster", extra_args=ARGUMENTS)
        with (folder / "cluster.start").open("a") as start:
            fcntl.flock(start, fcntl.LOCK_EX)
            # This waits for the end of a cluster whose last user has gone.
            fcntl.flock(users, fcntl.LOCK_SH)
            if state.supervisor(cluster.folder) is None:
                prepare(cluster.start())
                cluster.detach(Path(users.name))
        try:
            yield cluster
        finally:
            cluster.stop()
