"""A running cluster, as its owner sees it."""

import base64
import contextlib
import functools
import json
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from devcluster import waiting
from devcluster.building import programs
from devcluster.control_plane import audit, components, nodes
from devcluster.control_plane.api import Api, ApiError
from devcluster.control_plane.manifests import documents
from devcluster.errors import DevclusterError
from devcluster.processes import state

STOP_SECONDS: Final = 30.0
"""More than the supervisor itself grants its three groups of programs."""


class Cluster:
    """One cluster with its own data folder, ports and processes; a context manager.

    Attributes:
        folder: data and logs (`<component>.log`); a new temporary folder where none is given.
        extra_args: more arguments for a component by its name, such as `{"kube-apiserver": ["--v=4"]}`.
        keep: leave the folder behind after the stop.
        replaced: other programs for components by their names, such as `{"kube-apiserver": "kube-apiserver-1.30"}`.
        download: download programs that are missing, where that is possible.
    """

    def __init__(
        self,
        *,
        folder: Path | None = None,
        extra_args: components.ExtraArgs | None = None,
        keep: bool = False,
        replaced: Mapping[str, str] | None = None,
        download: bool = False,
    ) -> None:
        self.folder = folder or Path(tempfile.gettempdir()) / f"berth-{secrets.token_hex(6)}"
        self.extra_args = extra_args or {}
        self.keep = keep
        self.replaced = replaced or {}
        self.download = download
        self._supervisor: subprocess.Popen[str] | None = None

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
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / components.KUBECONFIG

    @property
    def ca_file(self) -> Path:
        """The certificate authority of the API server."""
        return self.folder / components.CERTIFICATE

    @functools.cached_property
    def server(self) -> str:
        """The API server's URL."""
        server: str = self._config["clusters"][0]["cluster"]["server"]
        return server

    @functools.cached_property
    def token(self) -> str:
        """The administrator's token."""
        token: str = self._config["users"][0]["user"]["token"]
        return token

    @functools.cached_property
    def api(self) -> Api:
        """A client with the administrator's rights."""
        return Api(server=self.server, token=self.token, ca=self._ca)

    def start(self) -> Self:
        """Start everything and return when the cluster is ready; the programs are built first where needed."""
        chosen = {name: self.replaced.get(name, name) for name in programs.CLUSTER}
        found = programs.ensure(chosen.values(), download=self.download)
        paths = {name: str(found[program]) for name, program in chosen.items()}
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._supervisor = self._start_supervisor()
            args = {name: list(args) for name, args in self.extra_args.items()}
            server = args.get("kube-apiserver", [])
            # An API server has one audit log, and a benchmark counts the requests in its own.
            has_log = any(argument.startswith("--audit-log-path") for argument in server)
            self._ask(
                start={
                    "programs": paths,
                    "token": secrets.token_urlsafe(24),
                    "extra_args": {
                        **args,
                        "kube-apiserver": [*server, *([] if has_log else audit.arguments(self.folder))],
                    },
                    "keep": self.keep,
                }
            )
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything that this object started, and remove the folder unless it is to be kept."""
        supervisor, self._supervisor = self._supervisor, None
        if "api" in vars(self):
            self.api.close()
        if supervisor is None:
            return
        _close_pipes(supervisor)
        try:
            supervisor.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            supervisor.kill()
            supervisor.wait()
        # Where the start failed because this cluster already runs, the folder is not ours.
        if not self.keep and state.supervisor(self.folder) is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the supervisor ends by itself."""
        if self._supervisor is not None:
            self._supervisor.wait()

    def detach(self, users: Path | None = None) -> None:
        """Detach the cluster, so that it outlives this process.

        It lives until it is stopped, or as long as any process has locked the file `users`.
        """
        self._ask(detach=True, users=None if users is None else str(users))
        if self._supervisor is not None:
            _close_pipes(self._supervisor)
            # Popen must not wait for the supervisor from here on.
            self._supervisor.returncode = 0
            self._supervisor = None

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a program that lives no longer than the cluster, and return its process id.

        Only the owner of the cluster can. The program is given the administrator's KUBECONFIG unless `environment`
        says otherwise; its output goes to `<name>.log` in the folder.
        """
        answer = self._ask(run={"name": name, "command": list(command), "environment": dict(environment or {})})
        pid: int = answer["pid"]
        return pid

    def back_up(self) -> Path:
        """Copy etcd's data, as of one moment, and return the copy's folder."""
        folder = self.folder / f"backup-{secrets.token_hex(4)}"
        self._ask(back_up=str(folder.absolute()))
        return folder

    def restore(self, backup: Path) -> None:
        """Replace etcd's data by a copy that `back_up` returned, and return when the API server is ready again.

        etcd and the API server are killed and started again on their ports. All other programs go on.
        """
        self._ask(restore=str(backup.absolute()))

    def play_device_plugins(self) -> None:
        """From now on have the nodes that kwok plays offer what their Devices have, as device plugins would."""
        self.run("device-plugins", [sys.executable, "-m", "devcluster.additions.device_plugins"])

    def kubectl(self, *args: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess names it
        """Run kubectl as administrator and return its output."""
        program = programs.ensure(["kubectl"], download=self.download)["kubectl"]
        command = [str(program), f"--kubeconfig={self.kubeconfig}", *args]
        completed = subprocess.run(command, input=input, capture_output=True, text=True, check=False)
        if completed.returncode != 0:
            raise DevclusterError(f"kubectl {' '.join(args)}: {(completed.stderr or completed.stdout).strip()}")
        return completed.stdout

    def kubeconfig_for(self, token: str) -> str:
        """Return the text of a kubeconfig that uses another token."""
        return components.kubeconfig(server=self.server, token=token, ca=self._ca)

    def create_nodes(
        self,
        names: Iterable[str],
        *,
        labels: nodes.Strings | None = None,
        annotations: nodes.Strings | None = None,
        capacity: nodes.Strings | None = None,
        allocatable: nodes.Strings | None = None,
        taints: Sequence[nodes.Strings] = (),
        deadline: float = 60.0,
    ) -> list[str]:
        """Create nodes that kwok plays and wait until pods can be scheduled to them.

        `capacity` is added to cpu, memory and pods, `allocatable` to the capacity.
        """
        options = nodes.NodeOptions(
            labels=labels or {},
            annotations=annotations or {},
            capacity=capacity or {},
            allocatable=allocatable or {},
            taints=tuple(taints),
        )
        node_names = list(names)
        self.api.create_all("/api/v1/nodes", [nodes.manifest(name, options) for name in node_names])
        self._wait_for_nodes(set(node_names), deadline)
        return node_names

    def install_crds(self, folder: Path, *, deadline: float = waiting.PATIENCE) -> None:
        """Apply every YAML file of a folder and wait until the API server serves the new kinds."""
        crds = [document for file in sorted(folder.glob("*.yaml")) for document in documents(file.read_text())]
        for crd in crds:
            self.api.apply(crd)
        paths = {path for crd in crds for path in _served_paths(crd)}
        for path in sorted(paths):
            waiting.until(functools.partial(self._is_served, path), deadline=deadline, what=f"{path} to be served")
        # The list of all kinds comes later; a controller that starts before it ends.
        waiting.until(
            lambda: paths <= {f"{resource.prefix}/{resource.plural}" for resource in self.api.resources()},
            deadline=deadline,
            what="discovery of the new kinds",
        )

    @functools.cached_property
    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = yaml.safe_load(self.kubeconfig.read_text())
        return config

    @property
    def _ca(self) -> str:
        return base64.b64decode(self._config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()

    def _start_supervisor(self) -> subprocess.Popen[str]:
        with (self.folder / "supervisor.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "devcluster.control_plane.supervisor", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C in the terminal is for the owner, who then stops the cluster in order.
                start_new_session=True,
            )

    def _ask(self, **message: object) -> dict[str, Any]:
        supervisor = self._supervisor
        if supervisor is None or supervisor.stdin is None or supervisor.stdout is None:
            raise DevclusterError("this process does not own the cluster")
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(message), file=supervisor.stdin, flush=True)
        line = supervisor.stdout.readline()
        if not line:
            log = self.folder / "supervisor.log"
            why = log.read_text() if log.exists() else "(it left no log)"
            raise DevclusterError(f"the cluster's supervisor died:\n{why}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise DevclusterError(answer["error"])
        return answer

    def _wait_for_nodes(self, names: set[str], deadline: float) -> None:
        def unready() -> set[str]:
            listed = self.api.get("/api/v1/nodes")["items"]
            return names - {node["metadata"]["name"] for node in listed if nodes.is_ready(node)}

        waiting.until(lambda: not unready(), deadline=deadline, what=f"{len(names)} nodes to be ready", poll=0.1)

    def _is_served(self, path: str) -> bool:
        try:
            self.api.get(path, limit="1")
        except (ApiError, TimeoutError):
            # Not found at first; then, for a moment after it is Established, too many requests. On a busy machine a
            # request of that moment may get no answer at all, and the next one gets it at once.
            return False
        return True


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _served_paths(crd: dict[str, Any]) -> list[str]:
    spec = crd["spec"]
    served = [version["name"] for version in spec["versions"] if version["served"]]
    return [f"/apis/{spec['group']}/{version}/{spec['names']['plural']}" for version in served]
