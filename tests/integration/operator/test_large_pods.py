"""Pods of the greatest size that etcd takes end no operator and no agent, whether lists are streamed or not."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api.resources import quantity
from tests.bench.cluster import usage
from tests.integration.operator.world import World
from tests.nvml.fixture import NvmlFixture, a100
from tests.stand_ins.pod_resources import PodResourcesServer
from tests.stand_ins.proxy import FaultProxy

VALUES = Path(__file__).parents[3] / "charts/berth/values.yaml"
GPU = "nvidia.com/gpu"
BOUND, WAITING = 20, 20
"""Hostile pods on the node, and hostile pods that wait: few, because the API server keeps them, too. Lists that hold
whole pages take some 6 MiB for each."""
MOST = {"operator": 200, "agent": 160}
"""MiB, of the processes of tests, which have loaded other modules, too. More pods add little: some KiB each."""
VARIABLES, LETTERS = 47, 32_000
"""A pod's variables and the letters of each: 1.5 MB, which a character beyond the BMP makes 6 MB in Python."""
ENV = [{"name": f"V{number}", "value": "\N{GRINNING FACE}" + "x" * LETTERS} for number in range(VARIABLES)]


def fill(world: World, name: str, count: int, **spec: Any) -> None:
    """Create hostile pods, one after the other: together, the test would hold them all."""
    containers = [{"name": "main", "image": "none", "env": ENV}]
    for number in range(count):
        world.arena.create([world.arena.pod(f"{name}-{number}", containers=containers, **spec)])


@pytest.fixture
def node(world: World) -> str:
    """Return a node with hostile pods on it, while others wait."""
    (name,) = world.arena.nodes(1, capacity={"cpu": "64", "memory": "256Gi", "pods": "500"})
    world.arena.create([world.arena.pod("small", limits={GPU: "1"}, requests={GPU: "1"}, nodeName=name)])
    fill(world, "bound", BOUND, nodeName=name)
    fill(world, "waiting", WAITING, nodeSelector={"kubernetes.io/hostname": "nowhere"})
    return name


@pytest.fixture
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodResourcesServer]:
    with PodResourcesServer(tmp_path_factory.mktemp("k") / "kubelet.sock") as running:
        yield running


def test_operator_and_agent_start_within_their_limits(
    world: World, node: str, proxy: FaultProxy, resources: PodResourcesServer, tmp_path: Path
) -> None:
    kubeconfig = proxy.kubeconfig(world.arena.cluster.token)
    machine = NvmlFixture(tmp_path, gpus=[a100(minor) for minor in range(4)])
    machine.write()
    resources.given = {(world.arena.namespace, "small", "main"): {GPU: [machine.gpus[0].uuid]}}

    def start(name: str) -> dict[str, int]:
        """Start both, wait until they have read the pods, and stop them; return their peaks in MiB."""
        world.arena.cluster.api.delete(f"/apis/berth.dev/v1alpha1/namespaces/{world.arena.namespace}/gpupods")
        agent = world.processes.node_agent(
            node, machine, kubeconfig=kubeconfig, pod_resources_socket=resources.socket, pod_resources_interval=0.5
        )
        world.wait(lambda: world.arena.list("gpupods"), what="the agent to know the node's pods")
        operator = world.operator(kubeconfig=kubeconfig)
        world.pod(name, {GPU: "1"})
        world.bound(name)
        peaks = {process.name: usage.peak_bytes(process.pid) >> 20 for process in (operator, agent)}
        assert (operator.stop(), agent.stop()) == (0, 0)
        return {name.partition("-")[0]: peak for name, peak in peaks.items()}

    by_stream = start("first")
    streams = proxy.answer("GET", "sendInitialEvents=true", status=422)
    in_pages = start("second")
    sys.stdout.write(json.dumps({"by_stream": by_stream, "in_pages": in_pages}))
    values = yaml.safe_load(VALUES.read_text())
    limits = {name: quantity.parse(values[name]["resources"]["limits"]["memory"]) >> 20 for name in MOST}
    for name, most in MOST.items():
        assert max(by_stream[name], in_pages[name]) < most < limits[name], name
    assert streams.caught
