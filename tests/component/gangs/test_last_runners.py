"""The last members of a gang that run are replaced, though the succeeded members are gone."""

import asyncio

import pytest

from berth_api import names
from tests.component.gangs.test_gangs import restarted
from tests.component.world import World
from tests.objects.builders import NVIDIA, Raw, pod, pod_group

pytestmark = pytest.mark.looptime

JOB = {"apiVersion": "batch/v1", "kind": "Job"}
WAITS = "waiting for members: 1 of 2"


def worker(name: str, *, job: str = "job", owner: Raw | None = None, labelled: bool = False) -> Raw:
    """Return a pod of a Job whose gang needs two members."""
    reference = {**(JOB if owner is None else owner), "name": job, "uid": f"uid-{job}", "controller": True}
    annotations = {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "2"}
    named = {"labels": {names.POD_GROUP_LABEL: "g"}} if labelled else {"annotations": annotations}
    return pod(name, {NVIDIA: "1"}, metadata={"ownerReferences": [reference]}, **named)


def succeed_and_go(world: World, name: str) -> None:
    world.end(name)
    world.ended.apply("DELETED", world.api.pods.pop(name))


async def started(world: World, *pods: Raw) -> None:
    world.submit(*pods)
    await asyncio.sleep(1)
    assert len(world.api.bound()) == len(pods)


def with_cards() -> World:
    world = World()
    world.add_node(cards=4)
    return world


@pytest.mark.parametrize("labelled", [False, True], ids=["annotations", "PodGroup"])
async def test_the_last_runner_is_replaced(labelled: bool) -> None:
    world = with_cards()
    if labelled:
        world.groups.apply("ADDED", pod_group(minimum=2))
    async with world.running() as api:
        await started(world, worker("j-0", labelled=labelled), worker("j-1", labelled=labelled))
        succeed_and_go(world, "j-0")
        world.delete("j-1")
        # The Job's controller waits before it creates the pod again. Meanwhile, there is no member.
        await asyncio.sleep(30)
        world.submit(worker("j-1-again", labelled=labelled))
        await asyncio.sleep(1)
        assert "j-1-again" in api.bound()


async def test_a_new_leader_remembers_what_has_succeeded() -> None:
    before = with_cards()
    async with before.running():
        await started(before, worker("j-0"), worker("j-1"))
        succeed_and_go(before, "j-0")
        await asyncio.sleep(1)
        before.terminate("j-1")
        await asyncio.sleep(1)
        inherited = before.left()
    assert [(members.gang, members.count) for members in inherited.succeeded_members] == [("pod group ns/g", 1)]
    world = restarted(before, cards=4)
    world.inherited = inherited
    world.submit(worker("j-1-again"))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert "j-1-again" in api.bound()


async def test_jobs_of_one_gang_are_remembered_together() -> None:
    world = with_cards()
    async with world.running() as api:
        await started(world, worker("a-0", job="a"), worker("b-0", job="b"))
        world.delete("b-0")
        succeed_and_go(world, "a-0")
        world.submit(worker("b-0-again", job="b"))
        await asyncio.sleep(1)
        assert "b-0-again" in api.bound()


async def test_a_job_that_is_created_again_starts_all_or_none() -> None:
    world = with_cards()
    async with world.running() as api:
        await started(world, worker("j-0"), worker("j-1"))
        succeed_and_go(world, "j-0")
        succeed_and_go(world, "j-1")
        world.submit(worker("again-0", job="again"))
        await asyncio.sleep(5)
        assert "again-0" not in api.bound()
        assert api.messages("again-0")[-1].endswith(WAITS)
        world.submit(worker("again-1", job="again"))
        await asyncio.sleep(1)
        assert {"again-0", "again-1"} <= api.bound().keys()


async def test_a_new_leader_does_not_count_an_earlier_job_for_a_new_one() -> None:
    before = with_cards()
    async with before.running():
        await started(before, worker("j-0"), worker("j-1"))
        succeed_and_go(before, "j-0")
        succeed_and_go(before, "j-1")
        await asyncio.sleep(1)
        inherited = before.left()
    world = restarted(before, cards=4)
    world.inherited = inherited
    world.submit(worker("again-0", job="again"))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.messages("again-0")[-1].endswith(WAITS)


@pytest.mark.parametrize(
    "owner", [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}, {"apiVersion": "apps/v1", "kind": "StatefulSet"}]
)
async def test_of_controllers_that_create_a_succeeded_pod_again_nothing_is_remembered(owner: Raw) -> None:
    world = with_cards()
    async with world.running() as api:
        await started(world, worker("p-0", owner=owner), worker("p-1", owner=owner))
        succeed_and_go(world, "p-0")
        world.delete("p-1")
        world.submit(worker("p-1-again", owner=owner))
        await asyncio.sleep(5)
        assert api.messages("p-1-again")[-1].endswith(WAITS), "its controller creates both again"
        world.submit(worker("p-0-again", owner=owner))
        await asyncio.sleep(1)
        assert {"p-0-again", "p-1-again"} <= api.bound().keys()


async def test_a_failed_member_does_not_count() -> None:
    world = with_cards()
    async with world.running() as api:
        await started(world, worker("j-0"), worker("j-1"))
        world.end("j-0", "Failed")
        world.ended.apply("DELETED", world.api.pods.pop("j-0"))
        world.delete("j-1")
        world.submit(worker("j-1-again"))
        await asyncio.sleep(5)
        assert api.messages("j-1-again")[-1].endswith(WAITS)
