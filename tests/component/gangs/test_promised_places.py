"""Promised places in the scheduling loop: workloads are decided before pods, and their pods get the places."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from berth_api import names
from berth_operator.core.values.pod_admission import Quota
from berth_operator.core.values.quota_workload import CheckState, PodSet, QuotaWorkload
from berth_operator.core.values.request import Toleration
from berth_operator.state.objects.pod_admission import of_pod
from tests.component.extender.extender_stage import WHOLE, Stage, asking
from tests.component.world import World
from tests.objects.builders import NVIDIA, Raw, pod, waiting, whole

pytestmark = pytest.mark.looptime


def workload(name: str, count: int, **fields: Any) -> QuotaWorkload:
    """Return a workload with quota, whose pods request a card each."""
    pod_set = PodSet(name="main", pods=(waiting(request={NVIDIA: 1}),) * count)
    return QuotaWorkload(
        key=f"ns/{name}", uid=f"uid-{name}", check="fits", has_quota=True, pod_sets=(pod_set,), **fields
    )


def of_workload(name: str, number: int, **fields: Any) -> Raw:
    annotations = {names.WORKLOAD: name, names.POD_SET: "main"}
    return pod(f"{name}-{number}", {NVIDIA: "1"}, annotations=annotations, **fields)


def promised(world: World, name: str) -> list[str]:
    return sorted(each.node for each in world.cluster.promises.places(f"ns/{name}"))


async def test_pods_are_bound_to_the_places_that_were_promised() -> None:
    world = World()
    world.add_node("a", cards=2)
    world.add_node("b", cards=1)
    async with world.running() as api:
        await asyncio.sleep(5)
        world.cluster.workloads.put(workload("train", 2))
        await asyncio.sleep(0.1)
        assert [each.state for each in world.answers] == [CheckState.READY]
        places = promised(world, "train")
        world.submit(*(pod(f"other-{number}", {NVIDIA: "1"}) for number in range(3)))
        await asyncio.sleep(5)
        assert len(api.bound()) == 1, "others get what is not promised"
        world.submit(of_workload("train", 0), of_workload("train", 1))
        await asyncio.sleep(1)
        assert sorted(api.bound()[f"train-{number}"] for number in range(2)) == places
        assert world.users() == 3


async def test_a_workload_is_decided_again_when_a_pod_ends_and_before_pods_are() -> None:
    world = World()
    world.add_node("a", cards=2)
    holder = pod("holder", {NVIDIA: "1"}, on="a", allocated=whole(0))
    world.api.pods["holder"] = holder
    world.pods.apply("ADDED", holder)
    async with world.running() as api:
        world.cluster.workloads.put(workload("train", 2))
        await asyncio.sleep(1)
        assert [each.state for each in world.answers] == [CheckState.PENDING]
        world.submit(pod("small", {NVIDIA: "1"}))
        await asyncio.sleep(1)
        world.delete("holder")
        await asyncio.sleep(1)
        assert [each.state for each in world.answers] == [CheckState.PENDING, CheckState.READY]
        assert promised(world, "train") == ["a", "a"]
        assert "small" not in api.bound()
        world.cluster.workloads.remove("ns/train")
        await asyncio.sleep(1)
        assert api.bound()["small"] == "a"


async def test_places_on_a_node_that_is_gone_are_searched_again_while_a_pod_waits_that_cannot_evict() -> None:
    world = World()
    world.add_node("a", cards=1)
    high = pod("high", {NVIDIA: "1"}, on="a", allocated=whole(0), priority=10)
    without_cards = pod("low", {"cpu": "1"}, on="a")
    for raw in (high, without_cards):
        world.api.pods[raw["metadata"]["name"]] = raw
        world.pods.apply("ADDED", raw)
    async with world.running():
        world.submit(pod("waits", {NVIDIA: "1"}, priority=1))
        await asyncio.sleep(1)
        world.add_node("b", cards=2, taints=[{"key": "apart", "effect": "NoSchedule"}])
        tolerant = waiting(request={NVIDIA: 1}, priority=5)
        request = replace(tolerant.request, tolerations=(Toleration(key="apart", operator="Exists"),))
        pod_set = PodSet(name="main", pods=(replace(tolerant, request=request),) * 2)
        world.cluster.workloads.put(replace(workload("train", 2), pod_sets=(pod_set,), priority=5))
        await asyncio.sleep(1)
        assert promised(world, "train") == ["b", "b"]
        world.cluster.node_cache.remove_node("b")
        world.cluster.node_cache.remove_device("b")
        await asyncio.sleep(30)
        assert promised(world, "train") == []


async def test_a_pod_of_higher_priority_takes_promised_places_and_may_evict_for_them() -> None:
    world = World()
    world.add_node("a", cards=2)
    low = pod("low", {NVIDIA: "1"}, on="a", allocated=whole(0))
    world.api.pods["low"] = low
    world.pods.apply("ADDED", low)
    async with world.running() as api:
        world.cluster.workloads.put(workload("train", 1, priority=5))
        await asyncio.sleep(1)
        assert promised(world, "train") == ["a"]
        world.submit(pod("high", {NVIDIA: "2"}, priority=10))
        await asyncio.sleep(10)
        assert api.bound()["high"] == "a"
        assert [each.state for each in world.answers] == [CheckState.READY, CheckState.RETRY]
        assert not len(world.cluster.promises)


async def test_the_next_leader_keeps_promises_before_it_binds_pods() -> None:
    world = World()
    world.add_node("a", cards=1)
    ready = workload("train", 1, state=CheckState.READY, message="places on a", admitted=True)
    world.cluster.workloads.put(ready)
    world.submit(pod("other", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert not api.bound()
        world.submit(of_workload("train", 0))
        await asyncio.sleep(1)
        assert api.bound() == {"train-0": "a"}


# --- pods of other schedulers ---------------------------------------------------------------------------------


async def test_a_pod_of_kube_scheduler_takes_a_promised_place_only_with_a_higher_priority() -> None:
    world = World()
    world.add_node("a", cards=1)
    stage = Stage(world)
    async with world.running() as api:
        world.cluster.workloads.put(workload("train", 1))
        await asyncio.sleep(1)
        assert promised(world, "train") == ["a"]
        assert not stage.filter(stage.create(asking("low"))).names
        high = stage.create(asking("high", priority=10))
        assert stage.filter(high).names == ["a"]
        assert await stage.bind(high, "a") == ""
        await asyncio.sleep(2)
        assert api.bound() == {"high": "a"}
        assert [each.state for each in world.answers] == [CheckState.READY, CheckState.RETRY]
        assert world.answers[-1].message.startswith("promised places were lost: 0/1 nodes are available")


async def test_kube_scheduler_may_evict_for_a_place_that_is_promised_in_part() -> None:
    world = World()
    world.add_node("a", cards=2)
    world.submit(low := pod("low", {NVIDIA: "1"}, on="a", allocated=whole(0)))
    stage = Stage(world)
    async with world.running():
        world.cluster.workloads.put(workload("train", 1))
        await asyncio.sleep(1)
        assert promised(world, "train") == ["a"]
        two = {key: 2 * amount for key, amount in WHOLE.items()}
        high = stage.create(asking("high", two, priority=10))
        assert not stage.filter(high).names
        assert stage.preempt(high, {"a": []}) == {"a": (["uid-low"], 0)}
        nominated = {**high, "status": {"nominatedNodeName": "a"}}
        assert stage.filter(nominated).error == "node a still has pods that were evicted for this pod"
        low["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        world.change(low)
        assert stage.filter(nominated).error
        await asyncio.sleep(2)
        assert world.answers[-1].state is CheckState.RETRY
        world.delete("low")
        assert not stage.filter(stage.create(asking("small"))).names, "both cards are kept for the nominated pod"
        assert stage.filter(nominated).names == ["a"]


def quota(world: World, hard: int) -> None:
    name = f"requests.{NVIDIA}"
    world.cluster.admission_rules.put_quota("ns", Quota(name="cards", hard={name: hard}, used={}))


@pytest.mark.parametrize("existing", [0, 1])
async def test_a_workload_that_a_resource_quota_refuses_is_pending_with_the_reason(existing: int) -> None:
    """Pods that Kueue holds back by gates are in the quota's use already."""
    world = World()
    world.add_node("a", cards=2)
    quota(world, 1)
    admission = of_pod({"containers": [{"name": "main", "resources": {"limits": {NVIDIA: "1"}}}]})
    made = workload("train", 2, existing=existing)
    pods = tuple(replace(each, admission=admission) for each in made.pod_sets[0].pods)
    async with world.running():
        world.cluster.workloads.put(replace(made, pod_sets=(PodSet(name="main", pods=pods),)))
        await asyncio.sleep(1)
        if existing:
            assert [each.state for each in world.answers] == [CheckState.READY]
            quota(world, 0)
            world.cluster.listener.work_ready()
            await asyncio.sleep(1)
            assert world.answers[-1].state is CheckState.RETRY
            assert not promised(world, "train")
            return
        [answer] = world.answers
        assert answer.state is CheckState.PENDING
        assert answer.message == (
            "exceeded quota: cards, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, "
            "limited: requests.nvidia.com/gpu=1. Its pods would not be created."
        )
        assert not promised(world, "train")
        quota(world, 2)
        world.cluster.listener.work_ready()
        await asyncio.sleep(2)
        assert world.answers[-1].state is CheckState.READY
        assert promised(world, "train") == ["a", "a"]
