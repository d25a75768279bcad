import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster import Arena
from tests.nvml.fixture import NvmlFixture
from tests.programs import forking
from tests.stand_ins.kubelet import Kubelet
from tests.stand_ins.pod_resources import PodResourcesServer


class RunningAgent:
    """An agent process, its log, and its exit."""

    def __init__(self, *, arena: Arena, options: list[str], environment: dict[str, str]) -> None:
        self.lease_namespace = f"{arena.id}-leases"
        arena.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.lease_namespace}})
        self._log = arena.folder / f"agent-{time.monotonic_ns()}.log"
        paces = {"poll-interval": "0.2", "resync-interval": "0.5", "renew-interval": "1", "lease-duration": "5"}
        defaults = [word for name, value in paces.items() for word in (f"--{name}", value)]
        defaults += ["--kubeconfig", str(arena.cluster.kubeconfig), "--lease-namespace", self.lease_namespace]
        if "--checkpoint" not in options:
            # Its folder has the locks that exclude other agents of the node.
            defaults += ["--checkpoint", str(self._log.with_suffix("") / "checkpoint.json")]
        command = [sys.executable, "-m", "berth_agent", *defaults, *options]
        self._process = forking.spawn(command, log=self._log, environment=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        """Stop the agent as kubelet does, and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait until it exits, and return its exit code."""
        return self._process.wait(30)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(10)


StartAgent = Callable[..., RunningAgent]


def node_events(arena: Arena, node: str) -> list[dict[str, Any]]:
    """Return the Events on a Node that `kubectl describe node` shows."""
    about = {"kind": "Node", "name": node, "namespace": "", "uid": node}
    selector = ",".join(f"involvedObject.{field}={value}" for field, value in about.items())
    listed: list[dict[str, Any]] = arena.cluster.api.get("/api/v1/events", fieldSelector=selector)["items"]
    return listed


@pytest.fixture
def resources() -> Iterator[PodResourcesServer]:
    """Return kubelet's PodResources, in a folder whose path is short enough for sockets."""
    with (
        tempfile.TemporaryDirectory(prefix="berth-") as path,
        PodResourcesServer(Path(path) / "kubelet.sock") as running,
    ):
        yield running


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="berth-") as path:
        yield Path(path)


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[Kubelet]:
    running = Kubelet(folder)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
def start(arena: Arena) -> Iterator[StartAgent]:
    """Start agents on the arena's cluster; they stop with the test."""
    agents: list[RunningAgent] = []

    def begin(*options: str, **environment: str) -> RunningAgent:
        agents.append(RunningAgent(arena=arena, options=list(options), environment=environment))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.end()
    arena.delete("namespaces", f"{arena.id}-leases")


@pytest.fixture
def start_nvml(start: StartAgent) -> Callable[..., RunningAgent]:
    """Start an agent for one node on a machine of the NVML fixture."""

    def begin(node: str, fixture: NvmlFixture, *options: str) -> RunningAgent:
        fixture.write()
        own = ["--node-name", node, *fixture.agent_options(), *options]
        return start(*own, BERTH_NVML_STATE=str(fixture.state))

    return begin


@pytest.fixture
def device(arena: Arena) -> Callable[[str], dict[str, Any]]:
    """Wait for the Device of a node to have both of the agent's conditions."""

    def published(node: str) -> dict[str, Any] | None:
        if not arena.cluster.api.exists(f"/apis/berth.dev/v1alpha1/devices/{node}"):
            return None
        current = arena.get("devices", node)
        return current if len(current.get("status", {}).get("conditions", [])) > 1 else None

    def wait(node: str) -> dict[str, Any]:
        current = arena.wait(lambda: published(node), what=f"the Device of {node}")
        assert current is not None
        return current

    return wait


@pytest.fixture
def fleet_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a fleet file atomically."""

    def write(*nodes: str) -> Path:
        fresh = tmp_path / "fleet.new"
        fresh.write_text("\n".join(["nodes:", *nodes]))
        return fresh.rename(tmp_path / "fleet.yaml")

    return write
