"""The cluster of the demo, and its programs, each with only the rights of its own ServiceAccount."""

import functools
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from demo import nvml
from devcluster import Cluster, state, waiting
from devcluster.api import ApiError

T = TypeVar("T")
Manifest = dict[str, Any]

ROOT: Final = Path(__file__).parent.parent
EXAMPLES: Final = ROOT / "manifests" / "examples"
BASE: Final = ("namespace", "operator-rbac", "agent-rbac", "fence", "injection", "routing")
"""What an installation applies before its two programs; these run here as processes instead."""
NAMESPACE: Final = "berth-system"
SCHEDULER: Final = "berth-scheduler"

NVML_NODE: Final = "node-0"
FLEET: Final = {
    "nodes": [
        {"names": "node-1", "profile": "a100", "gpus": 8},
        {"names": "node-2", "profile": "h100", "gpus": 8},
        {"names": "node-3", "profile": ["t4", "t4", "l40s"]},
    ]
}
"""The nodes that one agent simulates; the last has unequal cards."""
NODES: Final = (NVML_NODE, "node-1", "node-2", "node-3")

OPERATOR: Final = "operator"
NVML_AGENT: Final = f"agent-{NVML_NODE}"
FLEET_AGENT: Final = "agent-fleet"

HEARTBEAT: Final = ("--lease-duration=3", "--renew-interval=0.5", "--poll-interval=1")
GRACE: Final = ("--agent-grace=2",)
"""A dead agent is noticed within 6 s instead of 51, to keep the demo short."""
TOKEN_SECONDS: Final = 3600
DEADLINE: Final = 60.0
LOG_LINES: Final = 12


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
        self.cluster.install_crds(ROOT / "crds")
        for file in BASE:
            self.apply(ROOT / "manifests" / "base" / f"{file}.yaml")
        self.cluster.play_device_plugins()
        self.cluster.create_nodes(NODES)

    def start_programs(self) -> None:
        """Start the operator and both agents."""
        agent = self._account("berth-agent")
        fleet = self.cluster.folder / "fleet.yaml"
        fleet.write_text(yaml.safe_dump(FLEET))
        simulated = ["--inventory=simulated", f"--fleet={fleet}"]
        machine = nvml.machine(self.cluster.folder)
        real = ["--inventory=nvml", f"--node-name={NVML_NODE}", *machine.agent_options()]
        self._start(
            NVML_AGENT,
            "berth_agent",
            [*real, *HEARTBEAT, f"--kubeconfig={agent}"],
            environment=machine.environment(),
        )
        self._start(FLEET_AGENT, "berth_agent", [*simulated, *HEARTBEAT, f"--kubeconfig={agent}"])
        quiet = ("--require-fence", "--health=", "--metrics-port=0", "--debug-port=0", "--log-format=text")
        operator = self._account("berth-operator")
        self._start(OPERATOR, "berth_operator", [*quiet, *GRACE, f"--kubeconfig={operator}"])

    def routes(self, file: Path) -> bool:
        """Return whether the API server would route the first pod of a file to Berth and inject a variable into it."""
        pod = next(yaml.safe_load_all(file.read_text()))
        path = self.cluster.api.resource("pods").path(namespace="default")
        try:
            spec = self.cluster.api.request("POST", path, body=pod, query={"dryRun": "All"})["spec"]
        except ApiError:  # the policy that refuses pods is in force before the one that routes them
            return False
        return spec["schedulerName"] == SCHEDULER and "env" in spec["containers"][0]

    def apply(self, file: Path) -> list[Manifest]:
        """Apply a YAML file as administrator and return its objects."""
        documents = [document for document in yaml.safe_load_all(file.read_text()) if document]
        return [self.cluster.api.apply(document) for document in documents]

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
        lines = (self.cluster.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return "\n".join([f"--- the last lines of {name}:", *lines[-LOG_LINES:]])

    def _start(
        self,
        name: str,
        module: str,
        flags: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [sys.executable, "-m", module, *flags]
        self.starts[name] = functools.partial(self.cluster.run, name, command, environment=environment)
        self.restart(name)

    def _account(self, name: str) -> Path:
        """Write a kubeconfig with a fresh token of a ServiceAccount."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token"
        answer = self.cluster.api.post(path, {"spec": {"expirationSeconds": TOKEN_SECONDS}})
        file = self.cluster.folder / f"{name}.kubeconfig"
        state.write_private(file, self.cluster.kubeconfig_for(answer["status"]["token"]))
        return file

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

    def list(self, path: str) -> list[Manifest]:
        """List objects."""
        items: list[Manifest] = self.cluster.api.get(path)["items"]
        return items
