"""Preemption next to another scheduler that binds the replacements of victims: lost places, and an end of evictions."""

import asyncio
import copy
import itertools
from typing import Any

import pytest

from berth_api import names
from berth_client.errors import Unreachable
from berth_operator.controllers.lifecycle import controller
from berth_operator.state.cache.rejected_pods import KEPT
from tests.component.world import EPOCH, NOTHING, World, now, refusal
from tests.objects.builders import Raw, node, pod, pod_group

pytestmark = pytest.mark.looptime

OTHER = "default-scheduler"
GRACE = 2.0
"""Seconds that a victim takes to end."""
TAINT = {"key": "status-taint.cluster-autoscaler.kubernetes.io/berth-preempting", "effect": "NoSchedule"}
TAKEN = "freed capacity was taken twice by pods of default-scheduler; no pods are preempted on node before "


def owned(uid: str) -> Raw:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": uid, "uid": uid, "controller": True}
    return {"ownerReferences": [owner]}


class Contested(World):
    """One core, held by a Deployment of another scheduler that binds a replacement as soon as a victim has left.

    Pods of Berth run at once when they are bound, unless kubelet `rejects` them with a message.
    """

    def __init__(self, *, nodes: int = 1, sees_taints: bool = True, **fields: Any) -> None:
        super().__init__(schedulers=["berth-scheduler"], wall=lambda: EPOCH + now(), **fields)
        self.grace, self.sees_taints, self.rejects = GRACE, sees_taints, ""
        self.recreates = True
        """Whether controllers create others for rejected pods."""
        self.tainted: set[str] = set()
        self.untainted_seen_after = 0.0
        """Seconds after which the watch shows that a taint was removed."""
        self.numbers = itertools.count()
        self.waiting: list[str] = []
        self.api.on_tainted.append(self.taint)
        for name in ["node", *(f"node-{number}" for number in range(1, nodes))]:
            self.cluster.node_cache.put_node(node(name, allocatable={"cpu": "1"}))
            self.replace(name)

    def taint(self, name: str, is_placed: bool) -> None:
        (self.tainted.add if is_placed else self.tainted.discard)(name)
        if is_placed or not self.untainted_seen_after:
            self.show(name)
        else:
            asyncio.get_running_loop().call_later(self.untainted_seen_after, self.show, name)

    def show(self, name: str) -> None:
        taints = [TAINT] if name in self.tainted else []
        self.cluster.node_cache.put_node(node(name, allocatable={"cpu": "1"}, taints=taints))

    def replace(self, on: str) -> None:
        low = pod(f"low-{next(self.numbers)}", {"cpu": "1"}, on=on, schedulerName=OTHER, metadata=owned("low"))
        self.api.pods[low["metadata"]["name"]] = low
        self.pods.apply("ADDED", copy.deepcopy(low))

    def _leave(self, name: str) -> None:
        on = self.api.pods[name]["spec"]["nodeName"]
        super()._leave(name)
        if name.startswith("low") and not (self.sees_taints and on in self.tainted):
            self.replace(on)

    def seen_bound(self, raw: Raw) -> None:
        super().seen_bound(raw)
        name = raw["metadata"]["name"]
        asyncio.get_running_loop().call_later(0.5, self.reject if self.rejects else self.run, name)

    def run(self, name: str) -> None:
        self.api.pods[name]["status"] = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}
        self.change(self.api.pods[name])

    def reject(self, name: str) -> None:
        """Let kubelet reject a pod; its controller creates another one, and the place is taken."""
        raw = self.api.pods[name]
        raw["status"]["message"] = self.rejects
        self.end(name, "Failed")
        if self.recreates:
            self.replace(raw["spec"]["nodeName"])
            self.submit(high(f"high-{next(self.numbers)}"))

    def evicted(self) -> list[float]:
        return [at for at, _ in self.api.deletes]


def high(name: str = "high", *, uid: str = "high", **fields: Any) -> Raw:
    return pod(name, {"cpu": "1"}, priority=1000, metadata=owned(uid), **fields)


# --- the place goes to the preemptor ------------------------------------------------------------------------------


async def test_the_taint_keeps_the_place_and_is_removed_after_the_bind() -> None:
    world = Contested()
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(GRACE + 5)
        assert api.bound()["high"] == "node"
        assert len(api.deletes) == 1
        (placed_at, *placed), (removed_at, *removed) = api.taints
        assert (placed, removed) == (["node", True], ["node", False])
        assert placed_at < world.evicted()[0]
        # kube-scheduler sees the pod on its node before the taint goes.
        assert GRACE + 1 <= removed_at <= GRACE + 3
        await asyncio.sleep(90)
    assert len(api.taints) == 2
    assert len(api.deletes) == 1


async def test_a_taint_that_was_removed_is_placed_again_before_the_watch_shows_that_it_is_gone() -> None:
    world = Contested()
    world.untainted_seen_after = 4.0
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(GRACE + 3)
        assert (api.bound()["high"], world.tainted) == ("node", set())
        world.delete("high")
        world.replace("node")
        world.submit(high("high-1"))
        await asyncio.sleep(GRACE + 1)
        assert api.bound()["high-1"] == "node"
        await asyncio.sleep(GRACE + 10)
    assert [is_placed for _, _, is_placed in api.taints] == [True, False, True, False]
    assert len(api.deletes) == 2


@pytest.mark.parametrize(
    ("scheduler", "owner"),
    [
        pytest.param("berth-scheduler", "low", id="our nominations keep the place from our own pods"),
        pytest.param(OTHER, "", id="no controller creates the pod again"),
    ],
)
async def test_preemption_among_pods_that_do_not_take_the_place_writes_no_node(scheduler: str, owner: str) -> None:
    world = Contested(nodes=0)
    world.delete("low-0")
    fields = {"metadata": owned(owner)} if owner else {}
    world.api.pods["victim"] = pod("victim", {"cpu": "1"}, on="node", schedulerName=scheduler, **fields)
    world.change(world.api.pods["victim"])
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(GRACE + 1)
    assert api.bound() == {"high": "node"}
    assert api.taints == []


async def test_a_node_that_cannot_be_tainted_loses_its_pods_all_the_same() -> None:
    world = Contested(sees_taints=False)
    world.api.always["taint node"] = refusal(403, "denied by the policy")
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(40)
    assert api.taints == []
    assert len(api.deletes) == 2


async def test_the_taint_goes_with_the_preemptor_and_after_the_last_victim() -> None:
    world = Contested(nodes=2)
    world.submit(high(), high("other", uid="other"))
    async with world.running() as api:
        await asyncio.sleep(0.5)
        assert world.tainted == {"node", "node-1"}
        world.delete("high")
        api.always["bind other"] = Unreachable("no answer")
        await asyncio.sleep(5)
        assert len(world.tainted) == 1
        await asyncio.sleep(54)
        assert len(world.tainted) == 1
        await asyncio.sleep(7)
        assert world.tainted == set()
    assert not [each for each in api.bound() if not each.startswith("low")]


async def test_the_next_leader_removes_what_the_last_one_left_and_keeps_what_is_needed() -> None:
    world = Contested(nodes=2)
    for name in ("node", "node-1"):
        world.taint(name, is_placed=True)
    leaving = world.api.pods["low-1"]
    world.submit(high(status={"nominatedNodeName": "node-1"}))
    async with world.running() as api:
        world.terminate("low-1")
        assert leaving["metadata"]["deletionTimestamp"]
        await asyncio.sleep(GRACE - 0.5)
        assert world.tainted == {"node-1"}
        await asyncio.sleep(5)
    assert api.bound()["high"] == "node-1"
    assert world.tainted == set()
    assert api.deletes == []


async def test_a_taint_that_is_needed_again_while_others_are_removed_stays_or_is_placed_again() -> None:
    world = Contested(nodes=2)
    for name in ("node", "node-1"):
        world.taint(name, is_placed=True)
    async with world.running() as api:
        await asyncio.sleep(0.9)
        api.latency = 0.3
        await asyncio.sleep(0.2)
        world.submit(high("high-a"), high("high-b", uid="other"))
        await asyncio.sleep(GRACE + 5)
    assert sorted(api.bound()[name] for name in ("high-a", "high-b")) == ["node", "node-1"]
    assert len(api.deletes) == 2


async def test_for_a_gang_both_hold_too() -> None:
    world = Contested(nodes=2, sees_taints=False)
    world.groups.apply("ADDED", pod_group(minimum=2))
    for name in ("m0", "m1"):
        world.submit(pod(name, {"cpu": "1"}, priority=1000, labels={names.POD_GROUP_LABEL: "g"}))
    async with world.running() as api:
        await asyncio.sleep(50)
        assert len(api.deletes) == 4, "two sets of two"
        assert "freed capacity was taken twice by pods of default-scheduler" in api.messages("m0")[-1]
        world.sees_taints = True
        await asyncio.sleep(60)
    assert {api.bound()[name] for name in ("m0", "m1")} == {"node", "node-1"}
    assert world.tainted == set()


# --- an end -------------------------------------------------------------------------------------------------------


async def test_two_sets_of_victims_and_then_a_back_off_that_doubles() -> None:
    world = Contested(sees_taints=False)
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(45)
        assert len(api.deletes) == 2
        assert TAKEN in api.messages("high")[-1]
        await asyncio.sleep(400)
    pauses = [later - earlier for earlier, later in itertools.pairwise(world.evicted())]
    assert [round(each / 60) for each in pauses] == [0, 1, 2, 4]
    assert "freed capacity was taken 5 times by pods of default-scheduler" in api.messages("high")[-1]


async def test_a_pod_that_is_created_again_does_not_start_from_zero() -> None:
    world = Contested(sees_taints=False)
    world.submit(high())
    async with world.running() as api:
        for number in range(20):
            await asyncio.sleep(GRACE)
            world.delete(f"high-{number}" if number else "high")
            world.submit(high(f"high-{number + 1}"))
        assert len(api.deletes) == 2
        world.submit(high("stranger", uid="stranger"))
        await asyncio.sleep(10)
    assert len(api.deletes) == 4, "another controller has its own count"
    assert api.messages("stranger")[-1] != api.messages("high-20")[-1]


@pytest.mark.parametrize(
    ("why", "evicted"), [("Pod was rejected: Node didn't have enough resource: cpu", (3, 4)), ("OOM", (2, 3))]
)
async def test_pods_that_fail_after_the_bind_bound_evictions_as_well(why: str, evicted: tuple[int, int]) -> None:
    world = Contested()
    world.rejects = why
    world.submit(high())
    async with world.running() as api:
        pauses = asyncio.create_task(controller.run(world.cluster))
        await asyncio.sleep(50)
        assert len(api.deletes) == evicted[0]
        await asyncio.sleep(100)
        # A rejection by kubelet is no lost place.
        assert bool(world.left().lost_places) == (why == "OOM")
        pauses.cancel()
    assert len(api.deletes) == evicted[1]


async def test_pods_that_are_deleted_after_the_bind_do_not_count() -> None:
    world = Contested()
    world.submit(high())
    async with world.running() as api:
        for number in range(3):
            await asyncio.sleep(GRACE + 0.4)
            name = f"high-{number}" if number else "high"
            assert api.bound()[name] == "node"
            world.delete(name)
            world.replace("node")
            world.submit(high(f"high-{number + 1}"))
        await asyncio.sleep(GRACE + 1)
    assert len(api.deletes) == 4


async def test_a_pod_that_runs_clears_the_count() -> None:
    world = Contested(sees_taints=False)
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(GRACE + 1)
        assert len(api.deletes) == 2, "the first place is lost"
        world.sees_taints = True
        await asyncio.sleep(10)
        assert api.bound()["high"] == "node"
        world.sees_taints = False
        world.delete("high")
        world.replace("node")
        world.submit(high("high-1"))
        await asyncio.sleep(40)
    assert len(api.deletes) == 4


async def test_a_pod_that_runs_on_a_free_node_clears_the_count_too() -> None:
    world = Contested(sees_taints=False)
    world.submit(high())
    async with world.running():
        await asyncio.sleep(20)
        assert {lost.preemptor for lost in world.left().lost_places or ()} == {"high/ns/ReplicaSet/high"}
        world.delete(next(name for name, pod_ in world.api.pods.items() if pod_["spec"].get("nodeName")))
        await asyncio.sleep(5)
        assert world.api.bound()["high"] == "node"
    assert world.left().lost_places == []


async def test_over_many_nodes_a_preemptor_backs_off_as_a_whole() -> None:
    world = Contested(nodes=20, sees_taints=False)
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(50)
        assert len(api.deletes) == 4
        assert "preemption: not eligible due to the back-off of its preemption." in api.messages("high")[-1]
        await asyncio.sleep(120)
    assert len(api.deletes) == 5


async def test_the_next_leader_knows_what_the_last_one_has_lost() -> None:
    first = Contested(sees_taints=False)
    first.submit(high())
    async with first.running():
        await asyncio.sleep(20)
    second = Contested(sees_taints=False)
    second.inherited = first.left()
    second.submit(high("high-1"))
    async with second.running() as api:
        await asyncio.sleep(30)
        assert api.deletes == []
        assert TAKEN in api.messages("high-1")[-1]
        await asyncio.sleep(60)
    assert len(api.deletes) == 1


@pytest.mark.parametrize("gang", [{}, {names.POD_GROUP: "gang", names.POD_GROUP_MIN_MEMBER: "1"}], ids=["pod", "gang"])
async def test_a_place_that_was_lost_while_there_was_no_leader_counts(gang: dict[str, str]) -> None:
    """Each leader evicts a pod, and ends before the place is taken."""
    inherited, evicted = NOTHING, 0
    for number in range(5):
        world = Contested(sees_taints=False)
        world.inherited = inherited
        world.submit(high(annotations=gang, status={"nominatedNodeName": "node"} if number else {}))
        async with world.running() as api:
            await asyncio.sleep(1)
        inherited, evicted = world.left(), evicted + len(api.deletes)
    assert evicted == 2


async def test_the_places_of_a_controllers_pods_count_once_for_a_new_leader() -> None:
    """The last one had nominated nodes for all of them, and had evicted no pods yet."""
    world = Contested(nodes=8)
    for number, name in enumerate(world.cluster.fleet.rows):
        world.submit(high(f"high-{number}", status={"nominatedNodeName": name}))
    async with world.running() as api:
        await asyncio.sleep(10)
        assert len(api.deletes) == len(api.bound()) == 8


@pytest.mark.parametrize("gang", [{}, {names.POD_GROUP: "gang", names.POD_GROUP_MIN_MEMBER: "1"}], ids=["pod", "gang"])
async def test_rejections_that_are_over_do_not_let_a_controller_evict_without_end(gang: dict[str, str]) -> None:
    world = Contested(sees_taints=False)
    world.rejects, world.recreates = "Pod was rejected: SysctlForbidden", False
    async with world.running() as api:
        pauses = asyncio.create_task(controller.run(world.cluster))
        for number in range(KEPT + 1):
            world.submit(pod(f"rejected-{number}", metadata=owned("high")))
            await asyncio.sleep(100)
        assert not any(world.cluster.fleet.rejecting.values())
        world.rejects = ""
        world.submit(high(annotations=gang))
        await asyncio.sleep(600)
        assert len(api.deletes) == 5
        pauses.cancel()


async def test_a_leader_that_cannot_know_begins_with_a_back_off() -> None:
    world = Contested()
    world.inherited = NOTHING.model_copy(update={"lost_places": None})
    world.submit(high())
    async with world.running() as api:
        await asyncio.sleep(55)
        assert api.deletes == []
        assert "it is not known who took freed capacity before" in api.messages("high")[-1]
        await asyncio.sleep(15)
    assert api.bound()["high"] == "node"
