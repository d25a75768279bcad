"""An agent that stops renewing its Lease: no device is allocated, its pods keep running, and it recovers by itself."""

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
LASTING_GRACE = 10.0
"""A grace period in which a busy machine binds a pod."""
LASTING = 5
"""Seconds of a Lease that must outlast the start of an operator on a busy machine."""
FAR = ("1999-01-01T00:00:{:02d}.000000Z", "2999-01-01T00:00:{:02d}.000000Z")


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


def test_heartbeat_of_one_node_says_nothing_of_another(world: World) -> None:
    world.agent(**QUICK_AGENT)
    world.operator(agent_grace=GRACE)
    silent, beating = world.nodes(2)

    world.change(silent, heartbeat=False)

    world.wait_ready(silent, "Unknown", deadline=STALE_WITHIN)
    world.wait_ready(beating, "True")
    world.pods(["a", "b"], {"nvidia.com/gpu": "4"})
    assert {world.bound(name)["spec"]["nodeName"] for name in ("a", "b")} == {beating}


def test_missing_lease_is_stale_after_the_grace(world: World) -> None:
    world.operator(agent_grace=LASTING_GRACE)
    [node] = world.arena.nodes()
    world.pod("early", HALF)
    world.waits("early", "node.s. have no Device")
    started = time.monotonic()
    world.device(node, [words.gpu(0)], beating=False)

    world.wait_ready(node, "True")
    world.bound("early")
    world.wait_ready(node, "Unknown", deadline=words.START)

    assert time.monotonic() - started >= LASTING_GRACE
    world.pod("late", HALF)
    world.waits("late", "node.s. have a Device that is not ready")
    # The first Lease that the operator sees does not count as a renewal; the second does.
    for second in (1, 2):
        world.renew(node, seconds=60, time=FAR[0].format(second))
    world.bound("late")


def test_lease_that_goes_ends_the_trust_when_it_would_have_run_out(world: World) -> None:
    world.operator(agent_grace=GRACE)
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0)], beating=False)
    began, seconds = time.monotonic(), itertools.cycle((1, 2))

    def is_ready_when_renewed() -> bool:
        world.renew(node, seconds=2, time=FAR[0].format(next(seconds)))
        return world.ready(node) == "True"

    # Renewed until then, because a slow machine may need more than two seconds.
    world.wait(is_ready_when_renewed, what=f"Ready=True of {node}")

    world.api.delete(f"{words.LEASES}/{node}")

    world.wait_ready(node, "Unknown", deadline=STALE_WITHIN)
    assert time.monotonic() - began >= 2.0
    world.renew(node, seconds=30, time=FAR[0].format(3))
    world.wait_ready(node, "True", deadline=words.PROMPT)


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


def test_true_stays_over_a_restart_for_one_duration(world: World) -> None:
    first = world.operator(agent_grace=GRACE)
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0)], beating=False)
    beats = itertools.cycle(range(60))

    def renewed() -> bool:
        """Renew the Lease; return whether the Device shows that the agent is alive."""
        world.renew(node, seconds=LASTING, time=FAR[1].format(next(beats)))
        return world.ready(node) == "True"

    world.wait(renewed, what="Ready=True")
    # Killed, so that it does not see the Lease run out while it ends.
    first.kill()
    world.free_lease()
    world.pod("early", HALF)

    # From here on the Lease is not renewed. The operator reads it at some moment of its start, before it leads.
    began = time.monotonic()
    world.operator(agent_grace=GRACE)
    world.bound("early")
    world.wait_ready(node, "Unknown", deadline=words.START)

    assert time.monotonic() - began >= LASTING
    world.pod("late", HALF)
    world.waits("late", "node.s. have a Device that is not ready")


def test_clock_of_an_agent_does_not_matter(world: World) -> None:
    world.operator(agent_grace=1.0)
    past, future, backwards = nodes = world.arena.nodes(3)
    beats = itertools.cycle(range(60))

    def renewed() -> set[str]:
        """Renew all Leases; return what the Devices show."""
        beat = next(beats)
        world.renew(past, seconds=1, time=FAR[0].format(beat))
        world.renew(future, seconds=1, time=FAR[1].format(beat))
        world.renew(backwards, seconds=1, time=FAR[1].format(59 - beat))
        return {world.ready(node) for node in nodes}

    for _ in range(2):
        renewed()
    for node in nodes:
        world.device(node, [words.gpu(0)], beating=False)
    # For twice the duration and grace period: only renewals count, not the times in the Lease.
    statuses = {status for _ in _for_seconds(4.0) for status in renewed()}

    assert statuses <= {"", "True"}
    names = {"a", "b", "c"}
    world.pods(names, {"nvidia.com/gpu": "1"})
    world.wait(lambda: renewed() and world.bound_names() == names, what="all pods to be bound")
    assert {world.bound(name)["spec"]["nodeName"] for name in names} == set(nodes)
    for node in nodes:
        world.wait_ready(node, "Unknown", deadline=STALE_WITHIN)


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
