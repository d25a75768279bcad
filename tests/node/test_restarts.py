"""The end of any program does not affect running pods, and new pods work after it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from devcluster.real_node.node import Container
from tests.node.conftest import REPEAT, repeats
from tests.node.gate import Gate
from tests.node.stage import GPU, SHARE, Stage
from tests.nvml.fixture import a100

DENIED = "Pod admission denied"
"""What kubelet logs of a pod that does not fit, also if it runs already."""
KUBELET_LINES = 10_000
FREE_SECONDS = 2.0
"""In which the cards of a pod that failed are free again."""


def restart_agent(stage: Stage) -> None:
    stage.agent.stop()
    stage.start_agent()


RESTARTS: Mapping[str, Callable[[Stage], None]] = {
    "kubelet": lambda stage: stage.node.restart_daemon("kubelet"),
    "containerd": lambda stage: stage.node.restart_daemon("containerd"),
    "agent": restart_agent,
}


@repeats
@pytest.mark.parametrize("ends", RESTARTS)
def test_pods_keep_their_devices_and_new_ones_work(arena: Arena, node: RealNode, tmp_path: Path, ends: str) -> None:
    with Stage(node, arena, tmp_path, gpus=[a100(index) for index in range(4)]) as stage:
        stage.submit({GPU: "1"}, "one")
        stage.submit({GPU: "1"}, "two")
        stage.submit({SHARE: "50"}, "half")
        kept = ("one", "two", "half")
        stage.hold(*kept)
        before = containers(stage, *kept)
        for number in range(REPEAT):
            RESTARTS[ends](stage)
            stage.submit({GPU: "1"}, f"new-{number}")
            stage.submit({SHARE: "50"}, f"new-half-{number}")
            stage.hold(*kept, f"new-{number}", f"new-half-{number}")
            assert containers(stage, *kept) == before
            stage.remove(f"new-{number}", f"new-half-{number}")


@repeats
def test_an_agent_that_dies_between_choice_and_allocation_costs_one_pod_at_most(
    arena: Arena, node: RealNode, tmp_path: Path
) -> None:
    with (
        Gate(kubelet=node.device_plugins) as gate,
        Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)], kubelet_socket=gate.socket) as stage,
    ):
        stage.submit({GPU: "1"}, "kept")
        stage.hold("kept")
        for number in range(REPEAT):
            victim, successor = f"victim-{number}", f"successor-{number}"
            gate.next_allocate(stage.agent.kill)
            stage.submit({GPU: "1"}, victim)
            stage.wait(lambda name=victim: stage.read(name)["status"]["phase"] != "Pending", what=f"{victim} to end")
            if stage.read(victim)["status"]["phase"] == "Failed":
                stage.wait(lambda: len(stage.free()) == 1, what="its card to be free", deadline=FREE_SECONDS)
            stage.start_agent()
            stage.wait(stage.is_on_offer, what="the cards on offer")
            stage.submit({GPU: "1"}, successor)
            if stage.read(victim)["status"]["phase"] != "Failed":
                stage.remove(victim)
            stage.hold("kept", successor)
            stage.remove(successor)


@repeats
def test_an_xid_on_a_held_card_costs_no_pod_when_kubelet_restarts(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)], resync_interval=1.0) as stage:
        stage.submit({GPU: "1"}, "held")
        stage.hold("held")
        before = containers(stage, "held")
        [card] = stage.entries("held")
        for number in range(REPEAT):
            stage.machine.xid(card["minor"], 79)
            stage.wait(lambda: card["id"] not in stage.healthy()[GPU], what="the card to be unhealthy")
            node.restart_daemon("kubelet")
            half = f"half-{number}"
            stage.submit({SHARE: "50"}, half)
            stage.hold(half)
            assert stage.cards(half) != [card["minor"]]
            assert stage.read("held")["status"]["phase"] == "Running"
            assert containers(stage, "held") == before
            stage.remove(half)
            stage.annotate(names.RECOVERED_DEVICES, str(card["minor"]))
            stage.wait(lambda: card["id"] in stage.healthy()[GPU], what="the card to be well")


def test_pods_outlive_a_restart_of_kubelet_after_an_uninstall(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)]) as stage:
        stage.submit({GPU: "1"}, "whole")
        stage.submit({SHARE: "50"}, "half")
        stage.submit({SHARE: "30"}, "third")
        stage.hold("whole", "half", "third")
        running = containers(stage, "whole", "half", "third")
        stage.wait(lambda: {"nvidia.com/gpu.count", SHARE} <= stage.written().keys(), what="labels and sums")
        stage.operator.stop()
        stage.agent.stop()

        output = stage.cleanup()

        kept = f"node {node.name} keeps {SHARE}: 80 for pods "
        assert [line.split(kept)[1].split(", ") for line in output.splitlines() if line.startswith(kept)] == [
            [f"{arena.namespace}/half", f"{arena.namespace}/third"]
        ]
        assert stage.written() == {SHARE: "80"}
        node.restart_daemon("kubelet")
        stage.remove("third")  # kubelet admits all pods again before it deletes one
        assert not denied(node, arena)
        assert stage.phases() == {"whole": "Running", "half": "Running"}
        assert containers(stage, "whole", "half") == {name: running[name] for name in ("whole", "half")}

        # Without what the node keeps, kubelet ends the pod: this is what the cleanup has to prevent.
        nothing = {"status": {"capacity": {SHARE: None}, "allocatable": {SHARE: None}}}
        arena.merge("nodes", node.name, nothing, subresource="status")
        node.restart_daemon("kubelet")
        half, _ = running["half"]
        stage.wait(lambda: not Path(f"/proc/{half.pid}").exists(), what="kubelet to end the pod")
        assert any(f"OutOf{SHARE}" in line for line in denied(node, arena))


def denied(node: RealNode, arena: Arena) -> list[str]:
    """Return what kubelet logged of pods that it did not admit; pods of other tests have other namespaces."""
    lines = node.tail("kubelet", lines=KUBELET_LINES).splitlines()
    return [line for line in lines if DENIED in line and f"{arena.namespace}/" in line]


def containers(stage: Stage, *names: str) -> dict[str, tuple[Container, int]]:
    """Return the containers of pods and when they were started: the proof that they are the same."""
    running = {name: stage.node.container(stage.read(name)) for name in names}
    return {name: (container, container.started) for name, container in running.items()}
