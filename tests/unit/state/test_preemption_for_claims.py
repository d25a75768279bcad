"""Preemption of and for pods with ResourceClaims: which devices are free without which pods, and when."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from berth_api.values.selectors import LabelSelector, Requirement
from berth_operator.core.decision.budgets import Budget, Budgets
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.preemption import nominated_fit, preempt
from berth_operator.core.decision.victims import Preemption
from berth_operator.core.values.request import PendingPod
from berth_operator.core.values.verdict import Change
from tests.claims.objects import request
from tests.objects.builders import GPU, pod
from tests.objects.resource_claims import NVIDIA_DRIVER, allocated, gpu, resource_slice
from tests.unit.state.test_pods_with_claims import World, woken


def held(world: World, name: str, *devices: str, pods: Sequence[str], node: str = "node", priority: int = 0) -> None:
    """Put a claim with devices, and the pods on the node that use it."""
    world.to.put_claim(allocated(name, *devices, node=node, pods=[f"uid-{each}" for each in pods]))
    for each in pods:
        used = [{"name": name, "resourceClaimName": name}]
        world.cluster.put_bound(pod(each, on=node, priority=priority, resourceClaims=used))


def high(world: World, *claims: str, priority: int = 10, **fields: Any) -> PendingPod:
    return world.pending("high", *claims, priority=priority, **fields)


def evicted(world: World, pending: PendingPod, *budgets: Budget) -> Preemption | None:
    by_key = {f"ns/{number}": each for number, each in enumerate(budgets)}
    return preempt(world.cluster.fleet, pending, Policy(), Budgets(by_key))


def victims(preemption: Preemption | None) -> list[str]:
    assert preemption is not None
    return [victim.pod.partition("/")[2] for victim in preemption.victims]


def devices(preemption: Preemption | None) -> list[str]:
    assert preemption is not None
    allocations = preemption.nominee.claims.allocations
    return [result.device.id.device for allocation in allocations for result in allocation.results]


def test_the_devices_of_a_claim_are_free_without_the_only_pod_that_uses_it() -> None:
    world = World(gpus=1)
    held(world, "theirs", "gpu-0", pods=["low"])
    world.put_claim()
    pending = high(world)
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Failure)
    preemption = evicted(world, pending)
    assert (victims(preemption), devices(preemption)) == (["low"], ["gpu-0"])


def test_a_claim_that_a_pod_uses_which_stays_is_not_free() -> None:
    world = World(gpus=1)
    held(world, "theirs", "gpu-0", pods=["low", "other"])
    world.put_claim()
    assert sorted(victims(evicted(world, high(world)))) == ["low", "other"]
    used = [{"name": "theirs", "resourceClaimName": "theirs"}]
    world.cluster.put_bound(pod("other", on="node", priority=10, resourceClaims=used))
    assert evicted(world, high(world)) is None


@pytest.mark.parametrize("pods", [[], ["uid-without-a-node"]], ids=["nothing", "a pod that waits"])
def test_a_claim_that_is_reserved_for_no_placed_pod_is_not_free(pods: list[str]) -> None:
    world = World(gpus=1)
    held(world, "theirs", "gpu-0", pods=["low"])
    world.to.put_claim(allocated("theirs", "gpu-0", pods=pods))
    world.put_claim()
    assert evicted(world, high(world)) is None


def test_a_claim_of_a_pod_and_its_victim_stays_allocated() -> None:
    world = World(gpus=2)
    held(world, "shared", "gpu-0", pods=["low"])
    held(world, "theirs", "gpu-1", pods=["low"])
    world.put_claim()
    preemption = evicted(world, high(world, "shared", "c"))
    assert (victims(preemption), devices(preemption)) == (["low"], ["gpu-1"])


def test_as_few_pods_as_possible_are_evicted_the_least_important_first() -> None:
    world = World("a", "b", gpus=3)
    for node in ("a", "b"):
        for number in range(3):
            priority = {"a": 3, "b": 4}[node] - number
            held(world, f"c-{node}{number}", f"gpu-{number}", pods=[f"{node}{number}"], node=node, priority=priority)
    world.put_claim(request(count=2))
    preemption = evicted(world, high(world))
    assert victims(preemption) == ["a1", "a2"]
    assert sorted(devices(preemption)) == ["gpu-1", "gpu-2"]


def test_a_device_that_no_eviction_makes_suitable_costs_no_pod() -> None:
    world = World(gpus=1)
    held(world, "theirs", "gpu-0", pods=["low"])
    world.put_claim(request(where=f'device.attributes["{NVIDIA_DRIVER}"].uuid == "another"'))
    pending = high(world)
    outcome = decide(world.cluster.fleet, pending, Policy())
    assert isinstance(outcome, Failure)
    assert outcome.unresolvable == 1
    assert evicted(world, pending) is None


def test_a_budget_protects_pods_with_claims() -> None:
    world = World("a", "b", gpus=1)
    for node in ("a", "b"):
        held(world, f"c-{node}", "gpu-0", pods=[node], node=node, priority={"a": 1, "b": 2}[node])
    world.put_claim()
    assert victims(evicted(world, high(world))) == ["a"]
    used = [{"name": "c-a", "resourceClaimName": "c-a"}]
    world.cluster.put_bound(pod("a", on="a", priority=1, labels={"app": "x"}, resourceClaims=used))
    protecting = Budget(
        namespace="ns", selector=LabelSelector(requirements=(Requirement(key="app", operator="Exists"),))
    )
    assert victims(evicted(world, high(world), protecting)) == ["b"]


def test_pods_are_evicted_for_a_card_by_name_and_one_by_claim() -> None:
    world = World(gpus=2)
    held(world, "theirs", "gpu-0", pods=["low"])
    world.cluster.put_pending(pod("by-name", {GPU: "100"}))
    by_name = decide(world.cluster.fleet, world.cluster.pending["uid-by-name"], Policy())
    assert isinstance(by_name, Placement)
    world.cluster.placements.assume(by_name)
    world.put_claim()
    preemption = evicted(world, high(world, requests={GPU: "100"}))
    assert sorted(victims(preemption)) == ["by-name", "low"]
    assert preemption is not None
    assert {grant.minor for grant in preemption.nominee.grants} == {0, 1}


def test_a_pod_that_holds_a_card_by_claim_is_evicted_for_one_by_name() -> None:
    world = World(gpus=1)
    held(world, "theirs", "gpu-0", pods=["low"])
    world.cluster.put_pending(pod("high", {GPU: "100"}, priority=10))
    pending = world.cluster.pending["uid-high"]
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Failure)
    preemption = evicted(world, pending)
    assert victims(preemption) == ["low"]
    assert preemption is not None
    assert [grant.minor for grant in preemption.nominee.grants] == [0]


# --- until the devices are free --------------------------------------------------------------------------------


def nominated(world: World) -> PendingPod:
    """Preempt the pod `low` for a pod that is nominated then; return this pod."""
    held(world, "theirs", "gpu-0", pods=["low"])
    world.put_claim()
    preemption = evicted(world, high(world))
    assert preemption is not None
    world.cluster.fleet.mark_leaving("uid-low")
    return world.cluster.nominator.nominate(world.cluster.pending["uid-high"], preemption.nominee)


def fits(world: World, pending: PendingPod) -> bool:
    return nominated_fit(world.cluster.fleet, pending, Policy(), "node") is not None


def test_a_nomination_holds_until_the_claims_of_victims_are_deallocated() -> None:
    world = World(gpus=1)
    pending = nominated(world)
    assert fits(world, pending)
    world.cluster.remove_bound("uid-low")
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Failure)
    assert fits(world, pending)
    world.to.remove_claim("ns/theirs")
    assert isinstance(decide(world.cluster.fleet, pending, Policy()), Placement)


def test_what_is_kept_for_a_nominee_is_given_to_no_pod_of_its_priority() -> None:
    world = World(gpus=1)
    nominated(world)
    world.put_claim(name="d")
    other = world.pending("other", "d", priority=10)
    assert evicted(world, other) is None
    world.cluster.remove_bound("uid-low")
    world.to.remove_claim("ns/theirs")
    assert isinstance(decide(world.cluster.fleet, other, Policy()), Failure)
    higher = world.pending("higher", "d", priority=11)
    assert isinstance(decide(world.cluster.fleet, higher, Policy()), Placement)


def test_a_pod_whose_bind_failed_has_not_left_its_claims() -> None:
    world = World(gpus=1)
    world.put_claim(name="theirs")
    placement = world.placed("low", "theirs")
    world.write(placement)
    world.cluster.placements.forget("uid-low")
    world.put_claim()
    assert not world.cluster.fleet.claims.departed
    assert evicted(world, high(world)) is None


def test_pods_that_left_are_forgotten_with_their_claims() -> None:
    world = World(gpus=1)
    held(world, "theirs", "gpu-0", pods=["low", "other"])
    world.cluster.remove_bound("uid-low")
    assert world.cluster.fleet.claims.departed == {"uid-low"}
    world.to.put_claim(allocated("theirs", "gpu-0", pods=["uid-low"]))
    assert world.cluster.fleet.claims.departed == {"uid-low"}
    world.to.put_claim(allocated("theirs", "gpu-0", pods=["uid-other"]))
    assert not world.cluster.fleet.claims.departed


# --- waking ----------------------------------------------------------------------------------------------------


def park(world: World, pending: PendingPod) -> None:
    """Park a pod for which evictions do not help."""
    woken(world)
    outcome = decide(world.cluster.fleet, pending, Policy())
    assert isinstance(outcome, Failure)
    assert evicted(world, pending) is None
    world.cluster.queue.park(pending, replace(outcome, wakes_on=outcome.wakes_on | Change.EVICTABLE))
    assert not woken(world)


def test_a_pod_wakes_for_a_slice_by_which_evictions_help() -> None:
    world = World("a", "b", gpus=2)
    held(world, "theirs", "gpu-0", pods=["low"], node="a")
    world.to.put_slice(resource_slice(gpu(0), node="a"))
    world.to.put_slice(resource_slice(gpu(0), node="b"))
    world.put_claim(request(count=2))
    park(world, high(world))
    world.to.put_slice(resource_slice(gpu(0), gpu(5), node="b"))
    assert woken(world) == ["high"]
    park_again = high(world)
    world.to.put_slice(resource_slice(gpu(0), node="b"))
    park(world, park_again)
    world.to.put_slice(resource_slice(gpu(0), gpu(1), node="a"))
    assert woken(world) == ["high"]
    assert victims(evicted(world, high(world))) == ["low"]


def test_a_pod_wakes_when_a_pod_leaves_a_claim_to_pods_that_it_may_evict() -> None:
    world = World(gpus=1)
    held(world, "theirs", "gpu-0", pods=["low", "other"])
    used = [{"name": "theirs", "resourceClaimName": "theirs"}]
    world.cluster.put_bound(pod("other", on="node", priority=10, resourceClaims=used))
    world.cluster.put_bound(pod("without", on="node", priority=10))
    world.put_claim()
    park(world, high(world))
    world.cluster.remove_bound("uid-other")
    assert woken(world) == ["high"]
    assert victims(evicted(world, high(world))) == ["low"]


def test_a_pod_does_not_wake_where_too_few_devices_are_held_by_pods_below_it() -> None:
    world = World(gpus=2)
    held(world, "theirs", "gpu-0", pods=["low"])
    held(world, "more", "gpu-1", pods=["equal"], priority=10)
    world.cluster.put_bound(pod("without", on="node", priority=10))
    world.put_claim(request(count=2))
    park(world, high(world))
    world.cluster.remove_bound("uid-without")
    assert not woken(world)
    world.to.put_slice(resource_slice(gpu(0), gpu(1), node="node", generation=2))
    assert not woken(world)


@pytest.mark.parametrize(("name", "expected"), [("gpu", ["high"]), ("another", [])])
def test_a_pod_wakes_for_the_classes_of_its_claims_alone(name: str, expected: list[str]) -> None:
    world = World(gpus=1)
    world.put_claim(request(count=2))
    park(world, high(world))
    world.to.put_class({"metadata": {"name": name}, "spec": {}})
    assert woken(world) == expected
