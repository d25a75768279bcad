"""A node with healthy cards that no device plugin offers to kubelet."""

from pathlib import Path

from devcluster import Arena
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.stage import GPU, Stage
from tests.nvml.fixture import a100


def test_a_pod_waits_until_a_plugin_offers_its_cards(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    cards = [a100(index) for index in range(2)]
    with Stage(node, arena, tmp_path, gpus=cards, device_plugin=None) as stage:
        assert GPU not in arena.get("nodes", node.name)["status"]["allocatable"]
        stage.submit({GPU: "1"}, "one")
        stage.wait(lambda: stage.waits("one"), what="the pod to say why it waits")
        message = world.condition(stage.read("one"), "PodScheduled")["message"]
        assert message.startswith(f"0/1 nodes are available: 1 Insufficient {GPU}.")

        stage.agent.stop()
        stage.start_agent(device_plugin=True)
        stage.hold("one")
