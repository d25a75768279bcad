"""Real operators and agents as processes of a test, confined to one arena.

They stop with the test run, however it ends. Each writes a log. A test that fails shows the ends of all logs.
"""

import functools
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from devcluster import Arena, waiting
from devcluster.additions import fleet as fleets
from devcluster.additions.agents import Agents
from devcluster.processes import children
from tests.nvml.fixture import NvmlFixture
from tests.programs import forking

LOG_LINES: Final = 25
STOP_SECONDS: Final = 60.0
LEADING: Final = '"event": "leading"'

QUICK_TERMS: Final = {"lease_duration": 6, "renew_deadline": 5.0, "retry_period": 0.2}
"""A leader that fails is replaced soon, but one on a busy machine keeps its term."""


Start = Callable[..., forking.Forked | subprocess.Popen[bytes]]
"""Starts a program, as `children.spawn` does."""


class Process:
    """One program, its log, and the signals that tests send to it."""

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        start: Start = children.spawn,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.log.unlink(missing_ok=True)
        self._process = start(command, log=self.log, environment=environment)

    @property
    def pid(self) -> int:
        """Return its process id, not that of the wrapper."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.poll()

    def text(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")

    def logged(self, text: str, *, deadline: float = waiting.PATIENCE) -> None:
        """Wait until its log contains a text."""
        waiting.until(
            lambda: text in self.text() or self._ended(),
            deadline=deadline,
            what=f"{self.name}: {text}",
            details=self.tail,
        )

    def kill(self) -> None:
        """Kill it at once, without a chance to clean up."""
        self.resume()
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Send SIGTERM and wait for the exit; return the exit code."""
        self.resume()
        self._process.terminate()
        return self._process.wait(STOP_SECONDS)

    def ended(self, *, deadline: float = waiting.PATIENCE) -> int:
        """Wait until it exits by itself; return the exit code."""
        waiting.until(
            lambda: self.exit_code is not None, deadline=deadline, what=f"the end of {self.name}", details=self.tail
        )
        return self._process.wait()

    def pause(self) -> None:
        """Pause it with SIGSTOP."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it."""
        self._process.send_signal(signal.SIGCONT)

    def _ended(self) -> bool:
        if self.exit_code is not None:
            raise AssertionError(f"{self.name} ended with {self.exit_code}:\n{self.tail()}")
        return False

    def tail(self) -> str:
        """Return the last lines of its log."""
        return "\n".join(self.text().splitlines()[-LOG_LINES:])


def _loopback(flags: Mapping[str, object]) -> dict[str, object]:
    """Return the address on which metrics need no token, for programs that serve them; versions before had no flag."""
    return {"metrics_address": "127.0.0.1"} if flags.get("metrics_port") else {}


class Processes:
    """All programs of one arena; `close` stops them."""

    def __init__(self, *, arena: Arena, folder: Path) -> None:
        self.arena = arena
        self.folder = folder
        self.started: list[Process] = []
        arena.logs.append(self.tails)
        self.environment: Mapping[str, str] = {}
        """Variables of the programs that are started from now on."""

    @functools.cached_property
    def agents(self) -> Agents:
        """The pods of the arena's agents, and their tokens."""
        return Agents(self.arena.cluster, self.folder, labels=self.arena.labels)

    def operator(self, *, kubeconfig: Path | None = None, wait: bool = True, **flags: object) -> Process:
        """Start an operator and `wait` until it leads; flags are named as in its settings, None leaves one out."""
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
                # All nodes of a test are new.
                "node_startup_timeout": 0,
                "health": "",
                "metrics_port": 0,
                "debug_port": 0,
                **_loopback(flags),
                **flags,
            },
        )
        if wait:
            process.logged(LEADING)
        return process

    def agent(self, fleet: Path, *, as_administrator: bool = False, **flags: object) -> Process:
        """Start an agent that plays the nodes of a fleet file; flags are named as in its settings.

        It has the shipped rights, and the tokens of its nodes, unless it is to have the administrator's.
        """
        if as_administrator:
            login: dict[str, object] = {"kubeconfig": self.arena.cluster.kubeconfig}
        else:
            self.agents.place(fleets.node_names(fleet))
            login = {"kubeconfig": self.agents.kubeconfig, "fleet_tokens": self.agents.tokens}
        return self._start(
            "agent",
            "berth_agent",
            {
                **login,
                "inventory": "simulated",
                "fleet": fleet,
                "poll_interval": 0.1,
                "resync_interval": 1.0,
                **flags,
            },
        )

    def node_agent(self, node: str, machine: NvmlFixture, **flags: object) -> Process:
        """Start the agent of a node with the cards of the NVML fixture; flags are named as in its settings."""
        own = {
            "kubeconfig": self.arena.cluster.kubeconfig,
            "node_name": node,
            "nvml_library": machine.library,
            # Its folder has the locks that exclude other agents of the node.
            "checkpoint": self.folder / "state" / node / "checkpoint.json",
            "sysfs_root": machine.sysfs,
            **_loopback(flags),
        }
        return self._start(
            "agent", "berth_agent", {**own, **flags}, environment={"BERTH_NVML_STATE": str(machine.state)}
        )

    def partitions(self, machine: NvmlFixture, *, state: Path, socket: Path) -> Process:
        """Start the process that makes partitions of a node's cards of the NVML fixture, and wait for its socket."""
        process = self._start(
            "partitions",
            "berth_agent.vendors.nvidia.partitions",
            {"state": state, "socket": socket, "nvml_library": machine.library},
            environment={"BERTH_NVML_STATE": str(machine.state)},
        )
        waiting.until(
            (socket / "partitions.sock").exists,
            deadline=waiting.PATIENCE,
            what="the socket of the process that makes partitions",
            details=process.tail,
        )
        return process

    def webhook(self, **flags: object) -> Process:
        """Start a webhook; flags are named as in its settings."""
        return self._start(
            "webhook", "berth_operator", {"kubeconfig": self.arena.cluster.kubeconfig, **flags}, command="webhook"
        )

    def api(self, **flags: object) -> Process:
        """Start a replica of the list and watch API; flags are named as in its settings."""
        return self._start(
            "api", "berth_operator", {"kubeconfig": self.arena.cluster.kubeconfig, **flags}, command="api"
        )

    def tails(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {each.name} (exit code {each.exit_code})\n{each.tail()}" for each in self.started)

    def close(self) -> None:
        """Stop what still runs."""
        running = [process for process in self.started if process.exit_code is None]
        for process in running:
            process.kill()
        if "agents" in vars(self):
            self.agents.remove()

    def _start(
        self,
        kind: str,
        module: str,
        flags: Mapping[str, object],
        *,
        command: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        arguments = [_flag(name, value) for name, value in flags.items() if value is not None]
        own = {"BERTH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1", **self.environment, **(environment or {})}
        process = Process(
            name=f"{kind}-{len(self.started)}",
            command=[sys.executable, "-m", module, *filter(None, [command]), *arguments],
            folder=self.folder,
            environment=own,
            start=forking.spawn,
        )
        self.started.append(process)
        return process


def _flag(name: str, value: object) -> str:
    written = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{written}" if value else f"--no-{written}"
    return f"--{written}={value}"
