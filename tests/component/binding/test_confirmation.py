"""Bound pods that no watch has shown."""

import asyncio

import pytest

from berth_client.errors import Unreachable
from berth_operator.binding.upkeep import confirmation
from tests.component.world import World
from tests.objects.builders import NVIDIA, pod

pytestmark = pytest.mark.looptime


async def unseen(world: World, *, seconds: float = 30) -> None:
    """Bind pod `a` without any watch event, and check it for a while."""
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    task = asyncio.create_task(confirmation.run(world.cluster, world.api))
    async with world.running():
        await asyncio.sleep(1)
        assert world.api.bound() == {"a": "node"}
        assert world.users() == 1
        await asyncio.sleep(seconds)
    task.cancel()


@pytest.mark.parametrize("change", ["deleted", "created again", "ended"])
async def test_one_that_came_and_went_is_released(change: str) -> None:
    world = World(watch=False)

    def change_pod() -> None:
        if change == "deleted":
            del world.api.pods["a"]
        elif change == "created again":
            world.api.pods["a"] = pod("a", {NVIDIA: "1"}, uid="another")
        else:
            world.api.pods["a"]["status"] = {"phase": "Succeeded"}

    world.api.on_bound.append(lambda _pod: asyncio.get_running_loop().call_later(2, change_pod))
    await unseen(world)
    assert world.users() == 0


async def test_one_that_is_there_stays_charged() -> None:
    world = World(watch=False)
    await unseen(world)
    assert world.users() == 1


async def test_a_pod_that_cannot_be_read_stays_charged() -> None:
    world = World(watch=False)
    world.api.always["get a"] = Unreachable("away")
    await unseen(world)
    assert world.users() == 1
