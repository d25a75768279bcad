"""Another device plugin registers the cards after the agent's: kubelet calls that one, and the agent notices."""

from pathlib import Path
from typing import Any

from berth_agent.kubelet.allocations import CHECKPOINT
from berth_agent.kubelet.device_plugin.takeover import MAX_REGISTRATIONS
from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.other_plugin import OtherPlugin
from tests.node.stage import GPU, SHARE, Stage
from tests.nvml.fixture import a100

CARDS = 3
AGAIN = "registering again"


def test_a_plugin_that_registers_later_is_noticed(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    gpus = [a100(minor) for minor in range(CARDS)]
    plugin = OtherPlugin(node, resource=GPU, ids=[gpu.uuid for gpu in gpus])
    with Stage(node, arena, tmp_path, gpus=gpus) as stage:
        with plugin:
            for number in range(MAX_REGISTRATIONS):
                give_by(plugin, stage, f"other-{number}")
                tries = number + 1
                stage.wait(lambda tries=tries: stage.agent.text().count(AGAIN) == tries, what="the registration")
                stage.wait(lambda: is_offered(stage), what="the agent to be the plugin again")
                stage.remove(f"other-{number}")
                stage.submit({GPU: "1"}, f"own-{number}")
                stage.hold(f"own-{number}")
                stage.remove(f"own-{number}")
                plugin.register()
            give_by(plugin, stage, "last")
            stage.wait(lambda: offered(stage).get("reason") == "OtherPlugin", what="the condition")
            assert offered(stage)["status"] == "False"
            stage.wait(lambda: stage.device()["status"]["withheld"] == [*range(CARDS)], what="all cards withheld")
            stage.submit({GPU: "1"}, "own")
            stage.wait(lambda: stage.waits("own"), what="the pod to wait")
            assert stage.agent.text().count(AGAIN) == MAX_REGISTRATIONS
        stage.remove("last")
        stage.agent.stop()
        stage.start_agent()
        stage.hold("own")


def test_a_card_with_shares_is_offered_by_another_plugin_for_seconds_only(
    arena: Arena, node: RealNode, tmp_path: Path
) -> None:
    gpus = [a100(minor) for minor in range(CARDS)]
    plugin = OtherPlugin(node, resource=GPU, ids=[gpu.uuid for gpu in gpus])
    with Stage(node, arena, tmp_path, gpus=gpus) as stage:
        stage.submit({SHARE: "50"}, "half")
        stage.hold("half")
        stage.wait(lambda: node.allocatable(GPU) == CARDS - 1, what="the shared card to be withheld")
        with plugin:
            stage.agent.logged(AGAIN)
            stage.wait(lambda: is_offered(stage), what="the agent to be the plugin again")
            stage.submit({GPU: "1"}, "one", "two")
            stage.hold("one", "two", "half")
            assert set(stage.cards("half")).isdisjoint({*stage.cards("one"), *stage.cards("two")})
            assert not plugin.allocated


def test_kubelets_calls_go_to_the_agent_again_once_the_other_plugin_ends(
    arena: Arena, node: RealNode, tmp_path: Path
) -> None:
    """When its stream ends, kubelet drops the plugin that registered last, which is the agent's."""
    gpus = [a100(minor) for minor in range(CARDS)]
    with Stage(node, arena, tmp_path, gpus=gpus) as stage:
        plugin = OtherPlugin(node, resource=GPU, ids=[gpu.uuid for gpu in gpus])
        with plugin:
            give_by(plugin, stage, "other")
            stage.wait(lambda: is_offered(stage), what="the agent to be the plugin again")
            stage.submit({GPU: "1"}, "own")
            stage.hold("own")
        stage.submit({GPU: "1"}, "later")
        stage.wait(lambda: outlives_the_gap(stage, "later"), what="a pod to be admitted")
        stage.hold("own", "later")


def test_restarts_are_no_other_plugin(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    gpus = [a100(minor) for minor in range(CARDS)]
    with Stage(node, arena, tmp_path, gpus=gpus) as stage:
        stage.submit({GPU: "1"}, "one")
        stage.hold("one")
        stage.agent.stop()
        stage.start_agent()
        stage.submit({GPU: "1"}, "two")
        stage.hold("one", "two")
        node.restart_daemon("kubelet")
        stage.wait(stage.is_on_offer, what="the cards on offer")
        stage.hold("one", "two")
        node.stop_daemon("kubelet")
        (node.device_plugins / CHECKPOINT).unlink()
        node.start_daemon("kubelet")
        stage.remove("one", "two")
        stage.wait(stage.is_on_offer, what="the cards on offer")
        stage.submit({GPU: "1"}, "three")
        stage.hold("three")
        assert AGAIN not in stage.agent.text()
        assert is_offered(stage)


def give_by(plugin: OtherPlugin, stage: Stage, name: str) -> None:
    """Have kubelet give a pod of kube-scheduler a card by the other plugin."""
    before = len(plugin.allocated)
    stage.submit({GPU: "1"}, name, scheduler_name="default-scheduler", nodeSelector=stage.arena.labels)
    stage.wait(lambda: stage.is_running(name), what=f"{name} to run")
    assert len(plugin.allocated) == before + 1


def outlives_the_gap(stage: Stage, name: str) -> bool:
    """Return whether a pod runs; create it again if kubelet has rejected it, as it does while it has no plugin."""
    if stage.phases()[name] == "Failed":
        stage.remove(name)
        stage.submit({GPU: "1"}, name)
        return False
    return stage.is_running(name)


def offered(stage: Stage) -> dict[str, Any]:
    return world.condition(stage.device(), names.DEVICES_OFFERED)


def is_offered(stage: Stage) -> bool:
    """Return whether the agent is the plugin, by its own word, and does not keep all cards."""
    return offered(stage).get("status") == "True" and len(stage.device()["status"].get("withheld", ())) < CARDS
