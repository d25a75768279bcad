"""Places that evictions freed and that Berth gave to pods of higher priority: they are not lost."""

import asyncio
from typing import Any

import pytest

from berth_operator.binding.evictions.progress import EvictionProgress
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.values.charge import Charge
from tests.component.evictions.test_lost_places import GRACE as LEAVES_AFTER
from tests.component.evictions.test_lost_places import Contested, owned
from tests.component.evictions.test_preemption import Crowded
from tests.component.gangs.test_gang_preemption import members as gang_members
from tests.component.world import EPOCH, now
from tests.objects.builders import Raw, node, pod, pod_group

pytestmark = pytest.mark.looptime

GRACE = 6.0
"""Seconds that a victim takes to end."""


class Shared(Crowded):
    """Nodes of one core for each of their pods of priority -10. All pods are Berth's, and run at once when bound."""

    def __init__(self, **cores: int) -> None:
        super().__init__(grace=GRACE, schedulers=["berth-scheduler"], wall=lambda: EPOCH + now())
        for name, count in cores.items():
            self.add(name, count)

    def add(self, name: str, cores: int) -> None:
        self.cluster.node_cache.put_node(node(name, allocatable={"cpu": str(cores)}))
        self.hold(
            *(
                pod(f"{name}-{core}", {"cpu": "1"}, on=name, priority=-10, metadata=owned("low"))
                for core in range(cores)
            )
        )

    def seen_bound(self, raw: Raw) -> None:
        super().seen_bound(raw)
        asyncio.get_running_loop().call_later(0.5, self.run, raw["metadata"]["name"])

    def run(self, name: str) -> None:
        if name in self.api.pods:
            self.api.pods[name]["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
            self.change(self.api.pods[name])

    def nominate(self, name: str) -> Charge:
        """Nominate the node `n` for a pending pod."""
        pending = self.cluster.pending[f"uid-{name}"]
        charge = Placement(pod=pending, node="n").charge
        self.cluster.nominator.nominate(pending, charge)
        return charge

    def bound_of(self, prefix: str) -> int:
        return sum(name.startswith(prefix) for name in self.api.bound())

    def lost(self) -> list[tuple[str, int]]:
        """Return (node, count) of all lost places."""
        return [(place.node, place.count) for place in self.left().lost_places or ()]


def middle(name: str, *, cores: int = 1, uid: str = "middle", **fields: Any) -> Raw:
    owner = {"metadata": owned(uid)} if uid else {}
    return pod(name, {"cpu": str(cores)}, priority=100, **owner, **fields)


def high(name: str, *, cores: int = 1, **fields: Any) -> Raw:
    return pod(name, {"cpu": str(cores)}, priority=1000, metadata=owned("high"), **fields)


async def test_pods_whose_place_is_given_away_evict_others_at_once() -> None:
    world = Shared(n=4)
    world.submit(middle("middle-0"), middle("middle-1"))
    async with world.running():
        await asyncio.sleep(1)
        assert len(world.deleted()) == 2
        world.submit(high("high-0"), high("high-1"))
        await asyncio.sleep(1)
        assert len(world.deleted()) == 4
        await asyncio.sleep(GRACE + 1)
        assert (world.bound_of("high"), world.bound_of("middle")) == (2, 2)
        assert world.lost() == []


async def test_one_pod_that_takes_the_places_of_eight_replicas_counts_for_none_of_them() -> None:
    world = Shared(n=8)
    world.submit(*(middle(f"middle-{number}") for number in range(8)))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert len(world.deleted()) == 8
        world.submit(high("high", cores=8))
        await asyncio.sleep(GRACE + 1)
        assert api.bound() == {"high": "n"}
        assert world.lost() == []
        world.add("other", 8)
        await asyncio.sleep(1)
        assert len(world.deleted()) == 16, "they evict pods of another node at once"
        await asyncio.sleep(GRACE + 1)
        assert world.bound_of("middle") == 8


async def test_a_place_that_is_given_away_without_a_nomination_does_not_count_either() -> None:
    world = Shared(n=2)
    world.submit(middle("middle", cores=2))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.delete("n-0")
        world.submit(high("high"))
        await asyncio.sleep(0.5)
        assert api.bound()["high"] == "n", "it needs no victims"
        await asyncio.sleep(GRACE)
        assert "middle" not in api.bound()
        assert world.lost() == []
        world.add("other", 2)
        await asyncio.sleep(0.5)
        assert len(world.deleted()) == 4
        await asyncio.sleep(GRACE + 1)
        assert api.bound()["middle"] == "other"


async def test_a_place_counts_as_lost_if_the_pod_that_took_it_is_not_bound_there() -> None:
    world = Shared(n=1)
    world.submit(middle("middle"))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(high("high"))
        await asyncio.sleep(2)
        assert ("high", "n") in api.nominations
        assert world.lost() == []
        world.delete("high")
        await asyncio.sleep(2)
        assert world.lost() == [("", 1)]
        await asyncio.sleep(GRACE)
        assert api.bound() == {"middle": "n"}


async def test_each_binding_explains_one_displacement() -> None:
    world = Shared(n=4)
    world.submit(middle("middle"))
    async with world.running() as api:
        for number in range(3):
            await asyncio.sleep(1)
            world.submit(high(f"high-{number}"))
        await asyncio.sleep(1)
        assert world.lost() == []
        world.delete("high-2")
        await asyncio.sleep(4)
        assert {"high-0", "high-1"} <= api.bound().keys()
        assert "middle" not in api.bound()
        assert world.lost() == [("", 1)], "three displacements, and two Bindings"


@pytest.mark.parametrize("first", [0, 1])
async def test_two_bindings_explain_two_displacements_in_any_order(first: int) -> None:
    """The pod of the first displacement was there before the second one, so it explains only the first one."""
    world = Shared(n=4)
    world.submit(middle("middle"), *(high(f"high-{number}") for number in range(2)))
    cluster, progress = world.cluster, EvictionProgress(world.cluster)
    for number in range(2):
        progress.began(cluster.pending["uid-middle"], [world.nominate("middle")], 1)
        world.nominate(f"high-{number}")
        progress.displaced("uid-middle", by=[f"uid-high-{number}"])
        cluster.nominator.withdraw(cluster.pending["uid-middle"])
    for number in (first, 1 - first):
        world.hold(pod(f"high-{number}", {"cpu": "1"}, on="n", priority=1000, metadata=owned("high")))
    progress.follow()
    assert not progress.has_lost(cluster.pending["uid-middle"])


async def test_pods_that_take_places_and_are_never_bound_do_not_let_a_pod_evict_without_end() -> None:
    world = Shared(**{f"n{number}": 1 for number in range(20)})
    world.grace = 10_000.0
    for name in list(world.fleet.rows):
        world.cluster.node_cache.put_node(node(name, allocatable={"cpu": "1"}, labels={"host": name}))
    world.submit(middle("middle"))
    async with world.running():
        await asyncio.sleep(1)
        for number in range(12):
            nominated = world.cluster.pending["uid-middle"].nominated_node
            world.submit(high(f"high-{number}", nodeSelector={"host": nominated or "none"}))
            await asyncio.sleep(1)
            world.delete(f"high-{number}")
            await asyncio.sleep(2)
        # Those that leave already are enough for the next pods.
        assert len(world.deleted()) == 2
        assert world.lost() == [("", 2)]


@pytest.mark.parametrize("was_there", [False, True], ids=["new", "was there"])
async def test_a_pod_that_chooses_a_place_again_is_what_takes_it(*, was_there: bool) -> None:
    """Its nomination ended in between, such as when its victim could not be deleted."""
    world = Shared(n=2)
    world.submit(middle("middle"), high("high"))
    cluster, progress = world.cluster, EvictionProgress(world.cluster)
    if was_there:
        world.nominate("high")
    progress.began(cluster.pending["uid-middle"], [world.nominate("middle")], 1)
    cluster.nominator.withdraw(cluster.pending["uid-high"])
    progress.displaced("uid-middle", by=["uid-high"])
    cluster.nominator.withdraw(cluster.pending["uid-middle"])
    world.nominate("high")
    progress.follow()
    assert not progress.has_lost(cluster.pending["uid-middle"])


async def test_a_gang_whose_place_is_given_away_loses_none() -> None:
    world = Shared(a=1, b=1)
    world.groups.apply("ADDED", pod_group(minimum=2))
    world.submit(*(cpu_member(raw) for raw in gang_members(2, priority=100)))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert sorted(world.deleted()) == ["a-0", "b-0"]
        world.submit(high("high"))
        await asyncio.sleep(GRACE + 2)
        assert "high" in api.bound()
        assert world.lost() == []
        world.add("c", 1)
        await asyncio.sleep(GRACE + 2)
        assert world.bound_of("m") == 2


async def test_a_gang_whose_place_is_given_away_without_a_nomination_loses_none() -> None:
    world = Shared(a=2)
    world.groups.apply("ADDED", pod_group(minimum=2))
    world.submit(*(cpu_member(raw) for raw in gang_members(2, priority=100)))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.delete("a-0")
        world.submit(high("high"))
        await asyncio.sleep(GRACE + 2)
        assert api.bound()["high"] == "a"
        assert world.bound_of("m") == 0
        assert world.lost() == []


def cpu_member(raw: Raw) -> Raw:
    raw["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    return raw


# --- what counts as before ------------------------------------------------------------------------------------------


class Wide(Contested):
    """A contested node with several cores and pods, whose taint the other scheduler does not see."""

    def __init__(self, *, cores: int, pods: int) -> None:
        super().__init__(sees_taints=False)
        self.cluster.node_cache.put_node(node("node", allocatable={"cpu": str(cores)}))
        for _ in range(pods - 1):
            self.replace("node")

    def show(self, name: str) -> None:
        """Leave the node as it is."""


async def test_what_another_scheduler_takes_counts_though_a_pod_of_higher_priority_came_too() -> None:
    world = Wide(cores=2, pods=1)
    world.submit(middle("middle"), high("high"))
    async with world.running() as api:
        await asyncio.sleep(30)
        assert api.bound()["high"] == "node"
        assert len(api.deletes) == 2
        assert "freed capacity was taken twice by pods of default-scheduler" in api.messages("middle")[-1]


async def test_what_another_scheduler_takes_counts_though_a_pod_of_higher_priority_waits_there_all_the_time() -> None:
    world = Wide(cores=4, pods=3)
    world.grace = 10_000.0
    world.submit(high("high", cores=2))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert ("high", "node") in api.nominations
        world.grace = LEAVES_AFTER
        world.submit(middle("middle"))
        await asyncio.sleep(30)
        assert len(api.deletes) == 3, "one for the high pod, and two whose places were lost"
        assert "freed capacity was taken twice by pods of default-scheduler" in api.messages("middle")[-1]


async def test_one_event_on_a_node_counts_once_for_a_controller() -> None:
    world = Wide(cores=4, pods=4)
    world.submit(*(middle(f"middle-{number}") for number in range(4)))
    async with world.running() as api:
        await asyncio.sleep(LEAVES_AFTER + 2)
        assert {(lost.node, lost.count) for lost in world.left().lost_places or ()} == {("node", 1), ("", 1)}
        await asyncio.sleep(30)
        assert {(lost.node, lost.count) for lost in world.left().lost_places or ()} == {("node", 2), ("", 2)}
        assert len(api.deletes) == 8
        message = api.messages("middle-0")[-1]
        assert "1 node(s) are in the back-off of the pod's preemption." in message
        assert "No preemption victims" not in message


# --- what nothing took ----------------------------------------------------------------------------------------------


async def test_a_bare_pod_that_is_made_again_takes_the_node_that_was_cordoned() -> None:
    world = Shared(n=1)
    world.submit(middle("bare", uid=""))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.cluster.node_cache.put_node(node("n", allocatable={"cpu": "1"}, unschedulable=True))
        await asyncio.sleep(2)
        world.cluster.node_cache.put_node(node("n", allocatable={"cpu": "1"}))
        await asyncio.sleep(GRACE)
        assert api.bound() == {"bare": "n"}
        for number in range(2):
            world.delete("bare")
            await asyncio.sleep(1)
            world.hold(pod(f"again-{number}", {"cpu": "1"}, on="n", priority=-10))
            world.submit(middle("bare", uid="", metadata={"uid": f"uid-bare-{number}"}))
            await asyncio.sleep(1)
            world.delete("bare")
            await asyncio.sleep(GRACE + 1)
            world.submit(middle("bare", uid="", metadata={"uid": f"uid-bare-{number}-again"}))
            await asyncio.sleep(1)
        assert not [place for place in world.left().lost_places or () if place.node]


async def test_what_was_lost_on_a_node_is_forgotten_with_the_node() -> None:
    world = Contested(nodes=2, sees_taints=False)
    world.submit(middle("middle"))
    async with world.running():
        await asyncio.sleep(20)
        nodes = {lost.node for lost in world.left().lost_places or () if lost.node}
        gone = min(nodes)
        world.cluster.node_cache.remove_node(gone)
        await asyncio.sleep(2)
        assert {lost.node for lost in world.left().lost_places or () if lost.node} == nodes - {gone}


async def test_what_was_lost_is_forgotten_with_the_namespace() -> None:
    world = Contested(sees_taints=False)
    world.submit(middle("middle"), middle("bare", uid=""))
    async with world.running():
        await asyncio.sleep(40)
        assert world.left().lost_places
        world.cluster.remove_namespace("other")
        assert world.left().lost_places
        world.delete("middle")
        world.delete("bare")
        world.cluster.remove_namespace("ns")
        await asyncio.sleep(2)
        assert world.left().lost_places == []
