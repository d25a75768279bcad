"""The parent process of a cluster's programs: `python -m devcluster.control_plane.supervisor <folder>`.

The supervisor exchanges JSON lines with its owner. The owner sends `{"start": …}` first, then `{"run": …}` for more
programs, and `{"back_up": <folder>}` and `{"restore": <folder>}` for etcd's data. `{"detach": true}` lets the
supervisor stay without an owner. `{"detach": true, "users": <file>}` lets it stay while a process has locked the file.
The supervisor reads these lines from stdin and answers each with one line on stdout.

While the supervisor is not detached, the end of stdin means that the owner is gone, however it died. Everything is then
stopped in the right order. If the supervisor itself is killed, the kernel kills its children (see `children`).

Other processes read the supervisor's state through `state`.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TextIO

from devcluster.control_plane import components, front_proxy
from devcluster.control_plane.api import Api
from devcluster.errors import DevclusterError
from devcluster.processes import cgroups, children, state

LOG_LINES: Final = 15
NO_SPACE: Final = os.strerror(errno.ENOSPC).lower()
SPACE: Final = "1 GB"
"""What etcd's data and the logs of a small cluster take."""
DATA: Final = "etcd"
"""The folder with etcd's data."""
START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.02
IDLE_SECONDS: Final = 0.5
SUPERVISOR_LOG: Final = "supervisor.log"

Message = dict[str, Any]


class OwnerGone(Exception):  # noqa: N818 - nothing went wrong
    """The owner closed its end of the pipe or died, or the last user of a detached cluster has gone."""


class Inbox:
    """The owner's messages, one JSON object per line of stdin."""

    def __init__(self) -> None:
        self._buffer = b""
        self._detached = False
        self._users: TextIO | None = None
        """The file that the cluster's users lock, if it lives as long as any of them."""

    def detach(self, users: str | None) -> None:
        """Expect no messages from now on; end once no process has locked the file `users`, if one is given."""
        self._detached = True
        if users:
            self._users = Path(users).open("a")  # noqa: SIM115 -- its lock is kept to the end of this process

    def wait(self, seconds: float) -> None:
        """Wait for more input, but not longer than that; raise OwnerGone at its end."""
        if self._detached:
            time.sleep(seconds)
            # The lock is kept to the end, so that no new user takes a cluster that is stopping.
            if self._users is not None and state.try_lock(self._users, fcntl.LOCK_EX):
                raise OwnerGone
        elif select.select([sys.stdin.fileno()], [], [], seconds)[0]:
            data = os.read(sys.stdin.fileno(), 1 << 16)
            if not data:
                raise OwnerGone
            self._buffer += data

    def take(self) -> Message | None:
        """Return the next complete message, if there is one."""
        line, end, remaining = self._buffer.partition(b"\n")
        if not end:
            return None
        self._buffer = remaining
        message: Message = json.loads(line)
        return message


class Supervisor:
    """Starts the components in order, runs what the owner asks for, stops all in order."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._control_plane: components.ControlPlane
        self._token = ""
        self._started = time.time()

    def start(self, *, programs: Mapping[str, str], token: str, extra_args: components.ExtraArgs) -> None:
        """Start the control plane; return when objects can be created and ServiceAccounts work."""
        with _held_port() as etcd_port, _held_port() as api_port:
            self._control_plane = control_plane = components.ControlPlane(
                programs=programs, etcd_port=etcd_port, api_port=api_port, extra_args=extra_args
            )
            self._token = token
            state.write_private(Path(components.TOKENS), f'{token},admin,admin,"system:masters"\n')
            front_proxy.write(Path(components.CERTIFICATES))
            self._start_servers()
        api = Api(server=control_plane.server, token=token, ca=Path(components.CERTIFICATE).read_text())
        ca = Path(components.CERTIFICATE).read_text()
        config = components.kubeconfig(server=control_plane.server, token=token, ca=ca)
        state.write_private(Path(components.KUBECONFIG), config)
        for name in components.CONTROL_PLANE[2:]:
            self._spawn(name, control_plane.command(name), components.ENVIRONMENT)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("kube-controller-manager", lambda: api.exists(account))
        self._save_state()

    def run(self, *, name: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run one more program and return its process id."""
        running = self._children.get(name)
        if running is not None and running.poll() is None:
            raise DevclusterError(f"{name} already runs")
        config = str(Path(components.KUBECONFIG).absolute())
        self._spawn(name, command, {"KUBECONFIG": config, **environment})
        self._save_state()
        return self._children[name].pid

    def back_up(self, folder: Path) -> None:
        """Copy etcd's data, as of one moment."""
        etcd = self._children["etcd"]
        etcd.send_signal(signal.SIGSTOP)
        try:
            # What a killed etcd would leave, from which it starts.
            shutil.copytree(DATA, folder)
        finally:
            etcd.send_signal(signal.SIGCONT)

    def restore(self, folder: Path) -> None:
        """Replace etcd's data by a copy, and start etcd and the API server again. All other programs go on."""
        ports = self._control_plane.etcd_port, self._control_plane.api_port
        with _held_port(ports[0]), _held_port(ports[1]):
            for name in ("kube-apiserver", "etcd"):
                self._children[name].kill()
                self._children[name].wait()
            shutil.rmtree(DATA)
            shutil.copytree(folder, DATA)
            self._start_servers()
        self._save_state()

    def reap(self) -> None:
        """Reap programs that ended by themselves."""
        for child in self._children.values():
            child.poll()

    def stop(self) -> None:
        """Stop everything: clients first, then the API server, etcd last.

        Without etcd the API server's own stop would hang for minutes.
        """
        last = ("kube-apiserver", "etcd")
        clients = [name for name in self._children if name not in last]
        for group in (clients, *([name] for name in last if name in self._children)):
            children.stop_all(self._children[name] for name in group)
        # The kernel keeps the control groups of real nodes until they are removed.
        cgroups.remove_of(os.getpid())

    def _start_servers(self) -> None:
        """Start etcd and then the API server, each once what it needs is ready."""
        control_plane, token = self._control_plane, self._token
        self._start_component("etcd", lambda: _listens(control_plane.etcd_port))
        self._start_component("kube-apiserver", lambda: _answers_ready(control_plane.server, token))

    def _start_component(self, name: str, ready: Callable[[], bool]) -> None:
        self._spawn(name, self._control_plane.command(name), components.ENVIRONMENT)
        self._wait(name, ready)

    def _spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._children[name] = children.spawn(command, log=_log(name), environment=environment)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_SECONDS
        while not ready():
            exit_code = self._children[name].poll()
            if exit_code is not None:
                if _is_disk_full(self._children):
                    raise _disk_full()
                raise DevclusterError(f"{name} ended with code {exit_code}; its last lines:\n{_tail(name)}")
            if time.monotonic() > end:
                raise DevclusterError(f"{name} is not ready after {START_SECONDS:g} s:\n{_tail(name)}")
            self._inbox.wait(POLL_SECONDS)

    def _save_state(self) -> None:
        processes = {name: child.pid for name, child in self._children.items()}
        saved = state.State(server=self._control_plane.server, started=self._started, processes=processes)
        state.save(Path(), saved)


def main() -> None:
    """Serve one cluster until its owner goes or a signal asks to stop."""
    folder = Path(sys.argv[1])
    os.chdir(folder)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with state.held(Path()):
            # A supervisor that was killed left files in the folder, and any may have left parts of real nodes.
            cgroups.sweep()
            for path in Path().iterdir():
                if path.name not in (state.LOCK, SUPERVISOR_LOG):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            _serve(folder)
    except DevclusterError as error:
        _reply({"error": str(error)})


def _serve(folder: Path) -> None:
    inbox = Inbox()
    supervisor = Supervisor(inbox)
    keep = False
    try:
        first = _next_message(inbox)["start"]
        keep = first.pop("keep")
        supervisor.start(**first)
        _reply({"ready": True})
        while True:
            while (message := inbox.take()) is None:
                inbox.wait(IDLE_SECONDS)
                supervisor.reap()
            if message.get("detach"):
                inbox.detach(message["users"])
                _reply({"detached": True})
                continue
            try:
                _reply(_answer(supervisor, message))
            except (DevclusterError, OSError) as error:
                _reply({"error": str(error)})
    except OwnerGone:
        pass
    except DevclusterError:
        raise
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full() from error
        _reply({"error": traceback.format_exc()})
        raise
    except Exception:
        # The folder with the log may be removed in a moment, so send the whole traceback to the owner.
        _reply({"error": traceback.format_exc()})
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        supervisor.stop()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _answer(supervisor: Supervisor, message: Message) -> Message:
    match message:
        case {"back_up": str(folder)}:
            supervisor.back_up(Path(folder))
        case {"restore": str(folder)}:
            supervisor.restore(Path(folder))
        case _:
            return {"pid": supervisor.run(**message["run"])}
    return {"done": True}


def _next_message(inbox: Inbox) -> Message:
    while (message := inbox.take()) is None:
        inbox.wait(IDLE_SECONDS)
    return message


def _reply(message: Message) -> None:
    # An owner that died meanwhile is noticed at the end of stdin.
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(message), flush=True)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


@contextlib.contextmanager
def _held_port(port: int = 0) -> Iterator[int]:
    """Reserve a port, by default a free one: bound but not listening, so that the kernel gives it to no other process.

    The server binds it, too; SO_REUSEPORT allows that for processes of one user.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((components.LOOPBACK, port))
        yield holder.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((components.LOOPBACK, port)) == 0


def _answers_ready(server: str, token: str) -> bool:
    try:
        api = Api(server=server, token=token, ca=Path(components.CERTIFICATE).read_text())
        with contextlib.closing(api):
            return api.is_ready()
    except OSError:
        # Not listening yet, or its certificate is not written yet.
        return False


def _is_disk_full(names: Iterable[str]) -> bool:
    """Return whether a log says so; etcd may listen before it ends, and then the API server fails for lack of etcd."""
    return any(NO_SPACE in _log(name).read_text(errors="replace") for name in names)


def _disk_full() -> DevclusterError:
    return DevclusterError(
        f"the disk of {Path.cwd()} is full: free {SPACE} there, or name a folder on another disk by TMPDIR, and by"
        " XDG_STATE_HOME for `devcluster up`"
    )


def _log(name: str) -> Path:
    return Path(f"{name}.log")


def _tail(name: str) -> str:
    return "\n".join(_log(name).read_text(errors="replace").splitlines()[-LOG_LINES:])


if __name__ == "__main__":
    main()
