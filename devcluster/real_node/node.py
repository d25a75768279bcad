"""A real node, as the owner of its cluster sees it."""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from devcluster import waiting
from devcluster.building import programs
from devcluster.building.commands import run
from devcluster.control_plane import nodes
from devcluster.control_plane.api import ApiError, Manifest
from devcluster.control_plane.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.processes import cgroups, state
from devcluster.real_node import config, image, namespaces, tools

Daemon = Literal["kubelet", "containerd"]

# -I -S: it needs nothing of site-packages.
SCRIPT: Final = (sys.executable, "-I", "-S", namespaces.__file__)
HOLD: Final = "hold"
NAME: Final = "real-0"
LONG_AGO: Final = "1970-01-01T00:00:00Z"
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
GRACE_SECONDS: Final = 1
LAST_LINES: Final = 15


def obstacle() -> str | None:
    """Return why there can be no real node here, or None."""
    if sys.platform != "linux":
        return "a real node needs Linux"
    if os.geteuid() != 0:
        return "a real node needs root: kubelet and containerd mount, and make control groups and namespaces"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container, as the kernel sees it."""

    id: str
    pid: int
    """Its first process, as this machine counts them."""

    @property
    def runs_its_program(self) -> bool:
        """Whether it is no longer the process by which runc prepares it, and has its own environment."""
        arguments = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        if Path(os.fsdecode(arguments[0])).name == "runc" and arguments[1] == b"init":
            return False
        # Both are empty for a moment while the kernel replaces the program.
        return bool(arguments[0]) and bool(self.environment)

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment that its program was started with."""
        lines = Path(f"/proc/{self.pid}/environ").read_text().split("\0")
        return dict(line.split("=", 1) for line in lines if line)

    @property
    def devices(self) -> frozenset[str]:
        """The names of the device nodes right in its `/dev`."""
        paths = Path(f"/proc/{self.pid}/root/dev").iterdir()
        return frozenset(path.name for path in paths if stat.S_ISCHR(path.lstat().st_mode))

    @property
    def started(self) -> int:
        """When it started, in clock ticks since boot: with its id, the proof that it is still the same."""
        status = Path(f"/proc/{self.pid}/stat").read_text()
        return int(status.rpartition(")")[2].split()[19])


class RealNode:
    """One node of a cluster with a kubelet and a containerd of its own; a context manager.

    It lives no longer than the cluster. Its mounts and processes are its own, so several can live side by side,
    and nothing else on the machine sees or keeps them.

    Attributes:
        cluster: the cluster that this process owns.
        name: the Node's name.
        labels: the Node's labels from its first moment on.
        kubeconfig: an administrator's, by which kubelet reaches the API server; the cluster's unless another is given.
        replaced: other programs for some by their names, such as `{"kubelet": "kubelet-1.34"}`.
        folder: its configuration and data.
        root: kubelet's folder, `/var/lib/kubelet` for whatever runs within the node.
        device_plugins: where device plugins put their sockets and find kubelet's.
        pod_resources: kubelet's PodResources socket, which lists the devices of each container.
        cdi: where containerd looks for CDI specifications.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        name: str = NAME,
        labels: nodes.Strings | None = None,
        kubeconfig: Path | None = None,
        replaced: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.labels = dict(labels or {})
        self.kubeconfig = kubeconfig or cluster.kubeconfig
        self.replaced = replaced or {}
        self.folder = cluster.folder / name
        self.root = self.folder / "kubelet"
        self.device_plugins = self.root / "device-plugins"
        self.pod_resources = self.root / "pod-resources" / "kubelet.sock"
        self.cdi = self.folder / "cdi"
        self._pids: dict[str, int] = {}
        self._setup: config.NodeSetup | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def setup(self) -> config.NodeSetup:
        """How it is set up."""
        if self._setup is None:
            raise DevclusterError(f"the node {self.name} was neither started nor attached by this process")
        return self._setup

    def start(self) -> Self:
        """Start everything and return when pods can run; the programs are built first where needed."""
        reason = obstacle()
        if reason:
            raise DevclusterError(reason)
        setup = self._describe()
        cgroups.sweep()
        cgroups.make(setup.group)
        for name, text in setup.files(kubeconfig=self.kubeconfig.read_text()).items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            state.write_private(self.folder / name, text)
        self.cdi.mkdir(exist_ok=True)
        self._setup = setup
        try:
            self._run(HOLD, [*SCRIPT, "hold", str(self.folder)])
            self._wait(HOLD, (self.folder / namespaces.READY).exists, what="its namespaces")
            self.start_daemon("containerd")
            archive = self.folder / "image.tar"
            image.write(archive, program=self.setup.tools / image.PROGRAM)
            self.import_images(archive)
            self.start_daemon("kubelet")
        except BaseException:
            self.stop()
            raise
        return self

    def attach(self) -> Self:
        """Find the node that another process has started in this cluster, to run commands among its containers."""
        running = state.read(self.cluster.folder)
        pids = running.processes if running else {}
        self._pids = {name.removeprefix(f"{self.name}-"): pid for name, pid in pids.items() if self.name in name}
        if HOLD not in self._pids:
            raise DevclusterError(f"the cluster has no node {self.name}; start it with `up --real-node`")
        self._setup = self._describe()
        return self

    def stop(self) -> None:
        """End all of it at once, its pods' containers too, and remove its data, its Node and its pods."""
        # The holder comes first and takes the others with it.
        for daemon in list(self._pids):
            self._end(daemon, signal.SIGKILL)
        cgroups.remove(self.setup.group)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.cluster.api.delete(self._path)
        self._delete_pods(grace_seconds=0)

    def start_daemon(self, daemon: Daemon) -> None:
        """Start kubelet or containerd and wait until it serves; containers that ran go on."""
        if daemon == "containerd":
            path = self.setup.search_path(os.environ.get("PATH", os.defpath))
            self._run(daemon, self._entering(self.setup.containerd()), {"PATH": path})
            self._wait(daemon, self._containerd_answers, what="an answer")
        else:
            # A heartbeat has whole seconds, and kubelet may restart within one; new sockets show the new kubelet.
            started = datetime.now(UTC).replace(microsecond=0)
            for socket in self._sockets:
                socket.unlink(missing_ok=True)
            self._run(daemon, self._entering(self.setup.kubelet()))
            self._wait(daemon, lambda: self._is_ready_since(started), what=f"the node {self.name} to be ready")

    def stop_daemon(self, daemon: Daemon) -> None:
        """Stop kubelet or containerd gracefully; containers run on."""
        self._end(daemon, signal.SIGTERM)

    def kill_daemon(self, daemon: Daemon) -> None:
        """End kubelet or containerd at once; containers run on."""
        self._end(daemon, signal.SIGKILL)

    def pause_daemon(self, daemon: Daemon) -> None:
        """Pause kubelet or containerd until it is killed."""
        pid = self.pid(daemon)
        if pid is not None:
            os.kill(pid, signal.SIGSTOP)

    def restart_daemon(self, daemon: Daemon) -> None:
        """Stop kubelet or containerd and start it again."""
        self.stop_daemon(daemon)
        self.start_daemon(daemon)

    def start_program(self, name: str, command: Sequence[str], *, ready: Callable[[], bool], what: str) -> None:
        """Start another program among the node's mounts, such as a driver, and wait for it; it ends with the node."""
        self._run(name, self._entering(command))
        self._wait(name, ready, what=what)

    def stop_program(self, name: str) -> None:
        """Stop a program that `start_program` started, gracefully."""
        self._end(name, signal.SIGTERM)

    def pid(self, daemon: str) -> int | None:
        """Return the process id of kubelet or containerd, as this machine counts them; None where it does not run."""
        wrapper = self._pids.get(daemon)
        try:
            children = Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return int(children[0]) if children else None

    def allocatable(self, resource: str) -> int:
        """Return how much of a resource the Node has to give; 0 of one that it does not know."""
        node = self.cluster.api.get(f"/api/v1/nodes/{self.name}")
        return int(node["status"].get("allocatable", {}).get(resource, "0"))

    def container(self, pod: Manifest, name: str = "main") -> Container:
        """Return a running container of a pod whose status says that it runs, once it runs its own program."""
        status: Manifest = next(entry for entry in pod["status"]["containerStatuses"] if entry["name"] == name)
        container_id = status["containerID"].removeprefix("containerd://")
        pids = cgroups.processes(container_id)
        if not pids:
            raise DevclusterError(f"no process of the container {name} of {pod['metadata']['name']} runs")
        found = Container(id=container_id, pid=pids[0])
        # containerd says that it runs a moment before runc has replaced itself.
        waiting.until(lambda: found.runs_its_program, deadline=START_SECONDS, what=f"the program of {name} to start")
        return found

    def output(self, pod: Manifest, name: str = "main") -> str:
        """Return what a pod's container has written since its last start."""
        metadata = pod["metadata"]
        logs = self.root / "logs" / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}" / name
        newest = max(logs.glob("*.log"), key=lambda path: int(path.stem))
        # Each line is: time, stream, whether it is whole, text.
        return "".join(f"{line.split(' ', 3)[3]}\n" for line in newest.read_text().splitlines())

    def ctr(self, *arguments: str) -> str:
        """Run ctr among the node's containers and return its output."""
        return self.inside(self.setup.ctr(*arguments))

    def import_images(self, *archives: Path) -> None:
        """Import the images of OCI archives; pods name them as the archives do, and nothing is pulled."""
        for archive in archives:
            self.ctr("images", "import", str(archive))

    def inside(self, command: Sequence[str]) -> str:
        """Run a program among the node's mounts and processes and return its output."""
        completed = subprocess.run(self._entering(command), capture_output=True, text=True, check=False)
        if completed.returncode != 0:
            raise DevclusterError(f"{' '.join(command)}: {(completed.stderr or completed.stdout).strip()}")
        return completed.stdout

    def clear(self) -> None:
        """Delete every pod of the node and wait until none of their containers runs; kubelet has to."""
        waiting.until(self._is_empty, deadline=START_SECONDS, what="the pods to go")
        waiting.until(lambda: not self.ctr("tasks", "ls", "-q"), deadline=START_SECONDS, what="their containers to end")

    def tail(self, daemon: str, *, lines: int = LAST_LINES) -> str:
        """Return the last lines that kubelet or containerd has logged."""
        log = self.cluster.folder / f"{self.name}-{daemon}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def _path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    @property
    def _sockets(self) -> tuple[Path, Path]:
        return self.device_plugins / "kubelet.sock", self.pod_resources

    def _pods(self) -> list[Manifest]:
        pods: list[Manifest] = self.cluster.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")["items"]
        return pods

    def _is_empty(self) -> bool:
        """Delete all pods of the node, and return whether none is left."""
        if any("deletionTimestamp" not in pod["metadata"] for pod in self._pods()):
            self._delete_pods(grace_seconds=GRACE_SECONDS)
        return not self._pods()

    def _delete_pods(self, *, grace_seconds: int) -> None:
        for pod in self._pods():
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            self.cluster.api.delete(path, grace_seconds=grace_seconds)

    def _describe(self) -> config.NodeSetup:
        chosen = {name: self.replaced.get(name, name) for name in programs.REAL_NODE}
        found = programs.ensure(chosen.values())
        paths = {name: found[program] for name, program in chosen.items()}
        pid = state.supervisor(self.cluster.folder)
        if pid is None:
            raise DevclusterError("the cluster does not run")
        return config.NodeSetup(
            node=self.name,
            folder=self.folder,
            group=cgroups.name(pid, self.name),
            programs=paths,
            seccomp="libseccomp" in run([paths["runc"], "--version"]),
            tools=tools.ensure(),
            labels=self.labels,
        )

    def _containerd_answers(self) -> bool:
        try:
            return "ok" in self.ctr("plugins", "ls", "id==cri")
        except DevclusterError:
            # Its socket is not there yet.
            return False

    def _is_ready_since(self, started: datetime) -> bool:
        """Return whether the kubelet that was started at that time has reported its node ready."""
        try:
            node = self.cluster.api.get(self._path)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        [ready] = [condition for condition in node["status"].get("conditions", []) if condition["type"] == "Ready"] or [
            {}
        ]
        heartbeat = datetime.fromisoformat(ready.get("lastHeartbeatTime", LONG_AGO))
        return heartbeat >= started and nodes.is_ready(node) and all(socket.exists() for socket in self._sockets)

    def _entering(self, command: Sequence[str]) -> list[str]:
        return [*SCRIPT, "enter", str(self._pids[HOLD]), *command]

    def _run(self, daemon: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._pids[daemon] = self.cluster.run(f"{self.name}-{daemon}", command, environment=environment)

    def _wait(self, daemon: str, ready: Callable[[], bool], *, what: str) -> None:
        def is_over() -> bool:
            return ready() or not state.is_alive(self._pids[daemon])

        waiting.until(
            is_over,
            deadline=START_SECONDS,
            what=what,
            details=lambda: f"the last lines of {daemon}:\n{self.tail(daemon)}",
        )
        if not state.is_alive(self._pids[daemon]):
            raise DevclusterError(f"{daemon} of {self.name} ended; its last lines:\n{self.tail(daemon)}")

    def _end(self, daemon: str, number: int) -> None:
        pid, wrapper = self.pid(daemon), self._pids.pop(daemon)
        # The wrapper ends with its child.
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        waiting.until(lambda: not state.is_alive(wrapper), deadline=STOP_SECONDS, what=f"the end of {daemon}")
