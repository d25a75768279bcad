"""The scheduler's choice holds down to the container, on a real kubelet."""

from dataclasses import replace
from pathlib import Path

from devcluster import Arena
from devcluster.real_node import RealNode
from tests.node.conftest import REPEAT
from tests.node.stage import GPU, SHARE, Stage
from tests.nvml.fixture import Gpu, MigDevice, a100, rack

SMALL = "nvidia.com/mig-1g.10gb"
LARGE = "nvidia.com/mig-3g.40gb"
BURST = 16 if REPEAT == 1 else 40
LONG = 240.0
"""Seconds that forty containers may take to start on a busy machine."""


def test_containers_have_just_the_cards_of_their_allocations(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with Stage(node, arena, tmp_path, gpus=[a100(index) for index in range(8)]) as stage:
        stage.submit({GPU: "1"}, "one")
        stage.submit({GPU: "2"}, "two")
        stage.submit({GPU: "4"}, "four")
        stage.submit({SHARE: "50"}, "left-half", "right-half")
        stage.hold("one", "two", "four", "left-half", "right-half")
        assert stage.cards("left-half") == stage.cards("right-half")
        taken = [card for name in ("one", "two", "four", "left-half") for card in stage.cards(name)]
        assert sorted(taken) == list(range(8))


def test_containers_have_just_the_instances_of_their_allocations(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    cards = [divided(0), divided(1), a100(2)]
    # Device nodes of instances come from the driver's own folder under /proc, which is not there.
    with Stage(node, arena, tmp_path, gpus=cards, device_list_strategy="envvar") as stage:
        stage.submit({SMALL: "1"}, "small-0", "small-1", "small-2")
        stage.submit({LARGE: "1"}, "large-0", "large-1")
        stage.submit({GPU: "1"}, "whole")
        stage.hold("small-0", "small-1", "small-2", "large-0", "large-1", "whole")
        assert stage.cards("whole") == [2]


def test_a_burst_of_pods_is_admitted_without_a_refusal(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with Stage(node, arena, tmp_path, gpus=rack(BURST)) as stage:
        burst = [f"burst-{number}" for number in range(BURST - 1)]
        stage.submit({GPU: "1"}, "crashes", words=["exit", "1"])
        stage.wait(lambda: stage.restarts("crashes") > 0, what="the neighbour to crash")
        stage.submit({GPU: "1"}, *burst)
        stage.hold(*burst, deadline=LONG)
        # A neighbour that goes on crashing keeps its card.
        before = stage.restarts("crashes")
        stage.wait(lambda: stage.restarts("crashes") > before, what="it to crash again", deadline=LONG)
        assert stage.held()["crashes", "main", GPU] == [entry["id"] for entry in stage.entries("crashes")]

        assert set(stage.phases().values()) == {"Running"}
        stage.wait(lambda: len(stage.events("Scheduled")) == BURST, what="an Event for each pod")
        assert len({event["involvedObject"]["uid"] for event in stage.events("Scheduled")}) == BURST
        warnings = [event for event in arena.list("events") if event["type"] == "Warning"]
        assert {warning["reason"] for warning in warnings} == {"BackOff"}, warnings
        assert "refused" not in stage.agent.text()


def test_a_card_by_share_is_given_again_when_the_last_process_of_its_pod_has_ended(
    arena: Arena, node: RealNode, tmp_path: Path
) -> None:
    with Stage(node, arena, tmp_path, gpus=[a100(0)]) as stage:
        stage.submit({SHARE: "100"}, "first")
        stage.hold("first")
        uid = stage.read("first")["metadata"]["uid"]
        stage.wait(lambda: uid in running_pods(stage), what="the agent to list the pod")
        # kubelet does not end its containers, so they run on after the pod is gone.
        node.pause_daemon("kubelet")
        arena.delete("pods", "first", grace_seconds=0)
        stage.submit({SHARE: "100"}, "next")
        stage.wait(lambda: stage.waits("next"), what="the next pod to wait for the card")
        assert uid in running_pods(stage)
        node.kill_daemon("kubelet")
        node.start_daemon("kubelet")
        stage.hold("next", deadline=LONG)
        assert uid not in running_pods(stage)


def running_pods(stage: Stage) -> set[str]:
    """Return the UIDs of the pods that the Device lists as running with GPUs which kubelet does not know."""
    return {pod["podUID"] for pod in stage.device().get("status", {}).get("running", ())}


def divided(index: int) -> Gpu:
    """Return a card in MIG mode with two small instances and a large one."""
    small = [instance(index, at, "1g.10gb", at, 1) for at in (7, 8)]
    return replace(a100(index), mig_mode=True, migs=[instance(index, 1, "3g.40gb", 1, 3), *small])


def instance(card: int, number: int, profile: str, gpu_instance: int, slices: int) -> MigDevice:
    return MigDevice(
        uuid=f"MIG-a1000000-0000-4000-{card:04d}-{number:012d}",
        profile=profile,
        gpu_instance=gpu_instance,
        gpu_slices=slices,
        compute_slices=slices,
        memory_mib=9728 * slices,
    )
