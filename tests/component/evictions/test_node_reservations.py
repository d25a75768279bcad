"""Node reservations: a pod with many cards is bound though smaller pods would keep every node busy forever."""

import asyncio
import copy
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY

from berth_api import names
from berth_api.objects.leader_lease import LeaderLeaseStatus, ReservationBackoff, ReservedNode
from berth_client import times
from berth_operator.core.decision.policy import Policy
from berth_operator.core.decision.record import MAX_ALL
from tests.component.world import EPOCH, NOTHING, Api, World, now, refusal
from tests.objects.builders import NVIDIA, Raw, node, pod, whole

pytestmark = pytest.mark.looptime

AFTER = 30.0
"""Seconds until a pod may have a reservation."""
REVIEW = 2.0
"""Seconds within which a reservation follows a change of nodes."""
REPORT = 15.0
"""Seconds within which a changed reason is written."""


def wall(seconds: float | None = None) -> str:
    """Return a virtual time of the loop in RFC 3339; now by default."""
    return times.time(datetime.fromtimestamp(EPOCH + (now() if seconds is None else seconds), UTC))


class Conditions(Api):
    """An API server that stores the conditions of pods of all namespaces."""

    def __init__(self) -> None:
        super().__init__()
        self.on_condition: list[Any] = []

    async def patch_event(self, _namespace: str, name: str, patch: Raw) -> None:
        await super().patch_event("ns", name, patch)

    async def patch_pod_status(self, _namespace: str, name: str, patch: Raw) -> None:
        await super().patch_pod_status("ns", name, patch)
        stored = self.pods[name]
        for condition in patch["status"].get("conditions", ()):
            known = stored["status"].get("conditions") or [{"lastTransitionTime": wall()}]
            since = known[0]["lastTransitionTime"]
            stored["status"]["conditions"] = [{**condition, "lastTransitionTime": since}]
            for callback in self.on_condition:
                callback(stored)


class Crowded(World):
    """A world whose watch shows the conditions, and whose bound pods start at once."""

    def __init__(self, *, after: float = AFTER, api: Api | None = None) -> None:
        self.conditions = api if isinstance(api, Conditions) else Conditions()
        super().__init__(policy=replace(Policy(), reserve_after=after), api=self.conditions, wall=lambda: EPOCH + now())
        self.conditions.on_condition = [self.change]

    def seen_bound(self, pod: Raw) -> None:
        pod["status"] = {"startTime": wall()}
        super().seen_bound(pod)

    def hold(self, *pods: Raw) -> None:
        """Add bound pods."""
        for raw in pods:
            self.api.pods[raw["metadata"]["name"]] = raw
            self.pods.apply("ADDED", copy.deepcopy(raw))

    def nodes(self, *names: str, cards: int = 2) -> None:
        for name in names:
            self.add_node(name, cards=cards)

    def reserved(self) -> dict[str, str]:
        """Return the node of each pod with a reservation."""
        kept = {}
        for nominee in self.cluster.fleet.nominees.values():
            waiting = self.cluster.pending[nominee.uid]
            assert nominee.node in (waiting.reserved_node, waiting.nominated_node)
            if waiting.reserved_node:
                kept[waiting.name] = nominee.node
        return kept

    async def stream(self, seconds: int, *, waiting: int = 4) -> None:
        """End the oldest small pod each second, and create small pods so that some always wait."""
        running: list[str] = []
        for number in range(seconds):
            bound = self.api.bound()
            running += sorted(name for name in bound if name.startswith("small-") and name not in running)
            if running:
                self.delete(running.pop(0))
            left = sum(name.startswith("small-") for name in self.api.pods.keys() - bound.keys())
            self.submit(*(small(f"small-{number:03}-{extra}") for extra in range(waiting - left)))
            await asyncio.sleep(1)


def held(name: str, *minors: int, on: str = "a", **fields: Any) -> Raw:
    """Return a bound pod with whole cards."""
    return pod(name, {NVIDIA: str(len(minors))}, on=on, allocated=whole(*minors), **fields)


def ending(name: str, *minors: int, at: float, on: str = "a") -> Raw:
    """Return a bound pod that is known to end by a virtual time."""
    deadline = {"activeDeadlineSeconds": int(at), "terminationGracePeriodSeconds": 0}
    return held(name, *minors, on=on, status={"startTime": wall(0)}, **deadline)


def big(name: str = "big", cards: int = 2, **fields: Any) -> Raw:
    return pod(name, {NVIDIA: str(cards)}, **fields)


def small(name: str = "small", **fields: Any) -> Raw:
    return pod(name, {NVIDIA: "1"}, **fields)


def brief(name: str, seconds: int) -> Raw:
    """Return a pod with a card that ends within some seconds."""
    return small(name, activeDeadlineSeconds=seconds, terminationGracePeriodSeconds=0)


async def test_a_gang_that_waits_as_long_as_a_pod_for_a_reservation_is_told_what_helps() -> None:
    world = Crowded()
    world.nodes("a", "b")
    world.hold(held("x", 0), held("y", 0, on="b"))
    of_gang = {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "2"}
    async with world.running():
        world.submit(*(big(f"member-{number}", annotations=of_gang) for number in range(2)))
        await asyncio.sleep(REPORT)
        assert "reserved for gangs" not in world.api.messages("member-0")[-1]
        since = world.api.pods["member-0"]["status"]["conditions"][0]["lastTransitionTime"]
        await asyncio.sleep(AFTER)
        # Something happens on a node, so that the gang is decided again.
        world.delete("x")
        world.submit(small("next"))
        await asyncio.sleep(REPORT)
        message = world.api.messages("member-0")[-1]
        assert f"waiting for devices since {since}: no nodes are reserved for gangs" in message
        assert world.reserved() == {}


@pytest.mark.parametrize(
    ("after", "is_bound"), [pytest.param(AFTER, True, id="on"), pytest.param(0.0, False, id="off")]
)
async def test_a_stream_of_small_pods_does_not_starve_a_large_one(after: float, *, is_bound: bool) -> None:
    world = Crowded(after=after)
    world.nodes("a", "b")
    async with world.running() as api:
        stream = asyncio.create_task(world.stream(120))
        await asyncio.sleep(5)
        world.submit(big())
        await asyncio.sleep(AFTER + 15)
        assert ("big" in api.bound()) is is_bound
        await stream
    assert ("big" in api.bound()) is is_bound


async def test_the_condition_shows_the_reservation_and_its_progress() -> None:
    world = Crowded()
    world.nodes("a", cards=3)
    world.hold(held("x", 0), held("y", 1, metadata={"namespace": "other"}), held("z", 2))
    world.submit(big(cards=3))
    async with world.running() as api:
        await asyncio.sleep(AFTER - 1)
        assert not world.reserved()
        await asyncio.sleep(REVIEW + REPORT)
        assert world.reserved() == {"big": "a"}
        assert api.messages("big")[-1].endswith(
            " nothing has been freed since 2026-01-01T00:00:30Z; reserved on a: 0 of 3 GPUs are free, the rest is held "
            "by pods x, z and 1 pod of another namespace."
        )
        world.delete("x")
        await asyncio.sleep(REPORT)
        assert api.messages("big")[-1].endswith(
            " reserved on a: 1 of 3 GPUs are free, the rest is held by pod z and 1 pod of another namespace."
        )
        world.delete("y")
        world.delete("z")
        await asyncio.sleep(1)
        assert api.bound()["big"] == "a"
    assert not world.cluster.fleet.nominees


async def test_small_pods_get_what_is_not_reserved() -> None:
    world = Crowded()
    world.nodes("a", cards=3)
    world.hold(held("x", 0), held("y", 1), held("z", 2))
    world.submit(big())
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        world.submit(small("s1"), small("s2"))
        for name in "xyz":
            world.delete(name)
            await asyncio.sleep(1)
        assert api.bound() == {"big": "a", "s1": "a"}


async def test_one_reservation_for_each_namespace() -> None:
    world = Crowded()
    nodes = [f"n{number:02}" for number in range(40)]
    world.nodes(*nodes)
    world.hold(*(held(f"on-{name}", 0, on=name) for name in nodes))
    world.submit(big("first"))
    async with world.running() as api:
        await asyncio.sleep(5)
        world.submit(big("second"))
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"first": "n00"}
        world.delete("on-n00")
        await asyncio.sleep(REVIEW)
        assert api.bound()["first"] == "n00"
        assert world.reserved() == {"second": "n01"}


async def test_five_percent_of_the_nodes() -> None:
    world = Crowded()
    nodes = [f"n{number:02}" for number in range(40)]
    world.nodes(*nodes)
    world.hold(*(held(f"on-{name}", 0, on=name) for name in nodes))
    async with world.running():
        for each in range(4):
            own: Raw = {"metadata": {"namespace": f"ns-{each}"}, "preemptionPolicy": "Never", "priority": each // 3}
            world.submit(big(f"big-{each}", **own))
            await asyncio.sleep(2)
        await asyncio.sleep(AFTER + REVIEW)
        # The fourth has a higher priority; it took the place of the second, which was reserved before.
        assert world.reserved().keys() == {"big-0", "big-3"}


async def test_a_pod_of_higher_priority_takes_the_room() -> None:
    world = Crowded()
    world.nodes("a", "b")
    world.hold(held("x", 0), held("y", 0, on="b"), held("z", 1, on="b"))
    world.submit(big())
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.submit(small("equal"))
        await asyncio.sleep(1)
        assert "equal" not in api.bound()
        world.delete("z")
        await asyncio.sleep(1)
        assert api.bound()["equal"] == "b"
        world.delete("equal")
        world.submit(small("high", priority=1))
        world.submit(small("higher", priority=2))
        await asyncio.sleep(REVIEW)
        assert {api.bound()["high"], api.bound()["higher"]} == {"a", "b"}
        world.delete("y")
        await asyncio.sleep(REVIEW)
        assert world.reserved().keys() == {"big"}
        world.delete("high")
        world.delete("higher")
        await asyncio.sleep(REVIEW)
        assert "big" in api.bound()


async def test_another_node_is_reserved_if_a_higher_priority_took_the_room() -> None:
    world = Crowded()
    world.nodes("a", "b")
    jobs = [held(name, minor, on="b", restartPolicy="Never") for minor, name in enumerate("yz")]
    world.hold(ending("x", 0, at=300), *jobs)
    world.submit(big())
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.submit(small("high", priority=1))
        await asyncio.sleep(0.5)
        assert api.bound()["high"] == "a"
        # When that ends is not known; jobs may rather.
        assert world.reserved() == {"big": "b"}


async def test_a_pod_that_preempts_on_the_reserved_node_displaces_the_reservation() -> None:
    world = Crowded()
    world.nodes("a", "b")
    world.hold(held("x", 0), held("y", 0, on="b", priority=9), held("z", 1, on="b", priority=9))
    world.submit(big())
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.submit(big("high", priority=5))
        await asyncio.sleep(0.1)
        assert not world.reserved()
        await asyncio.sleep(REVIEW)
        assert api.bound()["high"] == "a"
        assert [name for _, name in api.deletes] == ["x"]
        await asyncio.sleep(REVIEW)
        assert world.reserved().keys() == {"big"}


async def test_a_nominated_pod_waits_for_its_victims() -> None:
    world = Crowded()
    world.grace = 3 * AFTER
    world.nodes("a")
    world.hold(held("x", 0), held("y", 1))
    world.submit(big("high", priority=1))
    async with world.running() as api:
        await asyncio.sleep(2 * AFTER)
        assert not world.reserved()
        await asyncio.sleep(AFTER + REVIEW)
        assert api.bound() == {"high": "a"}


async def test_a_deleted_pod_leaves_its_room_at_once() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("x", 0))
    world.submit(big())
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        world.submit(small())
        await asyncio.sleep(REVIEW)
        assert "small" not in api.bound()
        [message] = api.messages("small")
        assert message.endswith(" 1 node(s) would fit, but are reserved for pods that have waited longer.")
        world.delete("big")
        await asyncio.sleep(0.1)
        assert api.bound()["small"] == "a"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"unschedulable": True}, id="cordoned"),
        pytest.param({"taints": [{"key": "keep-off", "effect": "NoSchedule"}]}, id="tainted"),
        pytest.param({"conditions": [{"type": "Ready", "status": "False"}]}, id="not ready"),
        pytest.param({"allocatable": {NVIDIA: "1"}}, id="fewer cards"),
    ],
)
async def test_another_node_is_reserved_if_the_first_fails(change: Mapping[str, Any]) -> None:
    world = Crowded()
    world.nodes("a", "b")
    world.hold(held("x", 0), held("y", 0, on="b"), held("z", 1, on="b"))
    world.submit(big())
    async with world.running():
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.cluster.node_cache.put_node(node("a", **change))
        await asyncio.sleep(REVIEW)
        assert world.reserved() == {"big": "b"}
        world.cluster.node_cache.put_node(node("a"))
        world.cluster.node_cache.remove_node("b")
        await asyncio.sleep(REVIEW)
        assert world.reserved() == {"big": "a"}
        world.cluster.node_cache.remove_node("a")
        await asyncio.sleep(REVIEW)
        assert not world.reserved()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(big(cards=3), id="too many cards"),
        pytest.param(pod("big", {NVIDIA: "2", "cpu": "65"}), id="too much cpu"),
        pytest.param(pod("big", {NVIDIA: "2"}, nodeSelector={"zone": "c"}), id="no such node"),
        pytest.param(pod("big", {"cpu": "64"}), id="no cards"),
        pytest.param(big(annotations={names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "1"}), id="a member of a gang"),
    ],
)
async def test_no_reservation(raw: Raw) -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("x", 0), pod("y", {"cpu": "1"}, on="a"))
    world.submit(raw)
    async with world.running():
        await asyncio.sleep(AFTER + REVIEW)
        assert not world.reserved()


async def test_a_pod_that_can_never_fit_is_in_no_ones_way() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("x", 0))
    world.submit(big("huge", cards=3))
    async with world.running():
        await asyncio.sleep(5)
        world.submit(big())
        await asyncio.sleep(AFTER + 5)
        assert not world.reserved()
        await asyncio.sleep(10)
        assert world.reserved() == {"big": "a"}


async def test_pods_that_can_never_fit_hold_up_no_other_namespace() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("x", 0))
    world.submit(*(big(f"huge-{cards}", cards=cards) for cards in range(3, 60)))
    async with world.running():
        await asyncio.sleep(5)
        world.submit(big(metadata={"namespace": "other"}))
        await asyncio.sleep(AFTER + 2 * REVIEW)
        assert world.reserved() == {"big": "a"}


async def test_pods_that_end_in_time_backfill_the_node() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(ending("x", 0, at=200))
    world.submit(big())
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.submit(small("endless"), brief("long", 200), brief("short", 100))
        await asyncio.sleep(REVIEW)
        assert api.bound() == {"x": "a", "short": "a"}
        assert world.reserved() == {"big": "a"}
        await asyncio.sleep(100)
        assert api.messages("big")[-1].endswith("held by pods short, x until 2026-01-01T00:03:20Z at the latest.")
        world.delete("short")
        await asyncio.sleep(REVIEW)
        assert api.bound() == {"x": "a"}
        world.delete("x")
        await asyncio.sleep(1)
        assert api.bound()["big"] == "a"


async def test_no_backfill_if_the_end_is_unknown() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("x", 0))
    world.submit(big())
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        world.submit(brief("short", 10))
        await asyncio.sleep(REVIEW)
        assert "short" not in api.bound()


@pytest.mark.parametrize("recorded", [pytest.param(True, id="restored"), pytest.param(False, id="not yet recorded")])
async def test_the_next_leader_finds_the_reservation(*, recorded: bool) -> None:
    world = Crowded()
    world.nodes("a", "b", cards=4)
    world.hold(held("x", 0, 1), held("y", 0, 1, 2, on="b"))
    world.submit(big(cards=4))
    async with world.running():
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}

    following = Crowded(api=world.conditions)
    following.inherited = world.left() if recorded else NOTHING
    following.nodes("b", "a", cards=4)
    # In the meantime there would be more room elsewhere.
    following.api.pods["y"] = held("y", 0, on="b")
    raws = [*following.api.pods.values(), *(small(f"small-{each}") for each in range(9))]
    following.submit(*raws)
    async with following.running() as api:
        await asyncio.sleep(REVIEW + 1)
        assert following.reserved().keys() == {"big"}
        # Small pods take the room unless it was restored before they were decided.
        assert list(api.bound().values()).count("a") == (1 if recorded else 3)
        following.delete("x")
        await asyncio.sleep(REVIEW)
        assert ("big" in api.bound()) is recorded


async def test_a_pod_that_cannot_be_bound_keeps_no_room() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("x", 0))
    world.submit(big())
    world.api.always["bind big"] = refusal()
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.submit(small())
        world.delete("x")
        await asyncio.sleep(AFTER - 5)
        assert "small" in api.bound()
        assert not world.reserved()
        await asyncio.sleep(15)
        assert world.reserved() == {"big": "a"}


async def test_a_pod_whose_allocation_is_too_large_for_it_keeps_no_room() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("x", 0))
    world.submit(big(annotations={"example.com/all": "x" * MAX_ALL}))
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.submit(small())
        world.delete("x")
        await asyncio.sleep(AFTER - 5)
        assert api.bound()["small"] == "a"
        assert not world.reserved()


async def test_a_reserved_node_that_anti_affinity_rules_out_is_given_up() -> None:
    world = Crowded()
    world.nodes("a", "b")
    world.hold(held("x", 0), held("y", 0, on="b"), held("z", 1, on="b"))
    apart = {"labelSelector": {"matchLabels": {"app": "n"}}, "topologyKey": "kubernetes.io/hostname"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    for name in "ab":
        world.cluster.node_cache.put_node(node(name, labels={"kubernetes.io/hostname": name}))
    world.submit(big(affinity={"podAntiAffinity": required}))
    async with world.running():
        await asyncio.sleep(AFTER + REVIEW)
        assert world.reserved() == {"big": "a"}
        world.hold(pod("n", {"cpu": "1"}, on="a", labels={"app": "n"}))
        await asyncio.sleep(REVIEW)
        assert world.reserved() == {"big": "a"}
        world.delete("x")
        await asyncio.sleep(REVIEW)
        assert world.reserved() == {"big": "b"}


# --- what cannot happen -------------------------------------------------------------------------------------------

PATIENCE = 900.0
"""Seconds for which nothing is freed until a reservation ends."""


def of_rollout(template_hash: str) -> Raw:
    """Return what pods of one revision of a Deployment have."""
    return {"labels": {"app": "llm", "pod-template-hash": template_hash}}


async def test_no_reservation_waits_for_a_pod_of_the_same_rollout() -> None:
    world = Crowded()
    world.nodes("a", cards=8)
    world.hold(held("llm-old", 0, 1, 2, 3, **of_rollout("5f")))
    world.submit(big("llm-new", cards=6, **of_rollout("6c")))
    async with world.running() as api:
        await asyncio.sleep(AFTER + REVIEW)
        assert not world.reserved()
        world.submit(small())
        await asyncio.sleep(REVIEW)
        assert api.bound()["small"] == "a"


def shown(name: str = "big", **fields: Any) -> Raw:
    """Return a pod with two cards that has waited for two hours; what its condition says does not matter."""
    of_leader = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "x"}
    return big(name, status={"conditions": [{**of_leader, "lastTransitionTime": wall(-7200)}]}, **fields)


def in_vain(silent: float, free: int = 1) -> LeaderLeaseStatus:
    """Return the record of a reservation for which nothing has been freed for some seconds."""
    since = round(EPOCH + now() - silent)
    kept = ReservedNode(namespace="ns", pod="big", uid="uid-big", node="a", free=free, since=since)
    return NOTHING.model_copy(update={"node_reservations": [kept]})


async def test_a_reservation_for_which_nothing_is_freed_ends() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("service", 0))
    world.inherited = in_vain(PATIENCE - 20)
    world.submit(shown(), small())
    async with world.running() as api:
        await asyncio.sleep(18)
        assert world.reserved() == {"big": "a"}
        assert "small" not in api.bound()
        await asyncio.sleep(2 * REVIEW)
        assert not world.reserved()
        assert api.bound()["small"] == "a"
        await asyncio.sleep(REPORT)
        assert (
            " 1 node reservation was in vain: nothing was freed for 15 minutes; the next one may begin at "
            in (api.messages("big")[-1])
        )
        assert api.messages("big")[-1].endswith(("T00:30:20Z.", "T00:30:21Z.", "T00:30:22Z."))


async def test_no_other_reservation_waits_for_a_pod_that_did_not_end() -> None:
    world = Crowded()
    world.nodes("a", "b")
    world.hold(held("service", 0), held("x", 0, on="b"), held("y", 1, on="b"))
    world.inherited = in_vain(PATIENCE - 20)
    world.submit(shown(), big("next"))
    async with world.running():
        await asyncio.sleep(20 + REVIEW)
        assert not world.reserved()
        await asyncio.sleep(AFTER - 20 + REVIEW)
        assert world.reserved() == {"next": "b"}


async def test_what_is_freed_prolongs_a_reservation() -> None:
    world = Crowded()
    world.nodes("a", cards=3)
    world.hold(held("service", 0), held("x", 1), held("y", 2))
    world.inherited = in_vain(PATIENCE - 20, free=0)
    world.submit(shown())
    async with world.running() as api:
        await asyncio.sleep(10)
        world.delete("x")
        await asyncio.sleep(10 + REPORT)
        assert world.reserved() == {"big": "a"}
        assert f" nothing has been freed since {wall(10)}; reserved on a: 1 of 2 GPUs" in api.messages("big")[-1]
    assert REGISTRY.get_sample_value("berth_node_reservations_free_devices", {"type": "gpu"}) == 1


async def test_a_reservation_waits_for_an_end_that_is_known() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(ending("x", 0, at=60))
    world.inherited = in_vain(PATIENCE - 20)
    world.submit(shown())
    async with world.running() as api:
        await asyncio.sleep(60)
        assert world.reserved() == {"big": "a"}
        world.delete("x")
        await asyncio.sleep(REVIEW)
        assert api.bound()["big"] == "a"


@pytest.mark.parametrize(
    ("silent", "free", "kept"),
    [
        pytest.param(PATIENCE - 60, 1, True, id="for less than 15 minutes"),
        pytest.param(PATIENCE, 1, False, id="for 15 minutes"),
        pytest.param(PATIENCE, 0, True, id="until the leader changed"),
    ],
)
async def test_the_next_leader_keeps_no_reservation_for_which_nothing_was_freed(
    silent: float, free: int, *, kept: bool
) -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("service", 0))
    world.inherited = in_vain(silent, free)
    world.submit(shown(), small())
    async with world.running() as api:
        await asyncio.sleep(REVIEW)
        assert world.reserved() == ({"big": "a"} if kept else {})
        assert ("small" in api.bound()) is not kept


async def test_the_next_leader_continues_the_pause() -> None:
    world = Crowded()
    world.nodes("a")
    world.hold(held("service", 0))
    owner = {"ownerReferences": [{"controller": True, "kind": "ReplicaSet", "name": "r", "uid": "r"}]}
    backoff = ReservationBackoff(namespace="ns", owner="r", count=2, until=EPOCH + 90)
    world.inherited = NOTHING.model_copy(update={"reservation_backoffs": [backoff]})
    world.submit(shown("first", metadata=owner), shown("second", metadata=owner))
    async with world.running() as api:
        await asyncio.sleep(85)
        assert not world.reserved()
        await asyncio.sleep(5 + REVIEW)
        assert world.reserved() == {"first": "a"}
        await asyncio.sleep(REPORT)
        assert " 2 node reservations were in vain; nothing has been freed since " in api.messages("first")[-1]
