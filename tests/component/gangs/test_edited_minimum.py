"""Waiting gangs whose minimum is edited: the newest revision of the pods decides."""

import asyncio
from typing import Any

import pytest

from berth_api import names
from tests.component.world import World
from tests.objects.builders import NVIDIA, Raw, pod

pytestmark = pytest.mark.looptime

GANG = "pod group ns/g"
DISAGREE = f"{GANG}: annotation berth.dev/pod-group-min-member must be the same on all its pods; it is "


def member(name: str, minimum: int, owner: Raw, labels: dict[str, str], *, second: int) -> Raw:
    """Return a pod of one card that was created at a second."""
    return pod(
        name,
        {NVIDIA: "1"},
        annotations={names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: str(minimum)},
        labels=labels,
        metadata={"ownerReferences": [{**owner, "controller": True}]},
        created=f"2026-01-01T00:00:{second:02}Z",
    )


def of_deployment(name: str, minimum: int, template: str, *, second: int, deployment: str = "web") -> Raw:
    """Return a pod as a Deployment's ReplicaSet creates it."""
    replica_set = f"{deployment}-{template}"
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": replica_set, "uid": f"uid-{replica_set}"}
    return member(name, minimum, owner, {"app": deployment, "pod-template-hash": template}, second=second)


def of_stateful_set(name: str, minimum: int, revision: str, *, second: int) -> Raw:
    """Return a pod as a StatefulSet creates it."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "set", "uid": "uid-set"}
    labels = {"controller-revision-hash": f"set-{revision}", "statefulset.kubernetes.io/pod-name": name}
    return member(name, minimum, owner, labels, second=second)


def of_job_set(name: str, minimum: int, uid: str, *, second: int) -> Raw:
    """Return a pod as the Job of a JobSet creates it. If the JobSet is created again, so is the Job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-workers-0", "uid": uid}
    labels = {
        "batch.kubernetes.io/controller-uid": uid,
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
    }
    return member(name, minimum, owner, labels, second=second)


def with_cards(cards: int) -> World:
    world = World()
    world.add_node(cards=cards)
    return world


async def submitted(world: World, *pods: Raw, seconds: float = 5) -> set[str]:
    """Submit pods; return which are bound after some seconds."""
    world.submit(*pods)
    await asyncio.sleep(seconds)
    return set(world.api.bound())


@pytest.mark.parametrize(("replicas", "minimum"), [pytest.param(2, 2, id="scaled down"), pytest.param(1, 2, id="typo")])
async def test_a_deployment_whose_minimum_is_lowered(replicas: int, minimum: int) -> None:
    world = with_cards(1)
    async with world.running() as api:
        old = [of_deployment(f"old-{number}", minimum, "a", second=number) for number in range(replicas)]
        assert await submitted(world, *old) == set()
        # The Deployment keeps one old pod until a new one is available.
        for number in range(1, replicas):
            world.delete(f"old-{number}")
        assert await submitted(world, of_deployment("new", 1, "b", second=30)) == {"new"}
        world.delete("old-0")
        await asyncio.sleep(1)
    assert api.deletions == []


async def test_a_deployment_whose_minimum_is_raised_starts_all_or_none() -> None:
    world = with_cards(0)
    async with world.running() as api:
        assert await submitted(world, of_deployment("old", 1, "a", second=0)) == set()
        new = [of_deployment(f"new-{number}", 2, "b", second=10 + number) for number in range(2)]
        await submitted(world, new[0])
        world.add_node("one", cards=1)
        assert await submitted(world, new[1]) == set(), "one card is too little for two"
        assert api.messages("old")[-1] == (f"{GANG}: waiting for the members of a newer revision, whose minimum is 2")
        world.add_node("another", cards=1)
        await asyncio.sleep(5)
        assert set(api.bound()) == {"new-0", "new-1"}


async def test_old_members_fill_up_a_new_revision_that_is_not_complete() -> None:
    world = with_cards(3)
    async with world.running() as api:
        old = [of_deployment(f"old-{number}", 4, "a", second=number) for number in range(3)]
        assert await submitted(world, *old) == set()
        # A surge of one pod, and no pod is unavailable: the Deployment creates no more.
        assert await submitted(world, of_deployment("new", 3, "b", second=30)) == {"new", "old-1", "old-2"}
        assert api.deletions == []


@pytest.mark.parametrize(
    ("before", "after", "bound"),
    [pytest.param(3, 2, {"set-0", "set-1"}, id="typo"), pytest.param(2, 1, {"set-1"}, id="lowered")],
)
async def test_a_stateful_set_replaces_one_pod_after_the_other(before: int, after: int, bound: set[str]) -> None:
    world = with_cards(len(bound))
    async with world.running():
        old = [of_stateful_set(f"set-{number}", before, "a", second=number) for number in range(2)]
        assert await submitted(world, *old) == set()
        world.delete("set-1")
        new = of_stateful_set("set-1", after, "b", second=30)
        new["metadata"]["uid"] = "uid-set-1-new"
        assert await submitted(world, new) == bound


async def test_a_job_set_that_is_created_again() -> None:
    world = with_cards(1)
    async with world.running():
        assert await submitted(world, *(of_job_set(f"old-{n}", 2, "uid-a", second=n) for n in range(2))) == set()
        # Kubernetes deletes the old pods in the background.
        assert await submitted(world, of_job_set("new", 1, "uid-b", second=30)) == {"new"}


async def test_a_rollback_is_the_newest_revision() -> None:
    world = with_cards(2)
    async with world.running():
        assert await submitted(world, of_deployment("first", 2, "a", second=0)) == set()
        assert await submitted(world, of_deployment("second", 4, "b", second=10)) == set()
        assert await submitted(world, of_deployment("again", 2, "a", second=20)) == {"first", "again"}


@pytest.mark.parametrize("kind", ["one revision", "two applications"])
async def test_members_that_disagree_otherwise_are_reported(kind: str) -> None:
    others: dict[str, Any] = {"template": "a"} if kind == "one revision" else {"template": "b", "deployment": "other"}
    world = with_cards(4)
    async with world.running() as api:
        first = of_deployment("first", 2, "a", second=0)
        assert await submitted(world, first, of_deployment("second", 1, second=10, **others)) == set()
        assert api.messages("second")[-1] == f"{DISAGREE}1, 2"


async def test_revisions_with_one_minimum_count_together() -> None:
    world = with_cards(2)
    async with world.running():
        pods = [of_deployment("old", 2, "a", second=0), of_deployment("new", 2, "b", second=10)]
        assert await submitted(world, *pods) == {"old", "new"}
