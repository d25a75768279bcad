"""Programs are killed while containers have limits: no container runs without limits or with another's limits.

`make limits-e2e` runs these tests.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth_api import names
from devcluster import Arena
from devcluster.real_node import RealNode
from tests.node.limits import HAMI_CORE, MPS, SERVER_ENDED, WHOLE, Limits, install, limits

CHOSEN = "BERTH_LIMITS"
"""Set by `make limits-e2e`: kubelet waits longer before each start, and these tests minutes."""
pytestmark = [
    pytest.mark.skipif(not os.environ.get(CHOSEN), reason="takes minutes: run `make limits-e2e`"),
    pytest.mark.timeout(900),
]
SHARES = {"half": 50, "quarter": 25}
REFUSED = "must not start without"
PATIENCE = 300.0
"""Seconds until kubelet has tried again, which it does more and more rarely."""


@pytest.fixture
def shared(arena: Arena, node: RealNode, tmp_path: Path) -> Iterator[Limits]:
    """A node with two shares by MPS that run."""
    with limits(node, arena, tmp_path, mps=True) as stage:
        stage.wait(stage.offers(MPS), what="the resource on offer")
        share(stage)
        yield stage
        check_starts(stage)


def share(stage: Limits) -> None:
    for name, percent in SHARES.items():
        stage.share(name, MPS, percent, 1_000)
    run(stage)


def check_starts(stage: Limits) -> None:
    for name, percent in SHARES.items():
        limited = [seen["memory"] for seen in stage.all_seen(name) if "memory" in seen]
        assert set(limited) == {WHOLE * percent // 100}, "a start without the pod's own limit"


def run(stage: Limits) -> None:
    for name in SHARES:
        stage.wait(lambda name=name: stage.has_started(name), what=f"{name} to run", deadline=PATIENCE)


def wait_for_refusals(stage: Limits, text: str = REFUSED) -> None:
    for name in SHARES:
        stage.wait(lambda name=name: text in stage.waiting(name), what=f"{name} to be refused", deadline=PATIENCE)


def restarts(stage: Limits) -> list[int]:
    return [stage.restarts(name) for name in SHARES]


def test_the_daemon_is_killed(shared: Limits) -> None:
    shared.daemon.kill()
    wait_for_refusals(shared)
    assert any(seen == {"error": SERVER_ENDED} for name in SHARES for seen in shared.all_seen(name))
    reason, message = shared.reason(names.MPS_SERVING)
    assert reason == "NotRunning"
    assert "containers with shares wait for their start" in message
    shared.wait(shared.offers(MPS, 0), what="nothing on offer")
    shared.daemon.start()
    run(shared)
    shared.wait(lambda: shared.reason(names.MPS_SERVING)[0] == "Serving", what="the recovery to be shown")


def test_the_daemon_restarts_at_once(shared: Limits) -> None:
    shared.daemon.kill()
    shared.daemon.start()
    shared.wait(lambda: all(restarts(shared)), what="the clients to end", deadline=PATIENCE)
    run(shared)
    shared.wait(lambda: shared.reason(names.MPS_SERVING)[0] == "Serving", what="the recovery to be shown")


def test_the_agent_is_killed_and_then_the_daemon(shared: Limits) -> None:
    shared.agent.kill()
    assert restarts(shared) == [0, 0]
    shared.daemon.kill()
    # Kubelet cannot call the plugin, and so starts nothing.
    wait_for_refusals(shared, "endpoint")
    shared.daemon.start()
    wait_for_refusals(shared, "endpoint")
    shared.start_agent()
    run(shared)


def test_kubelet_is_killed(shared: Limits) -> None:
    shared.node.kill_daemon("kubelet")
    shared.node.start_daemon("kubelet")
    run(shared)
    assert restarts(shared) == [0, 0]


def test_kubelet_and_the_daemon_are_killed(shared: Limits) -> None:
    shared.node.kill_daemon("kubelet")
    shared.daemon.kill()
    shared.node.start_daemon("kubelet")
    # It admits pods again whose containers have ended, and finds no unit on offer: a controller replaces them.
    for name in SHARES:
        shared.wait(lambda name=name: is_kept_back(shared, name), what=f"{name} not to start", deadline=PATIENCE)
    check_starts(shared)
    shared.daemon.start()
    shared.wait(shared.offers(MPS), what="the resource on offer", deadline=PATIENCE)
    shared.remove(*SHARES)
    share(shared)


def is_kept_back(stage: Limits, name: str) -> bool:
    return REFUSED in stage.waiting(name) or stage.read(name)["status"]["phase"] == "Failed"


def test_hami_core_is_removed_and_another_version_comes(arena: Arena, node: RealNode, tmp_path: Path) -> None:
    with limits(node, arena, tmp_path, mps=False) as stage:
        library = install(stage)
        stage.wait(stage.offers(HAMI_CORE), what="the resource on offer")
        stage.share("half", HAMI_CORE, 50, 1_000)
        stage.wait(lambda: stage.has_started("half"), what="half to run")
        stage.agent.kill()
        node.kill_daemon("kubelet")
        node.start_daemon("kubelet")
        assert stage.restarts("half") == 0
        stage.start_agent()
        stage.wait(stage.offers(HAMI_CORE), what="the resource on offer")
        hidden = library.rename(library.with_name("hidden"))
        stage.wait(stage.offers(HAMI_CORE, 0), what="nothing on offer")
        assert stage.reason(names.HAMI_CORE_INSTALLED)[0] == "NotInstalled"
        os.kill(node.container(stage.read("half")).pid, 15)
        stage.wait(lambda: REFUSED in stage.waiting("half"), what="the start to be refused", deadline=PATIENCE)
        hidden.rename(library)
        stage.wait(lambda: stage.has_started("half"), what="half to run again", deadline=PATIENCE)
        install(stage, "2.0")
        stage.wait(lambda: "2.0" in stage.reason(names.HAMI_CORE_INSTALLED)[1], what="the new version")
        assert {seen["memory"] for seen in stage.all_seen("half") if "memory" in seen} == {WHOLE // 2}
        make_old(library.parent, stage.library / "current")
        stage.share("new", HAMI_CORE, 25, 1_000)
        stage.wait(lambda: stage.has_started("new"), what="new to run", deadline=PATIENCE)
        assert library.exists()
        stage.remove("half")
        # Kubelet forgets what a pod had when it gives the next one something.
        stage.share("newer", HAMI_CORE, 25, 1_000)
        stage.wait(lambda: not library.parent.exists(), what="the old version to go", deadline=PATIENCE)
        assert (stage.library / "2.0" / library.name).exists()


def make_old(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (0, 0), follow_symlinks=False)
