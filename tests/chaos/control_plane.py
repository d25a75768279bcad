"""The programs of a cluster. They can be killed, stopped and started again. The control plane keeps its ports."""

import contextlib
import http.client
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self

from devcluster import Cluster, waiting
from devcluster.control_plane.api import ApiError
from devcluster.errors import DevclusterError
from devcluster.processes import state

API_SERVER: Final = "kube-apiserver"
ETCD: Final = "etcd"
PORTS: Final = {API_SERVER: "--secure-port=", ETCD: "--listen-client-urls=http://127.0.0.1:"}
"""Program -> the flag that ends in its port."""
POLL: Final = 0.02
GRACE: Final = 3.0
"""Seconds from SIGTERM to SIGKILL."""


class ControlPlane:
    """The programs of one cluster; a context manager that keeps the control plane's ports from other programs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._commands: dict[str, list[str]] = {}
        self._environments: dict[str, dict[str, str]] = {}
        for name in PORTS:
            self.remember(name)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for name in PORTS:
            self._stack.enter_context(_held(self.port(name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def names(self) -> list[str]:
        """Return the names of all programs of the cluster."""
        return list(self._processes())

    def pid(self, name: str) -> int:
        """Return the process id of a program."""
        return self._processes()[name]

    def _processes(self) -> Mapping[str, int]:
        running = state.read(self._cluster.folder)
        assert running is not None, "the cluster has not started"
        return running.processes

    def remember(self, name: str) -> None:
        """Remember how a program was started, so that it can be started again."""
        pid = self.pid(name)
        self._commands[name], self._environments[name] = _command(pid), _environment(pid)

    def runs(self, name: str) -> bool:
        """Return whether a program runs."""
        return state.is_alive(self.pid(name))

    def port(self, name: str) -> int:
        """Return the port on which a program listens."""
        flag = PORTS[name]
        return int(next(each for each in self._commands[name] if each.startswith(flag)).removeprefix(flag))

    def end(self, name: str, number: signal.Signals) -> None:
        """Send a signal that ends a program, and wait for its end; after a while it is killed, as kubelet does."""
        pid = self.pid(name)
        os.kill(pid, number)
        if not waiting.within(lambda: not state.is_alive(pid), seconds=GRACE, poll=POLL):
            os.kill(pid, signal.SIGKILL)
            waiting.until(lambda: not state.is_alive(pid), what=f"the end of {name}", poll=POLL)

    def start(self, name: str) -> None:
        """Start a program again that has ended."""

        def is_started() -> bool:
            try:
                self._cluster.run(name, self._commands[name], environment=self._environments[name])
            except DevclusterError:
                return False  # some of its threads have yet to end
            return True

        waiting.until(is_started, what=f"{name} to start", poll=POLL)

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        """Stop a program, and let it continue at the end of the block."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def serves(self, path: str) -> bool:
        """Return whether the API server is ready, and serves an object."""
        try:
            return self._cluster.api.is_ready() and bool(self._cluster.api.get(path))
        except (ApiError, OSError, http.client.HTTPException):
            return False


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]


def _environment(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


@contextlib.contextmanager
def _held(port: int) -> Iterator[None]:
    """Reserve a port while its program does not run; that it is bound, too, SO_REUSEPORT allows."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", port))
        yield
