"""Preemption of and for pods with ResourceClaims, next to Kubernetes' resource claim controller."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.differential import evictions
from tests.differential.evictions import ABOVE
from tests.integration.operator.test_claims_of_pods import Claims
from tests.integration.operator.test_extended_resources import Extended
from tests.integration.operator.world import World

LOW = 0


@pytest.fixture
def priorities(world: World) -> Iterator[World]:
    evictions.make_classes(world.arena, (LOW, ABOVE))
    yield world
    evictions.remove_classes(world.arena)


@pytest.fixture
def claims(priorities: World, tmp_path: Path) -> Iterator[Claims]:
    own = Claims(priorities, tmp_path)
    yield own
    own.driver.withdraw()


def of(world: World, priority: int) -> dict[str, Any]:
    return {"priorityClassName": evictions.class_name(world.arena, priority)}


def test_a_pod_evicts_for_its_claim_but_not_for_one_that_a_pod_uses_which_stays(claims: Claims) -> None:
    world = claims.world
    claims.start()
    claims.create("shared")
    for name, claim, priority in (("low-user", "shared", LOW), ("user", "shared", ABOVE), ("low", "", LOW)):
        claims.pod(name, claim=claim, **of(world, priority))
        world.bound(name)
    claims.pod("first", **of(world, ABOVE))
    world.bound("first")
    assert world.bound_names() == {"low-user", "user", "first"}
    claims.pod("second", **of(world, ABOVE))
    world.waits("second", "cannot allocate all claims")
    assert world.bound_names() == {"low-user", "user", "first"}
    world.remove("user")
    world.bound("second")
    assert world.bound_names() == {"first", "second"}
    assert claims.held() == ["gpu-0", "gpu-1"]


@pytest.fixture
def extended(priorities: World, tmp_path: Path) -> Iterator[Extended]:
    priorities.arena.nodes(1)
    own = Extended(priorities, tmp_path)
    yield own
    own.driver.withdraw()


def test_devices_that_a_class_provides_are_taken_from_pods_of_lower_priority(extended: Extended) -> None:
    world = extended.world
    extended.start_with("a", "b")
    for name, priority in (("low", LOW), ("equal", ABOVE)):
        world.pod(name, {extended.resource: "1"}, **of(world, priority))
        world.bound(name)
    world.pod("high", {extended.implicit: "1"}, **of(world, ABOVE))
    world.bound("high")
    assert world.bound_names() == {"equal", "high"}
    world.wait(lambda: extended.by_pod().keys() == {"equal", "high"}, what="the claim of the victim to be deleted")
    assert extended.held() == ["a", "b"]
    world.pod("more", {extended.resource: "1"}, **of(world, ABOVE))
    world.waits("more", "cannot allocate all claims")
    assert world.bound_names() == {"equal", "high"}
