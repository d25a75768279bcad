"""Real operators and agents as processes of a test, confined to one arena.

They die with the test run, however it ends, and each writes a log; a test that fails shows the ends of all of them.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster import Arena, supervisor, waiting
from tests.nvml.fixture import NvmlFixture

LOG_LINES: Final = 25
STOP_SECONDS: Final = 60.0
LEADING: Final = '"event": "leading"'

QUICK_TERMS: Final = {"lease_duration": 6, "renew_deadline": 5.0, "retry_period": 0.2}
"""A leadership that is soon over, but not on a machine that is merely busy."""


class Process:
    """One program, its log, and the signals that tests send it."""

    def __init__(self, *, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        # The wrapper makes the kernel kill it with this process: no test run leaves an operator behind.
        wrapper = [sys.executable, "-I", "-S", str(supervisor.EXEC_CHILD), str(os.getpid())]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*wrapper, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        """Its process id, and not that of a wrapper."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.poll()

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    def logged(self, text: str, *, deadline: float = waiting.PATIENCE) -> None:
        """Wait until its log holds a text."""
        waiting.until(lambda: text in self.text() or self._ended(), deadline=deadline, what=f"{self.name}: {text}")

    def kill(self) -> None:
        """End it at once, without a chance to clean up."""
        self.resume()
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end and wait for that; give its exit status."""
        self.resume()
        self._process.terminate()
        return self._process.wait(STOP_SECONDS)

    def ended(self, *, deadline: float = waiting.PATIENCE) -> int:
        """Wait until it ends by itself; give its exit status."""
        return self._process.wait(deadline)

    def pause(self) -> None:
        """Let it stand still."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def _ended(self) -> bool:
        if self.exit_code is not None:
            raise AssertionError(f"{self.name} ended with {self.exit_code}:\n{self.tail()}")
        return False

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.text().splitlines()[-LOG_LINES:])


class Processes:
    """All programs of one arena; `close` ends them."""

    def __init__(self, *, arena: Arena, folder: Path) -> None:
        self.arena = arena
        self.folder = folder
        self.started: list[Process] = []

    def operator(self, *, kubeconfig: Path | None = None, wait: bool = True, **flags: object) -> Process:
        """Start an operator; return when it leads unless told not to `wait`. Flags as in its settings, or None."""
        process = self._start(
            "operator",
            "berth_operator",
            {
                "kubeconfig": kubeconfig or self.arena.cluster.kubeconfig,
                "scheduler_names": self.arena.scheduler_name,
                # These nodes run no containers.
                "require_injection": None if "config" in flags else False,
                "node_selector": self.arena.selector,
                "namespace": self.arena.namespace,
                "lease": self.arena.lease_name,
                "takeover_pause": 0.1,
                "health": "",
                "metrics_port": 0,
                "debug_port": 0,
                **flags,
            },
        )
        if wait:
            process.logged(LEADING)
        return process

    def agent(self, fleet: Path, **flags: object) -> Process:
        """Start an agent that plays the nodes of a fleet file; flags as in its settings."""
        return self._start(
            "agent",
            "berth_agent",
            {
                "kubeconfig": self.arena.cluster.kubeconfig,
                "inventory": "simulated",
                "fleet": fleet,
                "poll_interval": 0.1,
                "resync_interval": 1.0,
                **flags,
            },
        )

    def node_agent(self, node: str, machine: NvmlFixture, **flags: object) -> Process:
        """Start the agent of a node with the cards of the NVML fixture; flags as in its settings."""
        own = {
            "kubeconfig": self.arena.cluster.kubeconfig,
            "node_name": node,
            "nvml_library": machine.library,
            "sysfs_root": machine.sysfs,
        }
        return self._start(
            "agent", "berth_agent", {**own, **flags}, environment={"BERTH_NVML_STATE": str(machine.state)}
        )

    def webhook(self, **flags: object) -> Process:
        """Start a webhook; flags as in its settings."""
        return self._start(
            "webhook", "berth_operator", {"kubeconfig": self.arena.cluster.kubeconfig, **flags}, command="webhook"
        )

    def tails(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"--- {each.name} (exit code {each.exit_code})\n{each.tail()}" for each in self.started)

    def close(self) -> None:
        """End what still runs."""
        running = [each for each in self.started if each.exit_code is None]
        for each in running:
            each.kill()

    def _start(
        self,
        kind: str,
        module: str,
        flags: Mapping[str, object],
        *,
        command: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        process = Process(
            name=f"{kind}-{len(self.started)}",
            command=[
                sys.executable,
                "-m",
                module,
                *filter(None, [command]),
                *(_flag(name, value) for name, value in flags.items() if value is not None),
            ],
            folder=self.folder,
            environment={"BERTH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        self.started.append(process)
        return process


def _flag(name: str, value: object) -> str:
    written = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{written}" if value else f"--no-{written}"
    return f"--{written}={value}"
