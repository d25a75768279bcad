"""A device that fails is withheld from kubelet at once, and comes back by the rule."""

from pathlib import Path

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.node.stage import GPU, Stage
from tests.nvml.fixture import a100


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
