"""Operators and agents that are forked from a process that has loaded their modules, with `multiprocessing`.

Loading the modules takes a second of CPU, which hundreds of starts would pay. After the fork comes the program's own
start. Its arguments, environment, log, signals and exit code are the same as in a process that Python starts. Tests of
the start itself, and of variables that Python or the linker reads, use `children.spawn`.
"""

import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster.processes import children

PROGRAMS: Final = {
    "berth_operator": ("berth_operator.commands.operate", "berth_operator.app"),
    "berth_agent": ("berth_agent.app",),
}
"""Program -> modules that it loads when it runs."""
WITH_FEWER_METRICS: Final = ("api", "webhook")
"""Commands that Python starts: the modules above register more metrics when they are loaded."""
OF_PROGRAMS: Final = ("BERTH_", "KUBECONFIG", "PYTHONUNBUFFERED", "PYTEST_")
"""Beginnings of the variables that programs read when they run, that is set for all, and that they do not read."""
_VARIABLES: Final = dict(os.environ)
"""Those of the fork server."""
_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([module for modules in PROGRAMS.values() for module in modules])


class Forked:
    """A program that ends with this process; it has what tests use of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        """Fork `-m <program> <arguments>`."""
        _, program, *arguments = command
        log.touch()
        own = {**os.environ, **environment}
        self._process = _CONTEXT.Process(
            target=_run, args=(program, arguments, log, own), name=" ".join(command)[:200], daemon=True
        )
        self._process.start()
        self.pid: int = self._process.pid or 0

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended, and return its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after some seconds.
        """
        self._process.join(timeout)
        if (exit_code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return exit_code

    def send_signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def spawn(command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> Forked | subprocess.Popen[bytes]:
    """Start `python -m <program> <arguments>` as `children.spawn` does, but forked where that makes no difference."""
    _, _, program, *arguments = command
    is_same = program in PROGRAMS and next(iter(arguments), "") not in WITH_FEWER_METRICS
    changed = {variable for variable, _ in {**os.environ, **environment}.items() ^ _VARIABLES.items()}
    if is_same and all(variable.startswith(OF_PROGRAMS) for variable in changed):
        return Forked(command[1:], log=log, environment=environment)
    return children.spawn(command, log=log, environment=environment)


def running() -> set[str]:
    """Return the ids and commands of what still runs."""
    return {f"{each.pid} {each.name}" for each in multiprocessing.active_children()}


def _run(program: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(write_through=True)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
