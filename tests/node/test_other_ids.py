"""Cards that another device plugin gave by ids that are not UUIDs are not given again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.other_plugin import OtherPlugin
from tests.node.stage import GPU, SHARE, Stage
from tests.nvml.fixture import Gpu, a100

CARDS = 3


@pytest.mark.parametrize("part", ["", "/vgpu1"])
def test_a_card_that_googles_plugin_gave_is_charged(arena: Arena, node: RealNode, tmp_path: Path, part: str) -> None:
    ids = [f"nvidia{minor}{part}" for minor in range(CARDS)]
    plugin = OtherPlugin(node, resource=GPU, ids=ids)
    with Stage(node, arena, tmp_path, gpus=cards(), device_plugin=None) as stage, plugin:
        [given] = give_one(stage)
        others = [minor for minor in range(CARDS) if minor != ids.index(given)]
        stage.wait(lambda: stage.free() == others, what="the card to be charged")
        [held] = stage.wait(lambda: stage.device()["status"].get("held"), what="what kubelet gave to be shown")
        assert [device["id"] for device in held["devices"]] == [stage.machine.gpus[ids.index(given)].uuid]
        assert not matched(stage)
        check_shares(stage, expected=set(others))


def test_an_id_that_may_be_one_of_two_cards_keeps_both(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    """NVML counts cards by their PCI addresses, and here their minors have another order."""
    gpus = cards()
    gpus[0].minor, gpus[1].minor = 1, 0
    plugin = OtherPlugin(node, resource=GPU, ids=["0"])
    with Stage(node, arena, tmp_path, gpus=gpus, device_plugin=None) as stage, plugin:
        assert give_one(stage) == ["0"]
        stage.wait(lambda: matched(stage).get("status") == "False", what="the condition")
        assert "nvidia.com/gpu '0' of pod" in matched(stage)["message"]
        assert "may be GPU 0 or GPU 1" in matched(stage)["message"]
        check_shares(stage, expected={2} - set(stage.cards("one")))
        stage.remove("one")
        stage.wait(lambda: not matched(stage), what="the end of the condition")


def test_an_id_of_no_card_keeps_all_cards_until_its_pod_ends(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    """Ids of a resource that is none of cards do not count."""
    no_cards = OtherPlugin(node, resource="example.com/disk", ids=["unit-1"])
    plugin = OtherPlugin(node, resource=GPU, ids=["unit-7"])
    with Stage(node, arena, tmp_path, gpus=cards(), device_plugin=None) as stage, no_cards, plugin:
        stage.wait(lambda: node.allocatable("example.com/disk"), what="the disk on offer")
        stage.submit({SHARE: "50"}, "half")
        stage.submit({"example.com/disk": "1"}, "disk", scheduler_name="default-scheduler", nodeSelector=arena.labels)
        stage.hold("half")
        stage.wait(lambda: stage.is_running("disk"), what="the pod with a disk to run")

        assert give_one(stage) == ["unit-7"]
        stage.wait(lambda: matched(stage).get("status") == "False", what="the condition")
        assert "'unit-7'" in matched(stage)["message"]
        assert "unit-1'" not in matched(stage)["message"]
        stage.wait(lambda: stage.free() == [], what="all cards to be kept")
        stage.submit({SHARE: "50"}, "late")
        stage.wait(lambda: stage.waits("late"), what="the share to wait")

        stage.agent.stop()
        stage.start_agent()
        stage.remove("one")
        stage.hold("half", "late")
        stage.wait(lambda: not matched(stage), what="the end of the condition")


def cards() -> list[Gpu]:
    return [a100(minor) for minor in range(CARDS)]


def give_one(stage: Stage) -> Sequence[str]:
    """Have kubelet give one card to a pod of Berth, and return the ids that it gave."""
    stage.wait(lambda: stage.node.allocatable(GPU), what="the cards on offer")
    stage.submit({GPU: "1"}, "one")
    stage.wait(lambda: stage.is_running("one"), what="one to run")
    return stage.held()["one", "main", GPU]


def matched(stage: Stage) -> dict[str, Any]:
    """Return the condition about ids; empty if there is none."""
    return world.condition(stage.device(), names.DEVICE_IDS_MATCHED)


def check_shares(stage: Stage, *, expected: set[int]) -> None:
    """Submit a share of more than half a card for each card; see that only these cards get one."""
    shares = [f"share-{minor}" for minor in range(CARDS)]
    stage.submit({SHARE: "60"}, *shares)
    stage.wait(lambda: sum(map(stage.waits, shares)) == CARDS - len(expected), what="the other shares to wait")
    placed = [name for name in shares if not stage.waits(name)]
    stage.hold(*placed)
    assert {minor for name in placed for minor in stage.cards(name)} == expected
