"""An etcd that is restored from a copy while the operator and the agent run: no card gets two owners.

The test has a cluster of its own, because the programs of other tests must not see a restore.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster import Arena, Cluster
from tests.integration.operator.world import LEASES, World

CRDS = Path(__file__).parents[3] / "crds"
WHOLE = {"kubernetes.io/gpu": "100"}
SETTLED = 60.0
"""Seconds within which the operator binds again (the API server's start, the pause, the lists), and the agent has
written its Devices again (the next renewal, and up to 30 s by which agents differ)."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Return a cluster whose etcd may be restored."""
    with Cluster(folder=tmp_path / "cluster") as running:
        running.install_crds(CRDS)
        running.api.post("/api/v1/namespaces", {"metadata": {"name": "berth-node-lease"}})
        arena = Arena(cluster=running, folder=tmp_path)
        arena.open()
        own = World(arena=arena, folder=tmp_path)
        yield own
        own.close()


def test_no_card_has_two_owners_after_a_restore_under_running_programs(world: World) -> None:
    agent, operator = world.agent(resync_interval=600, renew_interval=2), world.operator()
    *nodes, changing = world.nodes(3, gpus=3)
    world.cordon(changing, on=True)
    world.pods(["a", "b", "c"], WHOLE)
    for name in ("a", "b", "c"):
        world.bound(name)
    cluster = world.arena.cluster
    backup = cluster.back_up()
    before = {name: world.bound(name) for name in ("a", "b", "c")}
    # The operator knows these cards as free; after the restore, pods have them.
    world.remove("a")
    world.remove("b")
    world.pod("d", WHOLE)
    world.bound("d")
    world.change(changing, gpus=2)
    world.wait(lambda: _cards(world, changing) == 2, what="the Device to show two cards")
    renewed = _renewed(world, changing)
    world.wait(
        lambda: not renewed & _renewed(world, changing),
        what="renewals that the copy lacks",
    )
    revision = int(world.arena.get("pods", "d")["metadata"]["resourceVersion"])

    cluster.restore(backup)

    world.pods(["e"], WHOLE)
    world.write_until(revision)
    world.pods(["f", "g", "h", "i"], WHOLE)
    world.wait(lambda: len(world.bound_names()) >= 6, deadline=SETTLED, what="the three free cards to be given")
    world.audit(*nodes)
    world.wait(
        lambda: all(map(world.message, set("efghi") - world.bound_names())), deadline=SETTLED, what="the rest to wait"
    )
    world.audit(*nodes)
    now = {name: world.bound(name) for name in before}
    assert {name: pod["metadata"]["annotations"] for name, pod in now.items()} == {
        name: pod["metadata"]["annotations"] for name, pod in before.items()
    }
    world.wait(lambda: _cards(world, changing) == 2, deadline=SETTLED, what="the agent to write its Device again")
    for node in nodes:
        world.wait_allocated(node, "3")
    assert (operator.exit_code, agent.exit_code) == (None, None)


def _cards(world: World, node: str) -> int:
    return len(world.shown(node)["spec"]["devices"])


def _renewed(world: World, node: str) -> set[str]:
    leases = world.arena.get("leaderleases", world.arena.lease_name), world.api.get(f"{LEASES}/{node}")
    return {lease["spec"]["renewTime"] for lease in leases}
