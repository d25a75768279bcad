"""Pods that a real kubelet rejects at admission: it allows no unsafe sysctls, which Berth does not read."""

import time
from pathlib import Path

from devcluster import Arena
from devcluster.real_node import RealNode
from tests.integration.operator import world
from tests.node.stage import GPU, Stage
from tests.nvml.fixture import a100

UNSAFE = {"sysctls": [{"name": "net.core.somaxconn", "value": "1024"}]}
TIMES = 5
"""Rejections, between which pauses of 1, 2, 4 and 8 seconds pass."""


def test_a_controllers_pods_are_bound_ever_less_often(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    labels = {"app": "unsafe"}
    with Stage(node, arena, tmp_path, gpus=[a100(0), a100(1)]) as stage:
        stage.wait(lambda: node.allocatable(GPU) == 2, what="both cards on offer")
        template = {"metadata": {"labels": labels}, "spec": stage.pod("", {GPU: "1"}, securityContext=UNSAFE)["spec"]}
        controller = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {"name": "unsafe", "namespace": arena.namespace},
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        }

        def rejected() -> list[str]:
            return [name for name, phase in stage.phases().items() if phase == "Failed"]

        began = time.monotonic()
        arena.create([controller])
        stage.wait(lambda: len(rejected()) >= TIMES, what=f"kubelet to reject {TIMES} pods")
        assert time.monotonic() - began > sum(2**number for number in range(TIMES - 1))
        assert len(rejected()) == TIMES
        assert {stage.read(name)["status"]["reason"] for name in rejected()} == {"SysctlForbidden"}
        # Pods of other owners get the cards meanwhile.
        stage.submit({GPU: "1"}, "one", "two")
        stage.hold("one", "two")
        [waiting] = stage.names() - {*rejected(), "one", "two"}
        stage.wait(lambda: stage.waits(waiting), what="the next pod to wait")
        message = world.condition(stage.read(waiting), "PodScheduled")["message"]
        assert (
            "node(s) rejected pods of this controller (SysctlForbidden): the next one is bound there after" in message
        )
        arena.delete("replicasets", "unsafe")
