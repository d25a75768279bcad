"""The control groups of real nodes: one for each node, in every hierarchy that the machine has.

The name of a group contains the process id of its cluster's supervisor, so that a later run can find leftovers. A dead
node has no running process, but its groups are folders of the kernel and stay until they are removed.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devcluster import waiting
from devcluster.errors import DevclusterError
from devcluster.processes import state

MOUNTS: Final = Path("/proc/self/mounts")
"""The table of what is mounted where; a test has its own."""
CONTROLLERS: Final = frozenset({"cpu", "cpuset", "memory", "pids"})
"""Controllers that kubelet and runc require."""
OPTIONAL: Final = frozenset({"hugetlb", "io"})
"""Controllers that kubelet uses if the kernel has them; with cgroup v1 kubelet finds these by itself."""
REMOVE_SECONDS: Final = 10.0


def name(supervisor: int, node: str) -> str:
    """Return the name of a node's group."""
    return f"berth-{supervisor}-{node}"


def make(group: str, *, table: Path = MOUNTS) -> None:
    """Make a group in every hierarchy; raise DevclusterError where a controller is missing."""
    missing = CONTROLLERS - {controller for _, _, controllers in _mounts(table) for controller in controllers}
    if missing:
        raise DevclusterError(
            f"a real node needs the cgroup controllers {', '.join(sorted(CONTROLLERS))}; this machine does not give "
            f"{', '.join(sorted(missing))} ({table} and cgroup.controllers list what it has)"
        )
    for mount, kind, controllers in _mounts(table):
        if kind == "cgroup2":
            # The groups below a root have only the controllers that the root enables for them.
            control = mount / "cgroup.subtree_control"
            for controller in sorted((controllers & (CONTROLLERS | OPTIONAL)).difference(control.read_text().split())):
                try:
                    control.write_text(f"+{controller}")
                except OSError as error:
                    raise DevclusterError(
                        f"{mount} does not hand down the controller {controller} ({error.strerror}): "
                        "a real node needs the machine's root group, not a container's"
                    ) from error
        (mount / group).mkdir(exist_ok=True)


def remove(group: str) -> None:
    """Remove a node's group after the end of its processes."""
    for path in _groups():
        if path.name == group:
            _remove(path)


def remove_of(supervisor: int) -> None:
    """Remove the groups of all nodes of a supervisor, after the end of their processes."""
    for path in _groups():
        if _supervisor(path) == supervisor:
            _remove(path)


def sweep() -> None:
    """Remove the groups of all nodes whose supervisor is dead."""
    for supervisor in {_supervisor(path) for path in _groups()}:
        if not state.is_alive(supervisor):
            remove_of(supervisor)


def processes(container: str) -> list[int]:
    """Return the process ids of a container, as this machine counts them."""
    # Unlike a glob, a walk does not fail when groups of other nodes disappear meanwhile.
    folders = (Path(folder) for group in _groups() for folder, _, _ in os.walk(group))
    return sorted({pid for folder in folders if folder.name == container for pid in _pids(folder / "cgroup.procs")})


def _mounts(table: Path) -> Iterator[tuple[Path, str, frozenset[str]]]:
    """Yield where each hierarchy is mounted, its kind, and its controllers."""
    for line in table.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        mount = Path(place)
        if kind == "cgroup2":
            yield mount, kind, frozenset((mount / "cgroup.controllers").read_text().split())
        elif kind == "cgroup":
            yield mount, kind, frozenset(options.split(","))


def _pids(file: Path) -> list[int]:
    try:
        return [int(pid) for pid in file.read_text().split()]
    except OSError:
        # The container ended meanwhile.
        return []


def _groups() -> list[Path]:
    """Return the groups of all nodes; only root makes any."""
    if os.geteuid() != 0:
        return []
    return [group for mount, _, _ in _mounts(MOUNTS) for group in mount.glob("berth-*-*") if _supervisor(group)]


def _supervisor(group: Path) -> int:
    match = re.match(r"berth-(\d+)-", group.name)
    return int(match[1]) if match else 0


def _remove(group: Path) -> None:
    """Remove a group and those below; processes that were killed may need a moment to be gone."""
    waiting.until(lambda: _removed(group), deadline=REMOVE_SECONDS, what=f"the processes in {group} to end")


def _removed(group: Path) -> bool:
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            os.rmdir(folder)  # noqa: PTH106 - os.walk gives texts
    except OSError:
        # A process in it has not ended yet, or somebody else removes it at the same time.
        return False
    return not group.exists()
