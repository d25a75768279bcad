"""If one bad answer to a watch ends kopf, the operator goes on, and so does its writing of statuses."""

from collections.abc import Callable
from typing import Final

import pytest

from devcluster import Cluster
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.stand_ins.proxy import FaultProxy, Rule

KOPFS_WATCH: Final = r"/devices\?(?=.*watch=true)(?=.*timeoutSeconds=300)"
"""The operator's own watches have another timeout."""


def refused(proxy: FaultProxy) -> Rule:
    return proxy.answer("GET", KOPFS_WATCH, status=404, count=1)


def cut(proxy: FaultProxy) -> Rule:
    return proxy.cut("GET", KOPFS_WATCH, count=1)


@pytest.mark.parametrize("fault", [pytest.param(refused, id="refused"), pytest.param(cut, id="cut within a line")])
def test_kopf_alone_is_started_again(
    proxy: FaultProxy, world: World, cluster: Cluster, fault: Callable[[FaultProxy], Rule]
) -> None:
    [node] = world.arena.nodes()
    [port, health] = words.free_ports(2)
    rule = fault(proxy)
    operator = world.operator(
        kubeconfig=proxy.kubeconfig(cluster.token), metrics_port=port, health=f"http://127.0.0.1:{health}/healthz"
    )
    world.device(node, [words.gpu(0)])
    rule.wait()

    world.wait(lambda: words.metrics(port, "berth_kopf_failures_total ") == ["1.0"], what="kopf to fail")
    world.pod("p", {"nvidia.com/gpu": "1"})
    world.wait_allocated(node, "1")
    world.wait(lambda: len(proxy.sent("GET", KOPFS_WATCH)) > 1, what="kopf to watch again")
    world.arena.delete("pods", "p")
    world.wait_allocated(node, "0")
    words.fetch(f"http://127.0.0.1:{health}/healthz")
    assert operator.exit_code is None
    assert words.metrics(port, "berth_leading ") == ["1.0"]
