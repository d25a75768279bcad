"""A device that fails is withheld from kubelet at once, and comes back by the rule."""

from pathlib import Path

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.node.stage import GPU, Stage
from tests.node.test_choice_holds import LARGE, SMALL, divided
from tests.nvml.fixture import a100

XID_SECONDS = 5.0
"""In which kubelet must know of an Xid."""
REPLICAS = 4
SLICED = f"version: v1\nsharing: {{timeSlicing: {{resources: [{{name: {GPU}, replicas: {REPLICAS}}}]}}}}"


def test_an_xid_takes_all_replicas_and_instances_of_a_card(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(SLICED)
    cards = [a100(0), a100(1), divided(2), divided(3)]
    options = {"device_list_strategy": "envvar", "config_file": config, "resync_interval": 1.0}
    with Stage(node, arena, tmp_path, gpus=cards, **options) as stage:
        whole = {GPU: 2 * REPLICAS, SMALL: 4, LARGE: 2}
        # A resource is offered as soon as its own socket is registered.
        stage.wait(lambda: stage.units() == whole, what="all resources on offer")
        stage.submit({GPU: "1"}, "sliced")
        stage.submit({LARGE: "1"}, "instance")
        stage.hold("sliced", "instance")

        [failed], [divided_one] = stage.cards("sliced"), stage.cards("instance")
        stage.machine.xid(failed, 79)
        stage.machine.xid(divided_one, 79, gpu_instance=7, compute_instance=0)
        left = {GPU: REPLICAS, SMALL: 2, LARGE: 1}
        stage.wait(lambda: stage.units() == left, what="the cards to fail whole", deadline=XID_SECONDS)
        lost = {stage.machine.gpus[failed].uuid, *(mig.uuid for mig in stage.machine.gpus[divided_one].migs)}
        healthy = {unit for units in stage.healthy().values() for unit in units}
        assert not {unit for unit in healthy if unit.partition("::")[0] in lost}
        assert stage.phases() == {"sliced": "Running", "instance": "Running"}

        stage.annotate(names.RECOVERED_DEVICES, f"{failed},{divided_one}")
        stage.wait(lambda: stage.units() == whole, what="a person's word to count")


def test_lost_and_new_cards_are_noticed_and_recover_by_the_rule(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    options = {"quiet_period": 3.0, "resync_interval": 1.0}
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)], **options) as stage:
        first, second = (gpu.uuid for gpu in stage.machine.gpus)
        stage.wait(lambda: stage.healthy()[GPU] == {first, second}, what="two cards")

        new = a100(2)
        stage.make_device_node(new)
        stage.machine.add(new)
        stage.wait(lambda: stage.healthy()[GPU] == {first, second, new.uuid}, what="the new card")
        stage.submit({GPU: "3"}, "all")
        stage.hold("all")
        stage.remove("all")

        stage.machine.lose(0)
        stage.wait(lambda: stage.healthy()[GPU] == {second, new.uuid}, what="the loss")
        stage.machine.restore(0)
        # An application's fault ends by itself, and by then a lost card that answers again would be back, too.
        stage.machine.xid(1, 94)
        stage.wait(lambda: stage.healthy()[GPU] == {new.uuid}, what="the application's fault")
        stage.wait(lambda: stage.healthy()[GPU] == {second, new.uuid}, what="its end")

        stage.submit({GPU: "2"}, "both")
        stage.hold("both")
        assert stage.cards("both") == [1, 2]
        stage.annotate(names.RECOVERED_DEVICES, first)
        stage.wait(lambda: stage.healthy()[GPU] == {first, second, new.uuid}, what="a person's word to count")
