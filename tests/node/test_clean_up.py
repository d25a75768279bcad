"""Nothing of a real node is left, however it ends: process, mount, link, control group, socket, changed setting."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from devcluster import Cluster, waiting
from devcluster.processes import state
from devcluster.real_node import RealNode, image
from devcluster.real_node.namespaces import CONTAINERD, KUBELET, SYSCTLS
from devcluster.real_node.node import NAME
from tests.integration.documents.console import commands
from tests.node.boxes import START_SECONDS

pytestmark = pytest.mark.usefixtures("root_on_linux")

PAGE = Path(__file__).parents[2] / "docs/devcluster.md"
OWNER = """
import sys, time
from pathlib import Path
from devcluster import Cluster
from devcluster.real_node import RealNode
cluster = Cluster(folder=Path(sys.argv[1])).start()
RealNode(cluster=cluster).start()
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that no other file uses, so that a count of its nodes' processes is exact."""
    with Cluster(folder=tmp_path_factory.mktemp("clean-up") / "cluster") as running:
        yield running


def test_node_goes_without_a_trace_twice_in_a_row(own_cluster: Cluster) -> None:
    machine = _machine()
    for _ in range(2):
        with RealNode(cluster=own_cluster) as node:
            supervisor = _run_a_pod(own_cluster)
            assert _processes(node.folder)

        assert not _processes(node.folder)
        assert not _groups(supervisor)
        assert not node.folder.exists()
        assert not own_cluster.api.exists(f"/api/v1/nodes/{node.name}")
    assert _machine() == machine


def test_two_nodes_live_side_by_side(own_cluster: Cluster) -> None:
    with RealNode(cluster=own_cluster, name="one") as one:
        with RealNode(cluster=own_cluster, name="two"):
            assert one.pid("kubelet") is not None
        one.restart_daemon("kubelet")
        _run_a_pod(own_cluster, node="one")


def test_killed_owner_leaves_nothing(tmp_path: Path) -> None:
    machine = _machine()
    folder = tmp_path / "cluster"
    with _owner(folder) as owner:
        supervisor = _run_a_pod(Cluster(folder=folder))
        programs = _programs(folder)

        owner.kill()

        _wait_until_gone(folder, programs)
    waiting.until(lambda: not folder.exists(), what="the data folder to go")
    assert not _groups(supervisor)
    assert _machine() == machine


def test_next_up_and_down_remove_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    machine = _machine()
    try:
        # What they leave may go at once: any node that starts elsewhere on this machine removes it, too.
        first = _up_and_kill(tmp_path)
        second = _up_and_kill(tmp_path)

        assert not _groups(first)
    finally:
        _devcluster(tmp_path, "down", "--name", "left")
    assert not _groups(second)
    assert not _folder(tmp_path).exists()
    assert not _processes(tmp_path)
    assert _machine() == machine


def _up_and_kill(state_home: Path) -> int:
    """Start a cluster and a pod as docs/devcluster.md says, kill its supervisor, and return what that one's id was."""
    up, run = [
        shlex.split(command.text.replace("\\\n", ""))
        for command in commands(PAGE.read_text())
        if "real" in command.text
    ]
    _devcluster(state_home, *up[3:], "--name", "left")
    cluster = Cluster(folder=_folder(state_home))
    cluster.kubectl(*run[1:])
    supervisor = _wait_for_pod(cluster, "hello")
    programs = _programs(_folder(state_home))

    os.kill(supervisor, signal.SIGKILL)

    _wait_until_gone(_folder(state_home), programs)
    return supervisor


def _run_a_pod(cluster: Cluster, *, node: str = NAME) -> int:
    """Run a pod on the node; return the supervisor's process id."""
    container = {"name": "main", "image": image.NAME, "imagePullPolicy": "Never"}
    pod = {"metadata": {"name": "pod"}, "spec": {"nodeName": node, "containers": [container]}}
    cluster.api.post("/api/v1/namespaces/default/pods", pod)
    return _wait_for_pod(cluster, "pod")


def _wait_for_pod(cluster: Cluster, name: str) -> int:
    """Wait until a pod runs; return the supervisor's process id."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    waiting.until(
        lambda: cluster.api.get(path)["status"]["phase"] == "Running", deadline=START_SECONDS, what="the pod to run"
    )
    cluster.api.close()
    supervisor = state.supervisor(cluster.folder)
    assert supervisor is not None
    assert _groups(supervisor)
    return supervisor


def _processes(folder: Path) -> list[int]:
    """Return the processes that see a mount out of a folder: all that belong to a node, its containers too."""
    return [int(table.parent.name) for table in Path("/proc").glob("[0-9]*/mountinfo") if _mentions(table, folder)]


def _mentions(table: Path, folder: Path) -> bool:
    try:
        return str(folder) in table.read_text()
    except OSError:
        # It ended meanwhile.
        return False


def _programs(folder: Path) -> Mapping[str, int]:
    """Return the process ids of all that a cluster runs, its supervisor too."""
    running, supervisor = state.read(folder), state.supervisor(folder)
    assert running is not None
    assert supervisor is not None
    assert {"etcd", "kube-apiserver", "kwok"} < set(running.processes)
    return {**running.processes, "supervisor": supervisor}


def _wait_until_gone(folder: Path, programs: Mapping[str, int]) -> None:
    def left() -> list[str]:
        return [name for name, pid in programs.items() if state.is_alive(pid)]

    waiting.until(lambda: not left(), what=f"the end of {', '.join(programs)}")
    waiting.until(lambda: not _processes(folder), what="every process of the node to end")


def _groups(supervisor: int) -> list[Path]:
    groups = (Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup"))
    return [group for group in groups if group.name.startswith("berth-") and f"-{supervisor}-" in group.name]


def _machine() -> dict[str, object]:
    """Return what a node must not change: mounts, network links, settings, and the folders that everybody knows."""
    return {
        "mounts": Path("/proc/self/mounts").read_text(),
        "links": sorted(path.name for path in Path("/sys/class/net").iterdir()),
        "settings": {name: (Path("/proc/sys") / name).read_text() for name in SYSCTLS},
        "files": [sorted(place.rglob("*")) for place in (KUBELET, CONTAINERD, Path("/run/netns"))],
        "ip_forward": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
    }


def _folder(state_home: Path) -> Path:
    return state_home / "berth" / "devcluster" / "left"


def _devcluster(state_home: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "devcluster", *arguments]
    environment = {**os.environ, "XDG_STATE_HOME": str(state_home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@contextmanager
def _owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another Python process that owns a ready cluster with a real node."""
    with subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            yield owner
        finally:
            owner.kill()
