"""Preemption for gangs that do not fit: all members are bound in the place of other pods, or none."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_operator.core.decision.policy import Policy
from berth_operator.state.cache import leaving_pods
from tests.component.evictions.test_preemption import GRACE, Crowded, held, high
from tests.component.gangs.test_gangs import member
from tests.component.world import refusal
from tests.objects.builders import Raw, condition, device, entry, pod_group
from tests.objects.builders import held as still_held
from tests.objects.builders import node as node_object

pytestmark = pytest.mark.looptime

LEAVING = " preemption: pod group is waiting for preemption to complete"


def crowded(*priorities: int, nodes: int = 2, minimum: int = 4, grace: float = GRACE) -> Crowded:
    """Return a world with a PodGroup, whose cards are all held by pods with these priorities, node by node."""
    world = Crowded(grace=grace)
    cards = len(priorities) // nodes
    for number in range(nodes):
        world.add_node(f"n{number}", cards=cards)
    for number, priority in enumerate(priorities):
        node, minor = divmod(number, cards)
        world.hold(held(f"p{number}", minor, on=f"n{node}", priority=priority))
    world.groups.apply("ADDED", pod_group(minimum=minimum))
    return world


def members(count: int = 4, *, priority: int = 10, **fields: Any) -> list[Raw]:
    return [member(f"m{number}", priority=priority, **fields) for number in range(count)]


def bound_members(world: Crowded) -> list[str]:
    return sorted(name for name in world.api.bound() if name.startswith("m"))


async def test_as_many_leave_as_all_members_need_and_all_are_bound() -> None:
    world = crowded(0, 0, 5, 0, 0, 5)
    world.submit(*members())
    async with world.running() as api:
        await asyncio.sleep(1)
        assert sorted(world.deleted()) == ["p0", "p1", "p3", "p4"]
        assert sorted(name for name, _ in api.nominations) == ["m0", "m1", "m2", "m3"]
        assert {node for _, node in api.nominations} == {"n0", "n1"}
        assert all(api.messages(f"m{i}")[-1].endswith(f"{LEAVING} (4 pod(s) left).") for i in range(4))
        assert api.binds == []
        await asyncio.sleep(GRACE)
    assert bound_members(world) == ["m0", "m1", "m2", "m3"]
    assert len(world.deleted()) == 4
    assert [len(api.bind_times(f"m{i}")) for i in range(4)] == [1] * 4
    assert api.events_of("p0", "Preempted")[0].startswith("Preempted by pod ns/m")
    assert not world.cluster.fleet.nominees
    assert not world.cluster.fleet.leaving


CLIQUE = "nvidia.com/gpu.clique"
GROUP = {names.POD_GROUP_LABEL: "g"}


def one_card_each(*held_by: int | None, **labels: tuple[str, ...]) -> Crowded:
    """Return a world of nodes with a card, held by a pod with this priority or free, and with these labels by key."""
    world = Crowded()
    for number, priority in enumerate(held_by):
        of_node = {key: values[number] for key, values in labels.items() if values[number]}
        world.add_node(f"n{number}", labels={"kubernetes.io/hostname": f"n{number}", **of_node})
        if priority is not None:
            world.hold(held(f"p{number}", on=f"n{number}", priority=priority))
    world.groups.apply("ADDED", pod_group(minimum=2))
    return world


@pytest.mark.parametrize(
    ("held_by", "evicted"),
    [
        pytest.param((1, 0), ["p0", "p1"], id="both nodes are taken"),
        pytest.param((None, 0), ["p1"], id="the only node of one of them is free"),
    ],
)
async def test_a_member_makes_way_for_one_with_fewer_nodes(held_by: tuple[int | None, ...], evicted: list[str]) -> None:
    world = one_card_each(*held_by, only=("yes", ""))
    world.submit(member("m0", priority=1000), member("m1", priority=1000, nodeSelector={"only": "yes"}))
    async with world.running() as api:
        await asyncio.sleep(GRACE + 2)
    assert {name: api.bound()[name] for name in bound_members(world)} == {"m0": "n1", "m1": "n0"}
    assert sorted(world.deleted()) == evicted


@pytest.mark.parametrize("first", [-1, None])
async def test_members_with_affinity_to_each_other_find_the_clique_that_holds_all(first: int | None) -> None:
    world = one_card_each(first, 500, 500, **{CLIQUE: ("x", "y", "y")})
    near = {"topologyKey": CLIQUE, "labelSelector": {"matchLabels": GROUP}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    world.submit(*members(2, priority=1000, affinity=affinity))
    async with world.running() as api:
        await asyncio.sleep(GRACE + 2)
    assert sorted(api.bound()[name] for name in bound_members(world)) == ["n1", "n2"]
    assert sorted(world.deleted()) == ["p1", "p2"]


async def test_a_message_says_that_the_search_for_victims_ended_at_its_bound() -> None:
    world = Crowded()
    for number, clique in enumerate("xyzxyz"):
        world.add_node(f"n{number}", cards=2, labels={CLIQUE: clique})
        world.hold(*(held(f"p{number}-{minor}", minor, on=f"n{number}") for minor in range(2)))
    world.groups.apply("ADDED", pod_group(minimum=4))
    apart = {"topologyKey": CLIQUE, "labelSelector": {"matchLabels": GROUP}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    world.submit(*members(4, affinity=affinity))
    async with world.running() as api:
        await asyncio.sleep(5)
    assert api.messages("m0")[-1].endswith(" preemption: The search for preemption victims ended at its bound.")
    assert world.deleted() == []


async def test_no_pod_is_evicted_unless_all_members_would_fit() -> None:
    world = crowded(0, 0, 10, 0)
    world.submit(*members())
    async with world.running() as api:
        await asyncio.sleep(30)
        assert world.deleted() == []
        assert api.nominations == []
        assert api.messages("m0")[-1].endswith(" preemption: No preemption victims found for incoming preemptor.")
        # The pod that it could not evict ends by itself.
        world.delete("p2")
        await asyncio.sleep(1)
        assert sorted(world.deleted()) == ["p0", "p1", "p3"]
        await asyncio.sleep(GRACE)
    assert len(bound_members(world)) == 4


@pytest.mark.parametrize(
    ("fields", "policy", "message"),
    [
        pytest.param(
            {"preemptionPolicy": "Never"}, Policy(), "not eligible due to preemptionPolicy=Never.", id="Never"
        ),
        pytest.param({}, replace(Policy(), preemption=False), "", id="switched off"),
        pytest.param({"priority": 0}, Policy(), "", id="no pod below"),
    ],
)
async def test_a_gang_that_may_not_preempt_waits(fields: Raw, policy: Policy, message: str) -> None:
    world = crowded(0, 0, 0, 0)
    world.policies[names.SCHEDULER] = policy
    world.submit(*members(**fields))
    async with world.running() as api:
        await asyncio.sleep(20)
    assert world.deleted() == []
    assert api.messages("m0")[-1].rpartition(" preemption: ")[2 if message else 1] == message


async def test_what_leaves_for_a_gang_is_kept_for_it() -> None:
    world = crowded(0, 0, 0, 0, grace=20)
    world.submit(*members())
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(high("equal"), high("lower", priority=5))
        for number in range(3):
            # Some end early, and each wakes all pods that wait for a card.
            world.delete(f"p{number}")
            await asyncio.sleep(1)
        assert api.binds == []
        assert len(world.deleted()) == 4
        await asyncio.sleep(20)
    assert sorted(api.bound()) == ["m0", "m1", "m2", "m3"]
    assert len(world.deleted()) == 4
    assert len(api.nominations) == 4


async def test_while_pods_leave_for_it_a_gang_costs_next_to_nothing() -> None:
    world = crowded(*[0] * 64, nodes=8, minimum=64, grace=60)
    world.submit(*members(64))
    async with world.running():
        await asyncio.sleep(1)
        looks = world.fleet.looks
        for number in range(60):
            world.delete(f"p{number}")
            await asyncio.sleep(0.1)
        # Each time it wakes, it decides its one class, and asks no what-if.
        assert world.fleet.looks - looks < 10 * 60
        await asyncio.sleep(60)
    assert len(bound_members(world)) == 64


async def test_a_gang_that_lacks_a_member_again_keeps_nothing() -> None:
    world = crowded(0, 0, 0, 0, grace=20)
    world.submit(*members())
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(high("other", priority=5, preemptionPolicy="Never"))
        world.delete("m3")
        await asyncio.sleep(30)
        assert api.bound() == {"other": api.bound()["other"]}
        assert not world.cluster.fleet.nominees
        assert sorted(name for name, node in api.nominations if node is None) == ["m0", "m1", "m2"]
        assert len(world.deleted()) == 4


async def test_a_member_that_is_created_again_meanwhile_finds_its_place() -> None:
    world = crowded(0, 0, 0, 0, grace=20)
    world.submit(*members())
    async with world.running():
        await asyncio.sleep(1)
        world.delete("m3")
        world.submit(member("m3", uid="uid-new", priority=10))
        await asyncio.sleep(30)
    assert len(bound_members(world)) == 4
    assert len(world.deleted()) == 4


async def test_a_gang_whose_victim_cannot_be_evicted_chooses_again() -> None:
    world = crowded(0, 0, 1, 1, minimum=2)
    world.api.always["delete p0"] = refusal(403, "not this one")
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(0.9)
        assert not world.cluster.fleet.nominees
        del api.always["delete p0"]
        await asyncio.sleep(30)
    assert len(bound_members(world)) == 2
    assert sorted(world.deleted()) == ["p1", "p3"], "for a minute, p0 is no victim"


async def test_a_pod_above_takes_a_place_and_the_gang_looks_for_others_as_a_whole() -> None:
    world = crowded(0, 1, 2, nodes=3, minimum=2, grace=20)
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert set(api.nominations) == {("m0", "n0"), ("m1", "n1")}
        world.submit(high("higher", priority=20))
        await asyncio.sleep(1)
        # Evicting a pod that already ends costs nothing; the second placement costs the next pod.
        assert {node for name, node in api.nominations[2:] if name != "higher"} == {"n1", "n2"}
        assert sorted(world.deleted()) == ["p0", "p1", "p2"]
        await asyncio.sleep(30)
    assert len(bound_members(world)) == 2
    assert api.bound()["higher"] == "n0"
    assert len(world.deleted()) == 3


async def test_the_replacement_of_a_deleted_member_preempts() -> None:
    world = crowded(0, 0, 0, 0, 0, 0)
    world.submit(*members())
    async with world.running() as api:
        await asyncio.sleep(GRACE + 1)
        assert len(bound_members(world)) == 4
        world.hold(held("late", int(_minor(world, "m0")), on=api.bound()["m0"]))
        world.delete("m0")
        world.submit(member("m9", priority=10))
        await asyncio.sleep(GRACE + 1)
    assert "m9" in api.bound()
    assert len(world.deleted()) == 5


def _minor(world: Crowded, name: str) -> int:
    return world.cluster.fleet.charges[f"uid-{name}"].grants[0].minor


async def test_members_beyond_those_that_it_needs_evict_no_pod() -> None:
    world = crowded(0, 0, 0, 0, minimum=2)
    world.submit(*members(4))
    async with world.running():
        await asyncio.sleep(4 * GRACE)
    assert len(bound_members(world)) == 2
    assert len(world.deleted()) == 2


def taken_over(*nodes: str, count: int = 4) -> Crowded:
    """Return what a new leader reads: pods that end for a gang, and members with their nominated nodes."""
    world = crowded(0, 0, 0, 0, 0, 0, grace=20)
    for raw, node in zip(members(count), nodes, strict=False):
        world.submit({**raw, "status": {"nominatedNodeName": node}})
    for number in (0, 1, 3, 4):
        world.api.pods[f"p{number}"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        world.pods.apply("MODIFIED", copy.deepcopy(world.api.pods[f"p{number}"]))
    # The older one is decided first, and would take a card.
    world.submit(high("older", preemptionPolicy="Never", created="2025-01-01T00:00:00Z"))
    return world


async def test_a_new_leader_keeps_what_the_last_one_kept() -> None:
    world = taken_over("n0", "n0", "n1", "n1")
    async with world.running() as api:
        await asyncio.sleep(1)
        assert len(world.cluster.fleet.nominees) == 4
        for number in (0, 1, 3, 4):
            world.delete(f"p{number}")
        await asyncio.sleep(1)
    assert sorted(api.bound()) == ["m0", "m1", "m2", "m3", "p2", "p5"]
    assert world.deleted() == []
    assert api.nominations == []


async def test_a_new_leader_keeps_no_part_of_what_the_last_one_kept() -> None:
    world = taken_over("n0", "n0", "n1", "gone")
    async with world.running() as api:
        await asyncio.sleep(1)
        # It is decided again, as a whole; pods that already end cost nothing.
        assert {name for name, _ in api.nominations} == {"m0", "m1", "m2", "m3"}
        assert len(world.cluster.fleet.nominees) == 4
        assert world.deleted() == []


async def test_a_new_leader_keeps_nothing_for_a_gang_that_lacks_members() -> None:
    world = taken_over("n0", "n0", "n1", count=3)
    async with world.running() as api:
        await asyncio.sleep(1)
        assert not world.cluster.fleet.nominees
        world.delete("p0")
        await asyncio.sleep(1)
    assert "older" in api.bound()


async def test_two_gangs_choose_one_after_the_other() -> None:
    world = crowded(0, 0, 0, 0, minimum=2)
    world.groups.apply("ADDED", pod_group("h", 2, created="2026-01-02T00:00:00Z"))
    world.submit(*members(2), *(member(f"n{i}", "h", priority=10) for i in range(2)))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert len(world.deleted()) == 4
        await asyncio.sleep(GRACE)
    assert len(api.bound()) == 4


FOREVER = 10 * 24 * 3600.0
"""Seconds; a pod with this grace period does not end within a test."""


def without_an_agent(world: Crowded) -> None:
    world.cluster.node_cache.remove_device("n0")
    world.cluster.node_cache.put_device(device("n0", entry(0), conditions=[condition("Ready", "Unknown")]))


def cordoned(world: Crowded) -> None:
    world.cluster.node_cache.put_node(node_object("n0", unschedulable=True))


@pytest.mark.parametrize("fail", [cordoned, without_an_agent])
async def test_a_gang_does_not_wait_for_a_node_that_has_failed(fail: Callable[[Crowded], None]) -> None:
    world = crowded(0, 0, 5, nodes=3, minimum=2, grace=FOREVER)
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert world.deleted() == ["p0", "p1"]
        world.delete("p1")
        await asyncio.sleep(5)
        assert api.binds == []
        assert world.deleted() == ["p0", "p1"]
        fail(world)
        await asyncio.sleep(20)
        assert world.deleted() == ["p0", "p1", "p2"]
        world.delete("p2")
        await asyncio.sleep(1)
    assert sorted(api.bound()[name] for name in bound_members(world)) == ["n1", "n2"]


async def test_a_gang_whose_node_has_failed_keeps_no_capacity_if_it_fits_nowhere_else() -> None:
    world = crowded(0, 0, nodes=2, minimum=2, grace=FOREVER)
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.delete("p1")
        world.submit(high("lower", priority=5, preemptionPolicy="Never"))
        await asyncio.sleep(5)
        assert "lower" not in api.bound()
        cordoned(world)
        await asyncio.sleep(5)
    assert api.bound()["lower"] == "n1"
    assert not world.cluster.fleet.nominees


async def test_a_gang_does_not_wait_forever_for_a_victim_that_does_not_end() -> None:
    world = crowded(0, 0, 5, nodes=3, minimum=2, grace=FOREVER)
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.delete("p1")
        await asyncio.sleep(leaving_pods.LONGEST - 10)
        assert world.deleted() == ["p0", "p1"]
        assert world.preemptor.progress.record() == []
        await asyncio.sleep(20)
        assert world.deleted() == ["p0", "p1", "p2"]
        assert [lost.count for lost in world.preemptor.progress.record()] == [1]
        world.delete("p2")
        await asyncio.sleep(1)
    assert sorted(api.bound()[name] for name in bound_members(world)) == ["n1", "n2"]


async def test_a_gang_evicts_others_if_a_process_of_a_deleted_pod_does_not_end() -> None:
    world = crowded(0, 0, 5, nodes=3, minimum=2)
    uses = [still_held("p0", "GPU-0")]
    world.cluster.node_cache.put_device(device("n0", entry(0), status={"bootID": "boot-1", "held": uses}))
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(GRACE + leaving_pods.OF_LEFTOVERS - 5)
        assert world.deleted() == ["p0", "p1"]
        assert api.binds == []
        await asyncio.sleep(10 + GRACE)
    assert world.deleted() == ["p0", "p1", "p2"]
    assert sorted(api.bound()[name] for name in bound_members(world)) == ["n1", "n2"]
