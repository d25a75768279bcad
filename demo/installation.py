"""The cluster of the demo, and its programs, each with only the rights of its own ServiceAccount."""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from devcluster import Cluster, waiting
from devcluster.additions import agents, installation
from devcluster.building import programs
from devcluster.processes import state

T = TypeVar("T")
Manifest = dict[str, Any]

ROOT: Final = Path(__file__).parent.parent
EXAMPLES: Final = ROOT / "manifests" / "examples"
MORTAL: Final = "node-2"
"""The node that dies; its cards have an agent of their own."""
FLEETS: Final = {
    "agent": [{"names": "node-0", "profile": "a100", "gpus": 4}, {"names": "node-1", "profile": "h100", "gpus": 8}],
    f"agent-{MORTAL}": [{"names": MORTAL, "profile": "l40s", "gpus": 2}],
}
"""The nodes that each agent simulates."""
NODES: Final = ("node-0", "node-1", MORTAL)

OPERATOR: Final = installation.OPERATOR
MORTAL_AGENT: Final = f"agent-{MORTAL}"

HEARTBEAT: Final = ("--lease-duration=3", "--renew-interval=0.5", "--poll-interval=1")
GRACE: Final = ("--agent-grace=2",)
"""A dead agent is noticed within 6 s instead of 51, to keep the demo short."""
DEADLINE: Final = 60.0


class DemoError(Exception):
    """A step failed; the text names it, with the ends of the logs."""


@dataclass(kw_only=True)
class Installation:
    """A running cluster and the programs that were started in it."""

    cluster: Cluster
    starts: dict[str, Callable[[], int]] = field(default_factory=dict)
    """The function that starts each program and returns its process id."""
    pids: dict[str, int] = field(default_factory=dict)

    # --- setting up -----------------------------------------------------------------------------------------

    def install(self) -> None:
        """Apply an installation of Berth without its two programs."""
        installation.apply(self.cluster)
        self.cluster.play_device_plugins()
        self.cluster.create_nodes(NODES)

    def start_programs(self) -> None:
        """Start the operator and both agents."""
        command = [sys.executable, "-m", "berth_agent", *HEARTBEAT, *agents.options(self.cluster, NODES)]
        for name, nodes in FLEETS.items():
            fleet = self.cluster.folder / f"{name}.yaml"
            fleet.write_text(yaml.safe_dump({"nodes": nodes}))
            self._start(name, [*command, f"--fleet={fleet}"])
        self._start(OPERATOR, installation.operator(installation.account(self.cluster, "berth-operator"), *GRACE))

    def apply(self, file: Path) -> list[Manifest]:
        """Apply a YAML file as administrator and return its objects."""
        return [self.cluster.api.apply(document) for document in installation.documents(file)]

    # --- programs -------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill a program, as in a crash."""
        pid = self.pids.pop(name)
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: not state.is_alive(pid), what=f"{name} to be gone")

    def restart(self, name: str) -> None:
        """Restart a program that has ended."""
        self.pids[name] = self.starts[name]()

    def logs(self) -> str:
        """Return the ends of all programs' logs."""
        return "\n".join(self._end_of_log(name) for name in self.starts)

    def _end_of_log(self, name: str) -> str:
        return "\n".join([f"--- the last lines of {name}:", *installation.last_lines(self.cluster, name)])

    def _start(self, name: str, command: Sequence[str]) -> None:
        self.starts[name] = functools.partial(self.cluster.run, name, command)
        self.restart(name)

    def set_node_ready(self, name: str, *, status: str) -> None:
        """Set the condition Ready of a Node, as Kubernetes does when its kubelet is silent (`Unknown`) or back."""
        condition = {"type": "Ready", "status": status, "reason": "Demo"}
        self.cluster.api.merge(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})

    # --- looking at it --------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], T], *, what: str) -> T:
        """Return the first truthy answer of a condition.

        Raises:
            DemoError: a program has ended, or the deadline has passed; with the ends of the logs.
        """

        def checked() -> T:
            self._check_alive()
            return condition()

        try:
            return waiting.until(checked, deadline=DEADLINE, what=what)
        except TimeoutError as error:
            raise DemoError(f"{error}\n{self.logs()}") from None

    def _check_alive(self) -> None:
        for name, pid in self.pids.items():
            if not state.is_alive(pid):
                raise DemoError(f"{name} has ended by itself\n{self._end_of_log(name)}")

    def explain(self, pod: str) -> str:
        """Return what `kubectl berth explain` prints for a pod.

        Raises:
            DemoError: it failed, or did not use the visibility API, which it reports.
        """
        command, environment = self._kubectl_berth("explain", pod)
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment)
        if done.returncode or done.stderr:
            raise DemoError(f"kubectl berth explain {pod}: {done.stderr or done.stdout}")
        return done.stdout

    def serve_page(self) -> None:
        """Run `kubectl berth dashboard` until a signal ends it, or this process.

        Raises:
            DemoError: it failed.
        """
        command, environment = self._kubectl_berth("dashboard")
        page = subprocess.Popen(command, env=environment)
        try:
            status = page.wait()
        except KeyboardInterrupt:
            page.terminate()
            status = page.wait()
        if status:
            raise DemoError(f"kubectl berth dashboard has ended with status {status}")

    def _kubectl_berth(self, *arguments: str) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return a command of `kubectl berth`, and its environment."""
        kubectl = programs.ensure(["kubectl"], download=True)["kubectl"]
        command = [sys.executable, "-m", "berth_kubectl", *arguments, f"--kubeconfig={self.cluster.kubeconfig}"]
        return command, os.environ | {"BERTH_KUBECTL": str(kubectl)}

    def list(self, path: str) -> list[Manifest]:
        """List objects."""
        items: list[Manifest] = self.cluster.api.get(path)["items"]
        return items
