"""Pods that kubelet rejects at admission again and again, with controllers that create others, under virtual time."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from berth_operator.binding.review import CALM
from berth_operator.controllers.lifecycle import controller
from berth_operator.state.cache.pending_pods import AT_ONCE
from berth_operator.state.cache.rejected_pods import FIRST, IN_VAIN, KEPT, LONGEST, TRIAL
from berth_operator.state.objects import groups
from tests.component.world import EPOCH, LATENCY, World, now, refusal
from tests.objects.builders import GPU, Raw, node, owner, pod

pytestmark = pytest.mark.looptime

MANY = 300
"""Rejected pods after which no more are created."""
PERIOD = controller.PERIOD + CALM + 0.1
"""Seconds after the end of a pause within which a pod is tried."""
GANG = {"gang.scheduling.koordinator.sh/name": "g", "gang.scheduling.koordinator.sh/min-available": "2"}
REASON = "OutOfnvidia.com/gpu"
WHY = "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, requested: 1, used: 1, capacity: 1"


class Kubelets:
    """The kubelets of all nodes, and the ReplicaSets that create a pod for each one that has failed."""

    def __init__(self, world: World, rejects: Callable[[Raw], bool]) -> None:
        self.world, self.rejects = world, rejects
        self.rejected: list[tuple[float, str]] = []
        """(when, pod)."""
        self.answers = True
        """Whether they see pods at all."""
        self.recreates = True
        self.kind = "ReplicaSet"
        self._numbers = itertools.count()
        world.api.on_bound.append(self._seen)

    def _seen(self, bound: Raw) -> None:
        if self.answers:
            asyncio.get_running_loop().call_later(3 * LATENCY, self._admit, bound["metadata"]["name"])

    def _admit(self, name: str) -> None:
        raw = self.world.api.pods[name]
        # A kubelet sets the start time of the pods that it rejects as well.
        raw["status"]["startTime"] = "2026-01-01T00:00:00Z"
        if self.rejects(raw):
            self.reject(raw)
        else:
            raw["status"]["phase"] = "Running"
            self.world.pods.apply("MODIFIED", copy.deepcopy(raw))

    def reject(self, raw: Raw) -> None:
        name = raw["metadata"]["name"]
        self.rejected.append((now(), name))
        self.world.api.pods.pop(name, None)
        self.world.pods.apply("DELETED", copy.deepcopy(raw))
        ended = copy.deepcopy(raw)
        ended["metadata"]["resourceVersion"] = "1"
        ended["status"] |= {"phase": "Failed", "reason": REASON, "message": WHY}
        self.world.ended.apply("ADDED", groups.transform_ended(ended))
        if self.recreates and len(self.rejected) < MANY:
            self.create(raw["metadata"]["ownerReferences"][0]["name"], priority=raw["spec"].get("priority"))

    def create(self, replica_set: str, amount: str = "100", **fields: Any) -> None:
        """Create one more pod of a ReplicaSet."""
        self.world.submit(of(replica_set, f"{replica_set}-{next(self._numbers)}", amount, kind=self.kind, **fields))

    def times(self) -> list[float]:
        return [at for at, _ in self.rejected]


def of(replica_set: str, name: str, amount: str = "100", kind: str = "ReplicaSet", **fields: Any) -> Raw:
    return pod(name, {GPU: amount}, metadata={"ownerReferences": [owner(replica_set, kind)]}, **fields)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    async with world.running():
        task = asyncio.create_task(controller.run(world.cluster))
        yield
        task.cancel()


def world_of(*nodes: str, cards: int = 1, **fields: Any) -> World:
    world = World(wall=lambda: EPOCH + now(), **fields)
    for name in nodes:
        world.add_node(name, cards)
    return world


def on(*nodes: str, controllers: Collection[str] = ("web",)) -> Callable[[Raw], bool]:
    """Return that these nodes reject the pods of some controllers."""
    return lambda raw: (
        raw["spec"]["nodeName"] in nodes
        and any(reference["name"] in controllers for reference in raw["metadata"].get("ownerReferences") or ())
    )


@pytest.mark.parametrize("kind", ["ReplicaSet", "Workflow"])
async def test_a_controllers_pods_are_bound_ever_less_often_to_a_node_that_rejects_them(kind: str) -> None:
    world = world_of("node")
    kubelets = Kubelets(world, on("node"))
    kubelets.kind = kind
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(60)
        assert len(kubelets.rejected) <= 8
        await asyncio.sleep(3600)
    pauses = [later - earlier for earlier, later in itertools.pairwise(kubelets.times())]
    expected = [min(LONGEST, FIRST * 2**number) for number in range(len(pauses))]
    assert all(0 <= pause - least < PERIOD + 1 for pause, least in zip(pauses, expected, strict=True))
    assert len(pauses) < 22
    # A rejected pod has not lost the place that evictions freed for it.
    assert world.left().lost_places == []


async def test_the_waiting_pod_names_the_reason_of_kubelet() -> None:
    world = world_of("node")
    kubelets = Kubelets(world, on("node"))
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(20)
    [message] = world.api.messages("web-3")
    assert message.startswith(
        f"0/1 nodes are available: 1 node(s) rejected pods of this controller ({REASON}): the next one is bound there "
        "after a pause. "
    )
    [(_, _, condition)] = [patch for patch in world.api.patches if patch[1] == "web-3"]
    assert condition["reason"] == "Unschedulable"


async def test_pods_of_other_controllers_are_bound_there_and_the_controllers_pods_elsewhere() -> None:
    world = world_of("bad", cards=8)
    kubelets = Kubelets(world, on("bad"))
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(20)
        rejected = len(kubelets.rejected)
        for _ in range(3):
            kubelets.create("other")
        await asyncio.sleep(1)
        assert list(world.api.bound().values()) == ["bad"] * 3
        # Another node takes the waiting pod at once.
        world.add_node("good", 8)
        await asyncio.sleep(0.5)
        assert {node for name, node in world.api.bound().items() if name.startswith("web")} == {"good"}
        for _ in range(4):
            kubelets.create("web")
        await asyncio.sleep(1)
        assert len(kubelets.rejected) == rejected
        assert [node for name, node in world.api.bound().items() if name.startswith("web")] == ["good"] * 5


async def test_one_pod_is_tried_after_a_pause_and_the_others_follow_when_kubelet_admits_it() -> None:
    world = world_of("node", cards=8)
    kubelets = Kubelets(world, on("node"))
    async with running(world):
        for _ in range(8):
            kubelets.create("web")
        await asyncio.sleep(FIRST - 0.1)
        # All of them were bound before the first rejection.
        assert len(kubelets.rejected) == 8
        await asyncio.sleep(PERIOD + 0.5)
        assert len(kubelets.rejected) == 9
        kubelets.rejects = on()
        await asyncio.sleep(2 * FIRST + 2 * PERIOD)
        assert len(world.api.bound()) == 8
    assert len(kubelets.rejected) == 9


async def test_a_controller_with_very_many_waiting_pods_runs_through_few_pauses() -> None:
    """They are named a part at a time, and those that are not named yet know of no pause."""
    world = world_of("node")
    kubelets = Kubelets(world, on("node"))
    kubelets.recreates = False
    async with running(world):
        for _ in range(3 * AT_ONCE):
            kubelets.create("web")
        await asyncio.sleep(3)
        assert len(kubelets.rejected) <= 4


async def test_a_pod_that_kubelet_does_not_answer_for_is_followed_by_another_one() -> None:
    world = world_of("node", cards=8)
    kubelets = Kubelets(world, on("node"))
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(FIRST / 2)
        kubelets.answers = False
        kubelets.create("web")
        await asyncio.sleep(TRIAL)
        assert len(world.api.bound()) == 1
        await asyncio.sleep(FIRST + 2 * PERIOD)
        assert len(world.api.bound()) == 2


async def test_a_pod_whose_binding_is_refused_is_followed_by_another_one() -> None:
    world = world_of("node", cards=8)
    kubelets = Kubelets(world, on("node"))
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(FIRST / 2)
        world.api.always["bind web-1"] = refusal(422)
        kubelets.create("web")
        await asyncio.sleep(FIRST + 2 * PERIOD + 1)
        assert [name for _, name, _ in world.api.binds][1:3] == ["web-1", "web-2"]


async def test_pods_that_berth_has_not_bound_do_not_count() -> None:
    world = world_of("node", cards=8)
    kubelets = Kubelets(world, on())
    kubelets.recreates = False
    async with running(world):
        for number in range(20):
            kubelets.reject(of("web", f"own-{number}", on="node"))
        kubelets.create("web")
        await asyncio.sleep(0.5)
        assert len(world.api.bound()) == 1


async def test_rejections_before_an_admission_do_not_count() -> None:
    world = world_of("node")
    kubelets = Kubelets(world, on("node"))
    async with running(world):
        for number in range(1, 4):
            kubelets.rejects = lambda _raw, most=number: len(kubelets.rejected) < most  # type: ignore[misc]
            kubelets.create("web")
            await asyncio.sleep(FIRST + PERIOD + 0.5)
            [name] = world.api.bound()
            world.end(name)
            del world.api.pods[name]
    assert len(kubelets.rejected) == 3


async def test_a_gang_waits_while_its_node_rejects_members_of_its_controller() -> None:
    world = world_of("node", cards=2)
    kubelets = Kubelets(world, on("node"))
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(20)
        [waiting] = world.api.pods
        world.delete(waiting)
        world.submit(*(of("web", name, annotations=GANG) for name in ("a", "b")))
        await asyncio.sleep(2)
        assert world.api.bound() == {}
        assert "rejected pods of this controller" in world.api.messages("a")[-1]
        kubelets.rejects = on()
        await asyncio.sleep(2 * (kubelets.times()[-1] - kubelets.times()[-2]))
        assert set(world.api.bound()) == {"a", "b"}


async def test_a_gang_does_not_wait_for_a_pause_that_ended_while_its_members_were_charged() -> None:
    world = world_of("bad", "good", cards=2, gang_timeout=5.0)
    world.cluster.node_cache.put_node(node("good", unschedulable=True))
    kubelets = Kubelets(world, on("bad"))
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(4)
        kubelets.rejects = on()
        [waiting] = world.api.pods
        world.delete(waiting)
        world.api.always = {"bind a": refusal(422), "bind b": refusal(422)}
        world.cluster.node_cache.put_node(node("good"))
        world.submit(*(of("web", name, annotations=GANG) for name in ("a", "b")))
        await asyncio.sleep(0.1)
        assert {charge.node for charge in world.fleet.charges.values()} == {"good"}
        world.cluster.node_cache.put_node(node("good", unschedulable=True))
        await asyncio.sleep(5.5)
        assert world.fleet.rejecting == {"uid-web/ns/ReplicaSet/web": {}}
        world.api.always.clear()
        await asyncio.sleep(10)
        assert world.api.bound() == {"a": "bad", "b": "bad"}


async def nominated_during_a_pause(world: World, kubelets: Kubelets, *, before: int = 2, gang: bool = False) -> None:
    """Evict a pod for `high`, and let the kubelet of its nominated node reject another pod of the controller.

    It has rejected some `before`.
    """
    world.grace = 2
    kubelets.recreates = False
    for number in range(before):
        kubelets.create("web")
        await asyncio.sleep(FIRST * 2**number + PERIOD)
    assert len(kubelets.rejected) == before
    world.submit(of("low", "low", priority=0))
    await asyncio.sleep(500)
    annotations = {**GANG, "gang.scheduling.koordinator.sh/min-available": "1"} if gang else {}
    world.submit(of("web", "high", priority=9, annotations=annotations))
    await asyncio.sleep(1)
    assert [name for _, name in world.api.deletes] == ["low"]
    world.submit(pod("small", metadata={"ownerReferences": [owner("web")]}))
    await asyncio.sleep(2.5)
    assert len(kubelets.rejected) == before + 1
    assert "low" not in world.api.pods


@pytest.mark.parametrize("gang", [False, True])
async def test_a_place_that_evictions_free_is_kept_during_a_short_pause_and_not_lost(*, gang: bool) -> None:
    world = world_of("node")
    kubelets = Kubelets(world, lambda raw: raw["metadata"]["name"] not in ("low", "high"))
    async with running(world):
        await nominated_during_a_pause(world, kubelets, gang=gang)
        assert world.fleet.nominees.keys() == {"uid-high"}
        assert "pause after rejections by the nominated node's kubelet" in world.api.messages("high")[-1]
        await asyncio.sleep(10)
        assert world.api.bound() == {"high": "node"}
        assert world.left().lost_places == []
    assert [name for _, name in world.api.deletes] == ["low"]


@pytest.mark.parametrize("gang", [False, True])
async def test_a_place_that_evictions_free_is_not_kept_during_long_pauses_and_not_lost_either(*, gang: bool) -> None:
    world = world_of("node")
    kubelets = Kubelets(world, lambda raw: raw["metadata"]["name"] not in ("low", "high", "other"))
    async with running(world):
        await nominated_during_a_pause(world, kubelets, before=KEPT, gang=gang)
        assert not world.fleet.nominees
        world.submit(of("other", "other", priority=9))
        await asyncio.sleep(1)
        assert world.api.bound() == {"other": "node"}
        assert world.left().lost_places == []


@pytest.mark.parametrize("gang", [False, True])
async def test_a_cordoned_node_is_not_kept_during_a_pause(*, gang: bool) -> None:
    world = world_of("node")
    kubelets = Kubelets(world, lambda raw: raw["metadata"]["name"] not in ("low", "high"))
    async with running(world):
        await nominated_during_a_pause(world, kubelets, gang=gang)
        world.cluster.node_cache.put_node(node("node", unschedulable=True))
        await asyncio.sleep(1)
        assert not world.fleet.nominees
        world.add_node("other")
        await asyncio.sleep(1)
        assert world.api.bound() == {"high": "other"}


async def test_pods_are_evicted_ever_less_often_for_a_controller_whose_pods_kubelets_reject() -> None:
    nodes = [f"node-{number:02}" for number in range(30)]
    world = world_of(*nodes)
    kubelets = Kubelets(world, on(*nodes))
    async with running(world):
        for name in nodes:
            world.submit(of("low", f"low-{name}", priority=0))
        await asyncio.sleep(1)
        assert len(world.api.bound()) == 30
        kubelets.create("web", priority=9)
        await asyncio.sleep(60)
        assert len(world.api.deletes) == IN_VAIN + 1
        await asyncio.sleep(3600)
        assert "no pods are preempted for it for a while" in world.api.messages(f"web-{len(kubelets.rejected)}")[-1]
    assert len(world.api.deletes) <= IN_VAIN + 7
    assert world.left().lost_places == []


async def test_a_node_that_rejects_pods_keeps_no_pods_from_evicting_others_elsewhere() -> None:
    world = world_of("bad", "good")
    kubelets = Kubelets(world, on("bad"))
    async with running(world):
        world.cluster.node_cache.put_node(node("bad", unschedulable=True))
        world.submit(of("low", "low", priority=0))
        await asyncio.sleep(1)
        assert world.api.bound() == {"low": "good"}
        world.cluster.node_cache.put_node(node("bad"))
        kubelets.create("web", priority=9)
        await asyncio.sleep(10)
        assert list(world.api.bound().values()) == ["good"]
        assert [name for _, name in world.api.deletes] == ["low"]


async def test_a_node_of_the_same_name_is_another_node() -> None:
    world = world_of("node", "other")
    kubelets = Kubelets(world, on("node", "other"))
    async with running(world):
        kubelets.create("web")
        await asyncio.sleep(60)
        kubelets.rejects = on()
        world.cluster.node_cache.remove_node("node")
        world.cluster.node_cache.remove_device("node")
        await asyncio.sleep(PERIOD + 0.5)
        world.add_node("node")
        await asyncio.sleep(0.5)
        assert list(world.api.bound().values()) == ["node"]
