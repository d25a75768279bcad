"""Kubernetes' PodGroups: all members are bound or none, and members of a group may leave only together."""

import asyncio
from typing import Any

import pytest

from tests.component.evictions.test_preemption import GRACE, Crowded, held, high
from tests.objects.builders import NVIDIA, Raw, kubernetes_group, pod

pytestmark = pytest.mark.looptime

IN_GROUP: Raw = {"schedulingGroup": {"podGroupName": "g"}}
PRIORITY = 10


def members(count: int, **fields: Any) -> list[Raw]:
    return [pod(f"m{number}", {NVIDIA: "1"}, priority=PRIORITY, **IN_GROUP, **fields) for number in range(count)]


def crowded(*on: str, priority: int = 0, **fields: Any) -> Crowded:
    """Return a world of two nodes, with a pod on each of these nodes that holds its next card."""
    world = Crowded()
    for node in ("n0", "n1"):
        world.add_node(node, cards=2)
    minors = {"n0": 0, "n1": 0}
    for number, node in enumerate(on):
        world.hold(held(f"p{number}", minors[node], on=node, priority=priority, **fields))
        minors[node] += 1
    return world


def created(world: Crowded, **fields: Any) -> None:
    world.kubernetes_groups.apply("ADDED", kubernetes_group(**fields))


async def test_members_wait_for_their_group_and_then_for_each_other() -> None:
    world = crowded()
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.messages("m0") == ['waiting for pods\'s pod group "g" to appear in scheduling queue']
        created(world, minimum=3, priority=PRIORITY)
        await asyncio.sleep(5)
        assert api.messages("m0")[-1] == "PodGroup ns/g: waiting for members: 2 of 3"
        world.submit(pod("m2", {NVIDIA: "1"}, priority=PRIORITY, **IN_GROUP))
        await asyncio.sleep(5)
    assert sorted(api.bound()) == ["m0", "m1", "m2"]


@pytest.mark.parametrize("minimum", [pytest.param(0, id="basic"), pytest.param(2, id="gang")])
async def test_a_group_waits_until_no_member_has_scheduling_gates(minimum: int) -> None:
    world = crowded()
    created(world, minimum=minimum, priority=PRIORITY)
    *_, last = waiting = members(3)
    world.submit(*waiting[:2], {**last, "spec": {**last["spec"], "schedulingGates": [{"name": "later"}]}})
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.messages("m0") == ["PodGroup ns/g: waiting for members with scheduling gates: 1"]
        assert not api.bound()
        world.change(last)
        await asyncio.sleep(5)
    assert sorted(api.bound()) == ["m0", "m1", "m2"]


async def test_members_of_a_basic_group_are_bound_as_they_fit() -> None:
    world = crowded("n0", "n0", "n1", priority=PRIORITY)
    created(world, priority=PRIORITY)
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert len([name for name in api.bound() if name.startswith("m")]) == 1
        world.delete("p0")
        await asyncio.sleep(5)
    assert len([name for name in api.bound() if name.startswith("m")]) == 2


@pytest.mark.parametrize(
    ("disruption", "leaving"), [pytest.param("all", 4, id="all"), pytest.param("single", 1, id="single")]
)
async def test_a_victim_takes_its_group_with_it(disruption: str, leaving: int) -> None:
    world = crowded("n0", "n0", "n1", "n1", **IN_GROUP)
    created(world, minimum=4, disruption=disruption)
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(GRACE + 5)
    assert len(world.deleted()) == leaving
    assert "high" in api.bound()


async def test_a_group_preempts_also_for_members_beyond_its_minimum() -> None:
    world = crowded("n0", "n0", "n1", "n1")
    created(world, minimum=2, priority=PRIORITY)
    world.submit(*members(3))
    async with world.running() as api:
        await asyncio.sleep(2 * GRACE + 20)
    assert sorted(name for name in api.bound() if name.startswith("m")) == ["m0", "m1", "m2"]
    assert len(world.deleted()) == 3
    victim = world.deleted()[0]
    assert api.events_of(victim, "Preempted")[0].startswith("Preempted by podgroup ns/g on node")


async def test_a_member_of_another_priority_keeps_the_group_waiting() -> None:
    world = crowded()
    created(world, minimum=2, priority=5)
    world.submit(*members(2))
    async with world.running() as api:
        await asyncio.sleep(5)
    why = "all pods in a single pod group should have the same priority as the pod group's priority, got 10 and 5"
    assert api.messages("m0") == [why]
    assert not api.bound()
