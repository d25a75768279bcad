"""The driver renumbers cards at each boot: pods keep the cards that they hold, and no other pod gets them."""

from pathlib import Path

from devcluster import Arena
from devcluster.real_node import RealNode
from tests.node.conftest import repeats
from tests.node.stage import GPU, SHARE, Stage
from tests.nvml.fixture import Gpu, a100


def renumber(stage: Stage, *gpus: Gpu) -> None:
    """Boot the node's agent with these cards, numbered in this order by the driver."""
    stage.agent.stop()
    stage.machine.gpus[:] = gpus
    for minor, gpu in enumerate(gpus):
        gpu.minor = minor
    stage.machine.write()
    stage.start_agent()
    expected = [(gpu.minor, gpu.uuid) for gpu in gpus]
    stage.wait(lambda: listed(stage) == expected, what="the Device to list the cards")


def listed(stage: Stage) -> list[tuple[int, str]]:
    return [(device["minor"], device["id"]) for device in stage.device()["spec"]["devices"]]


@repeats
def test_reboot_without_the_first_card(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)]) as stage:
        first, second = stage.machine.gpus
        stage.make_device_node(a100(2))
        stage.submit({GPU: "1"}, "first")
        stage.hold("first")
        stage.submit({SHARE: "100"}, "second")
        stage.hold("second")
        [held] = stage.entries("second")
        stage.remove("first")
        lost, kept = (second, first) if held["id"] == first.uuid else (first, second)
        renumber(stage, kept)
        stage.submit({GPU: "1"}, "whole")
        stage.submit({SHARE: "50"}, "half")
        for name in ("whole", "half"):
            stage.wait(lambda name=name: stage.waits(name), what=f"{name} to wait")
        stage.hold("second")
        stage.remove("half")
        renumber(stage, kept, a100(2))
        stage.wait(stage.is_on_offer, what="the new card on offer")
        stage.hold("whole")
        assert [entry["id"] for entry in stage.entries("whole")] == [a100(2).uuid]
        renumber(stage, a100(2), kept, lost)
        stage.wait(stage.is_on_offer, what="the card that is back on offer")
        stage.submit({GPU: "1"}, "returned")
        stage.hold("returned")
        assert [entry["id"] for entry in stage.entries("returned")] == [lost.uuid]
        stage.hold("second")
