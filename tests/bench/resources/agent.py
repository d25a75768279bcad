"""What an agent costs while nothing changes: `python -m tests.bench.resources.agent`.

WARM, SECONDS and SCRAPED are environment variables. One node has eight cards of the NVML fixture, a kubelet in memory,
and eight pods that each hold a card and compute on it. The device plugin, PodResources, labels and health events are
on, with the default intervals. The metrics are scraped every SCRAPED seconds. The agent logs in with a token file, as a
pod does, and imports only libraries that its image has. It runs for WARM seconds before it is measured for SECONDS.
"""

import asyncio
import contextlib
import socket
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from devcluster import Arena, Cluster, waiting
from devcluster.additions import fleet, installation
from tests.bench import figures
from tests.bench.cluster import usage
from tests.bench.cluster.contestants import BYTECODE
from tests.nvml import fixture
from tests.nvml.fixture import NvmlFixture
from tests.programs.processes import Process
from tests.stand_ins.kubelet import Kubelet
from tests.stand_ins.pod_resources import PodResourcesServer

CARDS: Final = 8
GPU: Final = "nvidia.com/gpu"
PUBLISHED_SECONDS: Final = 120.0
MIB: Final = 2**20
MIN_METRICS: Final = 10_000
"""Bytes that the metrics of eight cards exceed."""
SHIPPED: Final = "import sys; sys.modules['rich'] = None; from berth_agent.__main__ import main; main()"
"""structlog imports rich if it is installed. The agent does not depend on it, so its image lacks it."""
BOOT: Final = "sys/kernel/random/boot_id"


@contextlib.contextmanager
def opened() -> Iterator[Arena]:
    """Return a namespace on a cluster of its own."""
    figures.say_load()
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as name, Cluster() as cluster:
        cluster.install_crds(fleet.CRDS)
        installation.create_namespaces(cluster)
        arena = Arena(cluster=cluster, folder=Path(name))
        arena.open()
        yield arena


def main() -> None:
    """Run the benchmark."""
    warm, seconds, scraped = figures.number("WARM", 30), figures.number("SECONDS", 60), figures.number("SCRAPED", 15)
    with opened() as arena:
        measured = asyncio.run(measure(arena, warm=warm, seconds=seconds, scraped=scraped))
    figures.result({"bench": "agent", **measured, "seconds": seconds, "scraped_seconds": scraped})


async def measure(arena: Arena, *, warm: int, seconds: int, scraped: int = 0) -> dict[str, float]:
    """Measure an agent that has published everything, and whose metrics are scraped so often; 0 is never."""
    with tempfile.TemporaryDirectory(prefix="berth-") as name:
        node = Node(arena=arena, name=arena.nodes(1)[0], folder=Path(name))
        async with node.kubelet() as kubelet:
            with node.holders(), node.agent(kubelet) as agent:
                await kubelet.sees(lambda units: len(units.get(GPU, ())) == CARDS, deadline=PUBLISHED_SECONDS)
                await asyncio.to_thread(node.wait_until_published)
                async with _scraping(node.metrics_port, scraped):
                    await asyncio.sleep(warm)
                    return await _look(agent.pid, seconds)


@contextlib.asynccontextmanager
async def _scraping(port: int, seconds: int) -> AsyncIterator[None]:
    """Read the agent's metrics regularly, as Prometheus does."""

    async def scrape() -> None:
        while seconds:
            await asyncio.to_thread(_scrape, port)
            await asyncio.sleep(seconds)

    task = asyncio.create_task(scrape())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _scrape(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert len(answer.read()) > MIN_METRICS


async def _look(pid: int, seconds: int) -> dict[str, float]:
    before = usage.cpu_seconds(pid)
    await asyncio.sleep(seconds)
    spent = usage.cpu_seconds(pid) - before
    return {
        "rss_mb": round(usage.resident_bytes(pid) / MIB, 1),
        "pss_mb": round(usage.proportional_bytes(pid) / MIB, 1),
        "cpu_percent": round(100 * spent / seconds, 2),
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node with eight cards, all of them held."""

    arena: Arena
    name: str
    folder: Path
    """The path must be short enough for Unix sockets."""
    metrics_port: int = field(default_factory=_free_port)

    @contextlib.asynccontextmanager
    async def kubelet(self) -> AsyncIterator[Kubelet]:
        """Run a kubelet that accepts device plugins."""
        plugins = self.folder / "plugins"
        plugins.mkdir()
        running = Kubelet(plugins)
        await running.start()
        try:
            yield running
        finally:
            await running.stop()

    @contextlib.contextmanager
    def holders(self) -> Iterator[None]:
        """Create a pod and a process for each card, and a kubelet that reports which pod holds which card."""
        limits = {GPU: "1"}
        pods = [
            self.arena.pod(f"pod-{number}", limits=limits, requests=limits, nodeName=self.name)
            for number in range(CARDS)
        ]
        uids = [each["metadata"]["uid"] for each in self.arena.create(pods)]
        self._write_proc(uids)
        self._machine().write()
        with PodResourcesServer(self.folder / "resources.sock") as running:
            running.given = {
                (self.arena.namespace, f"pod-{number}", "main"): {GPU: [card.uuid]}
                for number, card in enumerate(self._machine().gpus)
            }
            yield

    @contextlib.contextmanager
    def agent(self, kubelet: Kubelet) -> Iterator[Process]:
        """Run the agent of the node."""
        machine = self._machine()
        options = {
            "kubeconfig": self._login(),
            "node-name": self.name,
            "kubelet-socket": kubelet.socket,
            "pod-resources-socket": self.folder / "resources.sock",
            "proc-root": self.folder / "proc",
            "checkpoint": self.folder / "checkpoint.json",
            "cdi-folder": self.folder / "cdi",
            "metrics-address": "127.0.0.1",
            "metrics-port": self.metrics_port,
        }
        words = ["--device-plugin", *machine.agent_options(), *(f"--{key}={value}" for key, value in options.items())]
        environment = {**BYTECODE, "BERTH_NVML_STATE": str(machine.state)}
        command = [sys.executable, "-c", SHIPPED, *words]
        process = Process(name="agent", command=command, folder=self.folder, environment=environment)
        try:
            yield process
        finally:
            process.stop()

    def wait_until_published(self) -> None:
        """Wait until the API server has every card and every pod's devices."""

        def is_published() -> bool:
            devices = [each for each in self.arena.list("devices") if each["metadata"]["name"] == self.name]
            held = [pod for each in devices for pod in each.get("status", {}).get("held", ())]
            labelled = f"{GPU}.count" in self.arena.get("nodes", self.name)["metadata"]["labels"]
            return labelled and len(held) == len(self.arena.list("gpupods")) == CARDS

        waiting.until(is_published, deadline=PUBLISHED_SECONDS, what="the agent to publish everything", poll=0.5)

    def _login(self) -> Path:
        """Return a kubeconfig that reads its token from a file, as a pod does."""
        kubeconfig = self.arena.service_account("bench-agent", "cluster-admin")
        document = yaml.safe_load(kubeconfig.read_text())
        user = document["users"][0]["user"]
        token = self.folder / "token"
        token.write_text(user.pop("token"))
        user["tokenFile"] = str(token)
        kubeconfig.write_text(yaml.safe_dump(document))
        return kubeconfig

    def _machine(self) -> NvmlFixture:
        cards = [fixture.a100(number) for number in range(CARDS)]
        for number, card in enumerate(cards):
            card.processes = [fixture.Process(pid=1000 + number, used=2**30)]
        # NVIDIA's library sleeps until an event comes; the fixture polls, and that cost is not the agent's.
        return NvmlFixture(self.folder, gpus=cards, event_poll_ms=1000)

    def _write_proc(self, uids: list[str]) -> None:
        files = {f"{1000 + number}/cgroup": f"0::/kubepods/pod{uid}/c\n" for number, uid in enumerate(uids)}
        for path, text in {**files, BOOT: "boot-1\n"}.items():
            file = self.folder / "proc" / path
            file.parent.mkdir(parents=True)
            file.write_text(text)


if __name__ == "__main__":
    main()
