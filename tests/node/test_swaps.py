"""kubelet admits pods in an unexpected order: pods exchange their devices, and none fails."""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from devcluster import Arena, Cluster
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.node.conftest import REPEAT, repeats
from tests.node.stage import GPU, Stage
from tests.nvml.fixture import a100
from tests.stand_ins.certificates import Authority
from tests.stand_ins.proxy import FaultProxy

ROUNDS = 3 if REPEAT == 1 else 10 * REPEAT
"""Four of five pods are given others' cards, so a few rounds exchange some."""
SEED = 42
PODS = 4
LATE = 18.0
"""Seconds by which the agent's watch of pods and this test are late at most, also on a machine ten times slower."""
EXCHANGED = 2.0
"""Seconds in which two pods that hold each other's devices are exchanged."""


@pytest.fixture(scope="module")
def kubelets_way(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    """Through which kubelet speaks with the API server."""
    folder = tmp_path_factory.mktemp("kubelets-way")
    with FaultProxy(
        server=cluster.server, ca_file=cluster.ca_file, folder=folder, authority=Authority(folder)
    ) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def real_node(root_on_linux: None, cluster: Cluster, kubelets_way: FaultProxy) -> Iterator[RealNode]:  # noqa: ARG001 - asked for its skip
    """A real node whose kubelet can be kept from its pods."""
    with RealNode(cluster=cluster, kubeconfig=kubelets_way.kubeconfig(cluster.token)) as running:
        yield running


@repeats
def test_pods_that_are_admitted_out_of_order_are_exchanged(
    cluster: Cluster, arena: Arena, node: RealNode, kubelets_way: FaultProxy, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    with FaultProxy(server=cluster.server, ca_file=cluster.ca_file, folder=tmp_path) as proxy:
        proxy.slow("GET", r"/api/v1/pods\?.*watch=true", pause=lambda: chance.uniform(0, LATE))
        kubeconfig = proxy.kubeconfig(cluster.token)
        with Stage(node, arena, tmp_path, gpus=[a100(index) for index in range(8)], kubeconfig=kubeconfig) as stage:
            swaps = [one_round(stage, kubelets_way, number) for number in range(ROUNDS)]
    exchanged, slowest = sum(count for count, _ in swaps), max(took for _, took in swaps)
    sys.stdout.write(f"{ROUNDS} rounds, {exchanged} were given others' cards, exchanged in {slowest:.2f} s at most\n")
    # Else this test would prove nothing.
    assert exchanged > 0


def one_round(stage: Stage, kubelets_way: FaultProxy, number: int) -> tuple[int, float]:
    """Bind equal pods in reverse order of their creation while kubelet is away.

    Returns:
        How many were exchanged, and within how many seconds after all had been given their cards.
    """
    names = [f"round-{number}-{at}" for at in range(PODS)]
    # It is paused before it ends: its absence cannot be noticed, and pods are bound to its node.
    stage.node.pause_daemon("kubelet")
    stage.operator.pause()
    for at, name in enumerate(names):
        stage.arena.create([ranked(stage, name, at)])
    stage.operator.resume()
    stage.wait(lambda: all(stage.read(name)["spec"].get("nodeName") for name in names), what="their binds")
    chosen = {name: stage.cards(name) for name in names}
    stage.node.kill_daemon("kubelet")
    # It was written when devices were given the last time, and a kubelet that starts takes those pods for alive.
    (stage.node.device_plugins / "kubelet_internal_checkpoint").unlink(missing_ok=True)
    start_kubelet(stage, kubelets_way)

    stage.wait(lambda: given(stage, names), what="all to be given cards")
    began = time.monotonic()
    stage.wait(lambda: not unexchanged(stage, names), what="the exchange")
    took = time.monotonic() - began
    assert took < EXCHANGED + LATE
    stage.hold(*names)
    exchanged = sum(stage.cards(name) != cards for name, cards in chosen.items())
    stage.remove(*names)
    # A kubelet that is down does not report that they are gone.
    stage.wait(lambda: not stage.device()["status"].get("held"), what="their cards to be free")
    return exchanged, took


def start_kubelet(stage: Stage, kubelets_way: FaultProxy) -> None:
    """Start a kubelet that hears of its pods only once the plugin has offered it devices.

    Without a checkpoint it would admit earlier ones without devices, and ask for them when it starts their containers:
    for several at once, in which it may crash (kubernetes/kubernetes#136021, in one of a hundred such starts).
    """
    pods = kubelets_way.hold("GET", r"/api/v1/pods\?")
    stage.node.start_daemon("kubelet")
    stage.wait(lambda: stage.units().get(GPU) == len(stage.machine.gpus), what="kubelet to have the cards")
    pods.release()


def ranked(stage: Stage, name: str, rank: int) -> Manifest:
    """Return a pod that is bound before those of a lower rank."""
    pod = stage.pod(name, {GPU: "2"})
    pod["metadata"]["labels"] = {"genius/priority": str(rank)}
    return pod


def given(stage: Stage, names: Sequence[str]) -> bool:
    """Return whether kubelet has given every pod its devices."""
    held = stage.held()
    return all((name, "main", GPU) in held for name in names)


def unexchanged(stage: Stage, names: Sequence[str]) -> list[str]:
    """Return the pods that hold other devices than their allocations say."""
    held = stage.held()
    return [
        name
        for name in names
        if sorted(held.get((name, "main", GPU), ())) != sorted(entry["id"] for entry in stage.entries(name))
    ]
