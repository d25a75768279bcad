"""The operator's answers to kubelet and Prometheus, as leader and as standby, and its log."""

import json
import urllib.error

from devcluster import waiting
from tests.integration.operator import world as words
from tests.integration.operator.world import World


def test_replicas_answer_probes_leading_or_not(world: World) -> None:
    leader_port, standby_port, metrics_port = words.free_ports(3)
    world.arena.nodes(2)
    leader = world.operator(health=_health(leader_port), metrics_port=metrics_port)
    standby = world.operator(health=_health(standby_port), wait=False)

    assert _answers(leader_port) == {"alive": True}
    assert _answers(standby_port) == {"alive": True}
    assert "berth_leading 1.0" in words.fetch(f"http://127.0.0.1:{metrics_port}/metrics")

    # The Lease is released at once, so the other takes over; its probes work in its new role.
    leader.stop()
    standby.logged('"event": "leading"')
    assert _answers(standby_port) == {"alive": True}
    # Every line is JSON, those of kopf included.
    for replica in (leader, standby):
        lines = [json.loads(line) for line in replica.text().splitlines()]
        assert (lines[0]["event"], lines[0]["settings"]["lease"]) == ("started", world.arena.lease_name)
        [read] = [line for line in lines if line["event"] == "first lists read"]
        objects = read["objects"]
        assert (objects["nodes"], objects[f"pods of {world.arena.scheduler_name}"]) == (2, 0)
        assert objects["devices"] >= 0


def _health(port: int) -> str:
    return f"http://127.0.0.1:{port}/healthz"


def _answers(port: int) -> dict[str, bool]:
    """Wait for the answer, which takes a moment at the start and at a change of roles; return it."""

    def answer() -> dict[str, bool]:
        try:
            checks: dict[str, bool] = json.loads(words.fetch(_health(port)))
        except urllib.error.URLError:
            return {}
        return checks

    return waiting.until(answer, what=f"an answer at port {port}")
