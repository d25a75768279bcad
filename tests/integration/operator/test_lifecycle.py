"""An agent that stops renewing its Lease: no device is allocated, its pods keep running, and it recovers by itself.

tests/unit/state/test_heartbeats.py has what counts as a renewal, and what is believed after a restart.
"""

import itertools
import time

from tests.integration.operator import world as words
from tests.integration.operator.world import World

K = "kubernetes.io/"
HALF = {K + "gpu": "50"}
QUICK_AGENT = {"lease_duration": 1, "renew_interval": 0.25}
GRACE = 0.5
STALE_WITHIN = 1 + GRACE + 1 + 20
"""Lease duration, grace period, the controller's period, and a margin for a busy machine."""


def test_silent_agent_stops_new_pods_and_no_others(world: World) -> None:
    agent = world.agent(**QUICK_AGENT)
    world.operator(agent_grace=GRACE)
    [node] = world.nodes(gpus=2)
    world.pod("runs", HALF)
    before = world.bound("runs")
    world.wait_allocated(node, "0.5")
    lease_path = f"{words.LEASES}/{node}"
    world.wait(lambda: world.api.exists(lease_path), what="the Lease")

    agent.kill()

    world.wait_ready(node, "Unknown", deadline=STALE_WITHIN)
    renewed = world.api.get(lease_path)["spec"]["renewTime"]
    expected = ("AgentNotHeard", f"the node's Lease is not renewed since {renewed}; its devices are not allocated")
    # The agent may have ended before the operator saw the Lease; the message has the time once it does.
    world.wait(lambda: _reason_and_message(world, node) == expected, what=f"the condition {expected}")
    world.pod("p", HALF)
    assert world.waits("p") == (
        "0/1 nodes are available: 1 node(s) have a Device that is not ready "
        f"(agent silent since {renewed.partition('.')[0]}Z)."
    )
    # A pod without device requests does not depend on the agent.
    world.pod("plain", {"cpu": "1"})
    world.bound("plain")
    after = world.arena.get("pods", "runs")
    assert (after["metadata"]["annotations"], after["status"]["phase"]) == (
        before["metadata"]["annotations"],
        "Running",
    )

    world.agent(**QUICK_AGENT)

    world.bound("p", deadline=words.START)
    world.wait_ready(node, "True")


def test_unknown_stays_over_a_restart_until_a_renewal_is_seen(world: World) -> None:
    agent = world.agent(**QUICK_AGENT)
    first = world.operator(agent_grace=GRACE)
    [node] = world.nodes()
    agent.kill()
    world.wait_ready(node, "Unknown", deadline=STALE_WITHIN)
    first.stop()
    world.pod("p", HALF)

    # A Lease that exists but is not renewed does not show a live agent, and neither does the operator's restart.
    world.operator(agent_grace=5.0)

    world.waits("p", "1 node.s. have a Device that is not ready")
    statuses = {world.ready(node) for _ in _for_seconds(1.5)}
    assert statuses == {"Unknown"}
    assert not world.bound_names()
    world.agent(**QUICK_AGENT)
    world.bound("p", deadline=words.START)
    world.wait_ready(node, "True")


def _for_seconds(seconds: float) -> "itertools.takewhile[int]":
    """Return an iterator that yields ten times a second, for some seconds."""
    end = time.monotonic() + seconds

    def goes_on(_: int) -> bool:
        time.sleep(0.1)
        return time.monotonic() < end

    return itertools.takewhile(goes_on, itertools.count())


def _reason_and_message(world: World, node: str) -> tuple[str, str]:
    shown = words.condition(world.shown(node), "Ready")
    return shown.get("reason", ""), shown.get("message", "")
