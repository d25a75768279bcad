"""Live GPU metrics, from the card to the decision: NVML, the agent, Prometheus, the operator."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from berth_operator.metrics.gpu import families
from berth_operator.metrics.gpu.families import AGENT, FAMILIES
from tests.integration.operator.world import World, free_ports, metrics
from tests.nvml.fixture import NvmlFixture, a100
from tests.programs.prometheus import Prometheus

WHOLE = {"kubernetes.io/gpu": "100"}
SECONDS = {"metrics_interval": 1, "metrics_stale_after": 4}
STALE = "berth_gpu_metrics_stale"
FRESH = 'berth_gpu_metrics_cards{state="fresh"}'
READS = 'berth_gpu_metrics_refreshes_total{result="read"}'


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    """Start a Prometheus that serves by https."""
    with Prometheus(folder=tmp_path / "prometheus", https=True) as running:
        yield running


class Machines:
    """Two nodes with two cards each, their agents, and an operator that reads what Prometheus scrapes of them."""

    def __init__(self, world: World, prometheus: Prometheus, folder: Path) -> None:
        self.world, self.prometheus = world, prometheus
        *ports, self._port = free_ports(3)
        self.cards: dict[str, NvmlFixture] = {}
        names = world.arena.nodes(2)
        for number, (name, port) in enumerate(zip(names, ports, strict=True)):
            own = [replace(a100(index), uuid=f"GPU-{number}{a100(index).uuid[5:]}") for index in range(2)]
            self.cards[name] = NvmlFixture(folder=folder / name, gpus=own)
            (folder / name).mkdir()
            self.cards[name].write()
            world.processes.node_agent(name, self.cards[name], metrics_port=port, poll_interval=0.2)
        prometheus.scrape("berth-agent", *(f"127.0.0.1:{port}" for port in ports))
        self.operator = world.operator(
            config=self._profile(folder),
            scheduler_names=None,
            metrics_port=self._port,
            metrics_source="prometheus",
            prometheus_url=prometheus.url,
            prometheus_ca=prometheus.authority,
            **SECONDS,
        )
        # Other tests' Devices have no metrics.
        self.world.wait(lambda: self.read(FRESH) >= len(self.cards) * 2, what="metrics of all cards")

    def _profile(self, folder: Path) -> Path:
        plugins = {"filters": {"disabled": ["injected"]}, "scores": {"weights": {"genius": 1000}}}
        profile = {"schedulerName": self.world.arena.scheduler_name, "plugins": plugins}
        head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
        (folder / "berth.yaml").write_text(json.dumps({**head, "profiles": [profile]}))
        return folder / "berth.yaml"

    def heat(self, *, hot: str) -> None:
        """Make the cards of one node hot and all others idle, and wait until the operator has read that."""
        for name, machine in self.cards.items():
            load = 100 if name == hot else 0
            for gpu in machine.gpus:
                gpu.gpu_utilization, gpu.power = load, 60_000 + 3_300 * load
            machine.write()
            busy = f'sum(berth_gpu_sm_utilization_ratio{{node="{name}"}}) == {2 * load // 100}'
            self.prometheus.until(busy)
        # A read that began before the cards were hot may still run.
        before = self.read(READS)
        self.world.wait(lambda: self.read(READS) >= before + 2, what="two reads of the metrics")

    def read(self, name: str) -> float:
        """Return a metric of the operator."""
        return sum(map(float, metrics(self._port, name)))

    def wait_stale(self, stale: int) -> None:
        """Wait until the operator's metric shows whether the cards' metrics are stale."""
        self.world.wait(lambda: self.read(STALE) == stale, what=f"{STALE} to be {stale}")

    def node_of(self, pod: str) -> str:
        """Create a pod of one card, and return where it is bound."""
        self.world.pod(pod, WHOLE)
        return str(self.world.bound(pod)["spec"]["nodeName"])


def test_new_pods_avoid_hot_cards_and_a_dead_prometheus_stops_nothing(
    world: World, prometheus: Prometheus, tmp_path: Path
) -> None:
    machines = Machines(world, prometheus, tmp_path)
    for family in FAMILIES:
        # Of the other exporters there is nothing, but Prometheus refuses queries that are not valid.
        for query in (families.ages(family), *(families.values(family, each, 60.0) for each in family.series)):
            assert bool(prometheus.query(query)) == (family is AGENT), query
    # Of equal nodes always the same one is taken.
    first = machines.node_of("first")
    world.remove("first")
    world.wait_allocated(first, "0")
    machines.heat(hot=first)
    assert machines.node_of("second") != first
    prometheus.kill()
    machines.operator.logged("GPU metrics are stale")
    machines.wait_stale(1)
    machines.node_of("third")
    prometheus.start()
    machines.wait_stale(0)
    machines.node_of("fourth")
    world.audit(*machines.cards)


def test_a_tenants_service_that_claims_to_be_prometheus_is_not_asked(world: World) -> None:
    arena = world.arena
    labels = {"app.kubernetes.io/name": "prometheus"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "prometheus", "namespace": arena.namespace, "labels": labels},
        "spec": {"ports": [{"name": "web", "port": 9090}]},
    }
    arena.cluster.api.apply(service)
    operator = world.operator(metrics_source="prometheus", prometheus_namespaces="kube-system", **SECONDS)
    operator.logged("no Service of Prometheus in the namespaces kube-system")
    assert "Prometheus found" not in operator.text()
