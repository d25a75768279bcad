"""Pods on cards that failed permanently, under virtual time."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_client.errors import ApiError, Unreachable
from berth_operator.controllers.lifecycle.evictor import AGAIN, PATIENCE, PERIOD, Evictor
from berth_operator.core.fleet.claims.store import OwnPools
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects.cards import MAX_CARDS
from berth_operator.state.watches.claims import ResourceClaims
from tests.component.world import now, refusal
from tests.objects.builders import GPU, Raw, condition, device, entry, every_pod, half, held, lease, node, pod
from tests.objects.resource_claims import NVIDIA_DRIVER, ClaimsInTurns, allocated, gpu, resource_slice

pytestmark = pytest.mark.looptime

BUDGET = refusal(429, "Cannot evict pod as it would violate the pod's disruption budget.")


class Pods:
    """Evictions in memory; those that are refused are named by pod."""

    def __init__(self) -> None:
        self.evictions: list[tuple[float, str]] = []
        self.refuses: dict[str, Exception] = {}
        self.uids: dict[str, str] = {}
        """The UIDs that pods have now, if they were replaced."""
        self.on_evicted: Callable[[str], object] = lambda _name: None

    async def get_pod(self, _namespace: str, name: str) -> Raw:
        return pod(name, uid=self.uids.get(name, f"uid-{name}"))

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        assert (namespace, uid) == ("ns", f"uid-{name}")
        self.evictions.append((now(), name))
        if name in self.refuses:
            raise self.refuses[name]
        self.on_evicted(name)


class World:
    """A cluster with two cards on a node, and an evictor."""

    def __init__(self, *held: tuple[str, int], per_minute: float = 60, beats: int = 10**6, heard: bool = True) -> None:
        self.cluster, self.pods = Cluster(grace=0, clock=now), Pods()
        self.reported: list[tuple[str, str]] = []
        self.leads = True
        self.sink = every_pod(self.cluster)
        self.cluster.node_cache.put_node(node())
        self.cluster.node_cache.put_lease(lease(duration=beats))
        if heard:
            self.cluster.node_cache.put_lease(lease(renewed="2", duration=beats))
        self.put(entry(0), entry(1))
        for name, minor in held:
            self.sink.apply("ADDED", pod(name, {GPU: "50"}, on="node", allocated=half(minor)))
        self.evictor = Evictor(
            cluster=self.cluster,
            pods=self.pods,
            per_minute=per_minute,
            report=lambda charge, card: self.reported.append((charge.pod, card)),
            leads=lambda: self.leads,
        )
        self.generation = 1

    def put(self, *entries: Raw, generation: int = 1) -> None:
        self.cluster.node_cache.put_device(device("node", *entries, generation=generation))

    def fail(self, minor: int = 0, reason: str = "UntilReset", **fields: Any) -> None:
        self.generation += 1
        failed = entry(minor, health=False, conditions=[condition("Xid79", "True", reason=reason)], **fields)
        self.put(*(failed if minor == each else entry(each) for each in (0, 1)), generation=self.generation)

    def heal(self) -> None:
        self.generation += 1
        self.put(entry(0), entry(1), generation=self.generation)

    async def after(self, seconds: float) -> list[str]:
        """Run the evictor for this many seconds; return the pods that it evicted."""
        task = asyncio.create_task(self.evictor.run())
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])
        return [name for _, name in self.pods.evictions]


SOON = PATIENCE + 2 * PERIOD


@pytest.mark.parametrize("reason", ["UntilReset", "UntilReboot"])
async def test_pods_on_a_permanently_failed_card_are_evicted(reason: str) -> None:
    world = World(("a", 0), ("b", 1))
    world.fail(0, reason)
    assert await world.after(SOON) == ["a"]
    assert world.reported == [("ns/a", "gpu 0 of node node")]


async def test_the_pod_that_holds_the_card_is_evicted_and_not_one_whose_annotation_has_its_minor() -> None:
    world = World(("a", 0), ("b", 1))
    failed = entry(0, health=False, conditions=[condition("Xid79", "True", reason="UntilReboot")])
    world.put({**failed, "minor": 1}, {**entry(1), "minor": 0}, generation=2)
    assert await world.after(SOON) == ["a"]
    assert world.reported == [("ns/a", "gpu 1 of node node")]


async def test_a_failed_card_whose_minor_changes_keeps_its_patience() -> None:
    world = World(("a", 0))
    failed = entry(0, health=False, conditions=[condition("Xid79", "True", reason="UntilReboot")])
    world.put(failed, entry(1), generation=2)
    moved = {**failed, "minor": 1}, {**entry(1), "minor": 0}
    asyncio.get_running_loop().call_later(PATIENCE / 2, lambda: world.put(*moved, generation=3))
    assert await world.after(PATIENCE + 2 * PERIOD) == ["a"]


async def test_an_eviction_without_an_answer_counts() -> None:
    world = World(("a", 0), ("b", 0), per_minute=1)
    world.pods.refuses = {"a": Unreachable("no answer"), "b": Unreachable("no answer")}
    world.fail()
    assert await world.after(SOON) == ["a"]


async def test_a_card_that_pods_come_to_again_and_again_is_emptied_ever_less_often() -> None:
    world, loop = World(("pod-0", 0)), asyncio.get_running_loop()

    def replace(name: str) -> None:
        """Let another pod come to the card once one has left."""
        world.sink.apply("DELETED", pod(name, {GPU: "50"}, on="node", allocated=half(0)))
        again = pod(f"pod-{len(world.pods.evictions)}", {GPU: "50"}, on="node", allocated=half(0))
        loop.call_later(2 * PERIOD, world.sink.apply, "ADDED", again)

    world.pods.on_evicted = replace
    world.fail(0)
    await world.after(PATIENCE + 1000)
    pauses = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(world.pods.evictions)]
    assert [round(each / AGAIN) for each in pauses] == [0, 1, 2, 4, 8]


async def test_a_pod_that_a_budget_keeps_on_the_card_is_no_reason_to_evict_others_without_a_pause() -> None:
    world, loop = World(("kept", 0), ("pod-0", 0)), asyncio.get_running_loop()
    world.pods.refuses["kept"] = BUDGET
    evicted: list[float] = []

    def replace(name: str) -> None:
        evicted.append(now())
        world.sink.apply("DELETED", pod(name, {GPU: "50"}, on="node", allocated=half(0)))
        again = pod(f"pod-{len(evicted)}", {GPU: "50"}, on="node", allocated=half(0))
        loop.call_later(2 * PERIOD, world.sink.apply, "ADDED", again)

    world.pods.on_evicted = replace
    world.fail(0)
    await world.after(PATIENCE + 1000)
    pauses = [later - earlier for earlier, later in itertools.pairwise(evicted)]
    assert [round(each / AGAIN) for each in pauses] == [0, 1, 2, 4, 8]


async def test_all_pods_of_a_card_are_evicted_before_it_counts_as_emptied() -> None:
    world = World(("a", 0), ("b", 0), ("c", 0), ("d", 0))
    world.pods.on_evicted = lambda name: world.sink.apply(
        "DELETED", pod(name, {GPU: "50"}, on="node", allocated=half(0))
    )
    world.fail()
    assert await world.after(SOON + PERIOD) == ["a", "b", "c", "d"]


def claims_of(world: World) -> ResourceClaims:
    """Return the table of claims, on a node whose driver lists both cards."""
    to = ClaimsInTurns(world.cluster)
    world.cluster.set_own_pools(OwnPools(drivers=frozenset({NVIDIA_DRIVER})))
    to.put_slice(resource_slice(gpu(0), gpu(1)))
    return to


def by_class(claim: Raw, owner: str) -> Raw:
    """Return a claim as a scheduler makes it for the extended resource of a pod."""
    controller = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    return {**claim, "metadata": {**claim["metadata"], "annotations": annotations, "ownerReferences": [controller]}}


async def test_pods_that_hold_the_card_by_claim_or_by_class_are_evicted() -> None:
    world = World(("name", 0), ("other", 1))
    to = claims_of(world)
    to.put_claim(allocated("own", "gpu-0", pods=["uid-claim"]))
    to.put_claim(allocated("shared", "gpu-0", pods=["uid-first", "uid-second", "uid-elsewhere"]))
    to.put_claim(by_class(allocated("of-class", "gpu-0", pods=["uid-class"]), "class"))
    # A monitor, which has each card at the same time as others, and a pod of the other card.
    to.put_claim(allocated("admin", "gpu-0", pods=["uid-monitor"], adminAccess=True))
    to.put_claim(allocated("next", "gpu-1", pods=["uid-next"]))
    world.cluster.node_cache.put_node(node("far"))
    for name in ("claim", "first", "second", "class", "monitor", "next"):
        world.sink.apply("ADDED", pod(name, on="node"))
    world.sink.apply("ADDED", pod("elsewhere", on="far"))
    world.pods.on_evicted = lambda name: world.sink.apply("DELETED", pod(name, on="node"))
    world.fail(0)
    assert sorted(await world.after(SOON + 10)) == ["claim", "class", "first", "name", "second"]
    assert ("ns/class", "gpu 0 of node node") in world.reported


async def test_a_pod_by_claim_that_a_budget_keeps_on_the_card_keeps_no_other() -> None:
    world = World()
    to = claims_of(world)
    to.put_claim(allocated("c", "gpu-0", pods=["uid-kept", "uid-b"]))
    for name in ("kept", "b"):
        world.sink.apply("ADDED", pod(name, on="node"))
    world.pods.refuses["kept"] = BUDGET
    world.fail(0)
    assert sorted(await world.after(SOON)) == ["b", "kept"]


@pytest.mark.parametrize("reason", ["UntilQuiet", "WhileMeasured"])
async def test_pods_on_a_card_that_may_recover_stay(reason: str) -> None:
    world = World(("a", 0))
    world.fail(0, reason)
    assert await world.after(10 * SOON) == []


async def test_no_pod_is_evicted_unless_it_is_enabled() -> None:
    world = World(("a", 0), per_minute=0)
    world.fail()
    assert await world.after(10 * SOON) == []


async def test_a_card_that_recovers_in_time_loses_no_pod() -> None:
    world = World(("a", 0))
    world.fail()
    asyncio.get_running_loop().call_later(PATIENCE / 2, world.heal)
    asyncio.get_running_loop().call_later(PATIENCE * 0.75, world.fail)
    assert await world.after(PATIENCE + PERIOD) == []


async def test_evictions_keep_their_rate() -> None:
    world = World(("a", 0), ("b", 0), per_minute=2)
    world.fail()
    await world.after(3 * SOON)
    (first, _), (second, _) = world.pods.evictions[:2]
    assert second - first >= 30


async def test_a_holder_that_is_no_pod_cannot_be_evicted() -> None:
    world = World()
    failed = entry(0, health=False, conditions=[condition("Xid79", "True", reason="UntilReset")])
    foreign = [{"type": "gpu", "minor": 0, "processes": 1}]
    status = {"bootID": "boot-1", "held": [held("gone", "GPU-0")], "foreign": foreign}
    world.cluster.node_cache.put_device(device("node", failed, entry(1), generation=2, status=status))
    assert len(list(world.cluster.fleet.on_node("node"))) == 2
    assert await world.after(SOON) == []


async def test_an_eviction_that_a_budget_refuses_is_retried_and_delays_no_other() -> None:
    world = World(("a", 0), ("b", 0))
    world.pods.refuses["a"] = BUDGET
    world.fail()
    assert await world.after(SOON) == ["a", "b"]
    assert world.reported == [("ns/b", "gpu 0 of node node")]
    again = World(("a", 0))
    again.pods.refuses["a"] = BUDGET
    again.fail()
    assert await again.after(SOON + AGAIN) == ["a", "a"]


async def test_a_pod_that_can_never_be_evicted_delays_no_other() -> None:
    # The API server answers 500 for a pod that has two PodDisruptionBudgets.
    world = World(("a", 0), ("b", 0), per_minute=1)
    world.pods.refuses["a"] = refusal(500, "This pod has more than one PodDisruptionBudget.")
    world.fail()
    assert "b" in await world.after(SOON + 2 * AGAIN)


@pytest.mark.parametrize("error", [Unreachable("no answer"), refusal(500), refusal(404), refusal(409)], ids=str)
async def test_an_error_is_no_end(error: ApiError | Unreachable) -> None:
    world = World(("a", 0))
    world.pods.refuses["a"] = error
    world.fail()
    with capture_logs() as logs:
        assert await world.after(SOON + AGAIN) == ["a", "a"]
    assert world.reported == []
    # Only a pod that does not exist any more is no reason to warn.
    assert len([each for each in logs if each["event"] == "pod on a failed card not evicted"]) == (
        0 if error.status == 404 else 2
    )


@pytest.mark.parametrize(("uid", "warnings"), [("uid-a", 2), ("another", 0)], ids=["a webhook's", "of another pod"])
async def test_a_conflict_is_a_refusal_only_if_the_pod_is_still_there(uid: str, warnings: int) -> None:
    world = World(("a", 0))
    world.pods.refuses, world.pods.uids = {"a": refusal(409, "no")}, {"a": uid}
    world.fail()
    with capture_logs() as logs:
        assert await world.after(SOON + AGAIN) == ["a", "a"]
    assert [each["event"] for each in logs].count("pod on a failed card not evicted") == warnings


async def test_pods_that_already_terminate_are_not_evicted() -> None:
    world = World(("a", 0))
    gone = pod("a", {GPU: "50"}, on="node", allocated=half(0), metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    world.sink.apply("MODIFIED", gone)
    world.fail()
    assert await world.after(10 * SOON) == []


async def test_a_replica_that_does_not_lead_evicts_no_pod() -> None:
    world = World(("a", 0))
    world.leads = False
    world.fail()
    assert await world.after(10 * SOON) == []


async def test_a_report_that_is_older_than_the_leader_is_not_believed_before_its_agent_is_heard() -> None:
    world = World(("a", 0), beats=10**6, heard=False)
    world.fail()
    assert await world.after(10 * SOON) == []
    world.cluster.node_cache.put_lease(lease(renewed="2", duration=10**6))
    assert await world.after(SOON) == ["a"]


async def test_a_failed_card_that_is_not_read_is_no_end() -> None:
    world = World(("a", 0))
    failed: Raw = {"health": False, "conditions": [condition("Xid79", "True", reason="UntilReset")]}
    others = (entry(minor) for minor in range(1, MAX_CARDS))
    world.put(entry(0, **failed), *others, entry(MAX_CARDS, **failed), generation=2)
    assert await world.after(SOON) == ["a"]


async def test_an_agent_that_is_silent_is_not_believed() -> None:
    world = World(("a", 0), beats=10)
    world.fail()
    assert await world.after(10 * SOON) == []
