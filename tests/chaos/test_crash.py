"""The operator is killed at any moment while pods arrive: no pod is lost, and no card is allocated twice."""

import random
import time
from collections.abc import Iterator
from typing import Final

from berth_api import names
from demo.audit import audit
from devcluster.control_plane.api import Manifest
from tests.integration.operator.world import World
from tests.programs.processes import Process

KILLS: Final = 10
TERMS: Final = {"lease_duration": 12, "renew_deadline": 10, "retry_period": 0.2}
"""Long enough that no leader loses its term on a busy machine: this test is about leaders that are killed."""
SEED: Final = 20_260
NATURAL: Final = 10
"""Of so many kills, after one the Lease expires by itself, which takes twelve seconds; else the test releases it."""
MAX_DELAY: Final = 0.25
"""Longest time in seconds from a takeover to the kill: the binds of a batch take about as long."""

# The cluster and its pods. A known number of each kind fits, in whatever order they arrive.
POOLS: Final = {"whole": 5, "half": 6, "none": 1}
PODS: Final = {
    "whole": (50, {"nvidia.com/gpu": "1"}),
    "half": (110, {"kubernetes.io/gpu": "50"}),
    "none": (40, {"nvidia.com/gpu": "9"}),
}
FIT: Final = {"whole": 40, "half": 96, "none": 0}


def test_killed_operator_loses_no_pod_and_books_no_card_twice(world: World) -> None:
    world.agent()
    chance = random.Random(SEED)
    arrivals = _batches(world, chance)

    leader = _follower(world)
    for pool, count in POOLS.items():
        world.nodes(count, labels={"pool": pool})
    for kill in range(KILLS):
        leader.logged('"event": "leading"')
        follower = _follower(world)
        world.arena.create(next(arrivals))
        time.sleep(chance.uniform(0, MAX_DELAY))
        leader.kill()
        if kill % NATURAL:
            world.free_lease()
        leader = follower
    leader.logged('"event": "leading"')

    world.wait(lambda: _bound(world) == FIT, what="exactly the pods that fit to be bound")
    assert next(arrivals, None) is None
    _check(world)
    _check_that_nothing_leaks(world)
    _check_events(world)
    assert sum(each.exit_code == -9 for each in world.processes.started) >= KILLS


def _follower(world: World) -> Process:
    return world.operator(wait=False, **TERMS, status_rate=200, node_rate=200)


def _batches(world: World, chance: random.Random) -> Iterator[list[Manifest]]:
    """Return all pods in a random order, in as many batches as there are kills."""
    pods = [
        world.arena.pod(f"{kind}-{number}", requests=requests, limits=requests, nodeSelector={"pool": kind})
        for kind, (count, requests) in PODS.items()
        for number in range(count)
    ]
    chance.shuffle(pods)
    share = len(pods) // KILLS
    return iter([pods[first : first + share] for first in range(0, len(pods), share)])


def _bound(world: World) -> dict[str, int]:
    bound = world.bound_names()
    return {kind: sum(name.startswith(f"{kind}-") for name in bound) for kind in PODS}


def _check(world: World) -> None:
    """Run the independent audit on all pods and nodes."""
    findings = audit(
        pods=world.arena.list("pods"),
        nodes=world.arena.list("nodes", labelSelector=world.arena.selector),
        devices=[each for each in world.arena.list("devices") if each["metadata"]["name"].startswith(world.arena.id)],
        scheduler=world.arena.scheduler_name,
    )
    assert not findings, "\n".join(map(str, findings))


def _check_events(world: World) -> None:
    """Check that no pod has two Scheduled Events, and that only operators that were killed left pods without one."""
    term = str(world.arena.get("leaderleases", world.arena.lease_name)["spec"]["term"])
    pods = [each for each in world.arena.list("pods") if each["spec"].get("nodeName")]
    of_last_leader = {each["metadata"]["uid"] for each in pods if each["metadata"]["annotations"][names.EPOCH] == term}
    assert of_last_leader
    world.wait(lambda: of_last_leader <= set(_scheduled(world)), what="the last leader's Events")
    assert len(set(_scheduled(world))) == len(_scheduled(world))


def _scheduled(world: World) -> list[str]:
    """Return the UID of the pod of each Scheduled Event."""
    return [each["involvedObject"]["uid"] for each in world.arena.list("events") if each["reason"] == "Scheduled"]


def _check_that_nothing_leaks(world: World) -> None:
    """Check that each pod that leaves frees capacity for exactly one that waits."""
    bound = sorted(world.bound_names())
    leaving = {kind: next(name for name in bound if name.startswith(kind)) for kind in ("whole", "half")}
    for name in leaving.values():
        world.remove(name)
    world.wait(
        lambda: _bound(world) == FIT and not world.bound_names() & set(leaving.values()),
        what="the freed cards to be taken",
    )
    _check(world)
