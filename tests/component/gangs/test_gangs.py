"""Gangs from their members' arrival to their binding, for every answer of the API server."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from berth_api import names
from berth_client.errors import Unreachable
from berth_operator.binding.gangs import AGAIN
from berth_operator.core.decision.policy import Policy
from berth_operator.core.values.controller_gangs import OWNED
from berth_operator.state.cache.views import StatusKind
from berth_operator.state.watches import gang_owners
from tests.component.world import DEFAULT, LostError, Raw, World, now, refusal
from tests.objects.builders import NVIDIA, device, entry, node, pod, pod_group, relist, whole

pytestmark = pytest.mark.looptime

TIMEOUT = 60.0
LWS = "leaderworkerset.sigs.k8s.io/"
REFUSAL = refusal(422, "no")


def member(name: str, group: str = "g", requests: dict[str, str] | None = None, **fields: Any) -> Raw:
    """Return a pod of one card with the label of a group."""
    return pod(name, requests or {NVIDIA: "1"}, labels={names.POD_GROUP_LABEL: group}, **fields)


def annotated(name: str, minimum: str = "2", group: str = "g", **fields: Any) -> Raw:
    """Return a pod of one card with the annotations of a group."""
    annotations = {names.POD_GROUP: group, names.POD_GROUP_MIN_MEMBER: minimum}
    return pod(name, {NVIDIA: "1"}, annotations=annotations, **fields)


def filled(
    count: int = 4, *, nodes: int = 1, cards: int = 8, policy: Policy = DEFAULT, watch: bool = True, **group: Any
) -> World:
    """Return a world with nodes, a PodGroup with a minimum of members, and these members."""
    world = World(policy=policy, watch=watch)
    for i in range(nodes):
        world.add_node(f"node{i}", cards=cards, labels={"kubernetes.io/hostname": f"node{i}"})
    world.groups.apply("ADDED", pod_group(minimum=count, **group))
    world.submit(*(member(f"m{i}") for i in range(count)))
    return world


# --- PodGroups of other systems -------------------------------------------------------------------------------------


async def test_a_gang_is_decided_by_another_systems_pod_group() -> None:
    world = World()
    world.add_node("node", cards=8)
    table, *_ = world.groups_of_others
    group = pod_group(minimum=3)
    group["spec"]["queue"] = "default"
    table.apply("ADDED", group)
    world.submit(*(pod(f"m{i}", {NVIDIA: "1"}, annotations={"pod-group-name": "g"}) for i in range(2)))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.bound() == {}
        assert api.messages("m0")[-1] == "PodGroup ns/g: waiting for members: 2 of 3"
        world.submit(pod("m2", {NVIDIA: "1"}, annotations={"pod-group-name": "g"}))
        await asyncio.sleep(5)
    assert api.bound().keys() == {"m0", "m1", "m2"}
    notes = [event["note"] for _, event in api.events if event["metadata"]["name"].endswith(".group")]
    queue = (
        "PodGroup ns/g of scheduling.run.ai: spec.queue has no effect; Berth has no queues: for quotas use "
        "the label kueue.x-k8s.io/queue-name with Kueue"
    )
    assert notes == [queue] * 3
    # Its own controller writes its status.
    assert world.cluster.names(StatusKind.POD_GROUP) == []
    assert world.cluster.view(StatusKind.POD_GROUP, "ns/g") is None


async def test_berths_pod_group_takes_precedence_over_another_of_its_name() -> None:
    world = World()
    world.add_node("node", cards=8)
    table, *_ = world.groups_of_others
    table.apply("ADDED", pod_group(minimum=1))
    world.groups.apply("ADDED", pod_group(minimum=3))
    world.submit(member("m0"))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.messages("m0")[-1] == "PodGroup ns/g: waiting for members: 1 of 3"
        world.groups.apply("DELETED", pod_group(minimum=3))
        await asyncio.sleep(5)
        assert api.bound().keys() == {"m0"}
        table.apply("DELETED", pod_group(minimum=1))
        world.delete("m0")
        world.submit(member("m1"))
        await asyncio.sleep(5)
    assert api.messages("m1")[-1].startswith("PodGroup ns/g does not exist: create it")


# --- bound --------------------------------------------------------------------------------------------------------


async def test_a_gang_is_bound_at_once_on_one_node() -> None:
    world = filled(nodes=3)
    async with world.running() as api:
        await asyncio.sleep(1)
    assert len(api.bound()) == 4
    assert len(set(api.bound().values())) == 1
    assert api.most_under_way == 4
    assert [len(api.bind_times(f"m{i}")) for i in range(4)] == [1] * 4
    assert all(len(api.events_of(f"m{i}", "Scheduled")) == 1 for i in range(4))
    assert api.patches == []
    assert world.users() == 4


async def test_a_gang_of_more_members_than_may_be_bound_at_once() -> None:
    world = World()
    world.add_node(cards=0, allocatable={"pods": "1000"})
    world.groups.apply("ADDED", pod_group(minimum=600))
    world.submit(*(member(f"m{i}", requests={"cpu": "1m"}) for i in range(600)))
    async with world.running() as api:
        await asyncio.sleep(5)
    assert len(api.bound()) == 600
    assert api.most_under_way == 256


async def test_members_that_come_later_are_bound_as_they_come() -> None:
    world = filled(2)
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(member("late"))
        await asyncio.sleep(1)
        assert len(api.bound()) == 3
        # More than fit: each of the rest waits as any pod does, and blocks no other.
        world.submit(*(member(f"later{i}") for i in range(8)))
        await asyncio.sleep(20)
        assert len(api.bound()) == 8
        waiting = next(name for name in api.pods if name not in api.bound())
        assert api.messages(waiting)[-1].startswith("0/1 nodes are available: 1 node(s) have too few free GPUs")
        world.delete("late")
        await asyncio.sleep(0.5)
    assert len(api.bound()) == 8
    assert world.users() == 8


async def test_a_gang_is_decided_by_the_policy_of_its_scheduler() -> None:
    world = filled(2, nodes=2)
    apart = replace(Policy(), gang_topology_keys=(), weights=(("least-allocated", 1.0),))
    world.policies["other"] = replace(apart, gang_keep_partial=True)
    world.groups.apply("ADDED", pod_group("h", 3))
    theirs = [member(f"n{i}", "h", {NVIDIA: "1", "cpu": "1"}, schedulerName="other") for i in range(3)]
    world.submit(*theirs)
    world.api.always["bind n2"] = REFUSAL
    async with world.running() as api:
        await asyncio.sleep(2 * TIMEOUT)
    assert api.bound()["m0"] == api.bound()["m1"]
    assert api.bound()["n0"] != api.bound()["n1"]
    assert api.deletions == []


async def test_a_gang_has_formed_by_the_answers_to_its_binds_even_if_the_watch_is_late() -> None:
    world = filled(watch=False)
    async with world.running() as api:
        await asyncio.sleep(1)
        assert world.cluster.gang_tracker.counts("ns/g").formed
        await asyncio.sleep(2 * TIMEOUT)
    assert len(api.bound()) == 4
    assert api.deletions == []


# --- waiting ------------------------------------------------------------------------------------------------------


async def test_a_gang_waits_for_its_members_and_holds_nothing() -> None:
    world = filled(4)
    world.delete("m3")
    async with world.running() as api:
        await asyncio.sleep(1)
        assert api.messages("m0") == []  # they arrive one by one: too early for a report
        await asyncio.sleep(10)
        assert api.messages("m0") == ["PodGroup ns/g: waiting for members: 3 of 4"]
        assert api.events_of("m2", "FailedScheduling") == ["PodGroup ns/g: waiting for members: 3 of 4"]
        assert world.users() == 0
        world.submit(member("m3"))
        await asyncio.sleep(0.5)
    assert len(api.bound()) == 4
    assert len(api.patches) == 3


async def test_a_gang_waits_for_its_pod_group() -> None:
    world = World()
    world.add_node(cards=8)
    world.submit(member("m0"), member("m1"))
    async with world.running() as api:
        await asyncio.sleep(10)
        (message,) = api.messages("m0")
        assert message.startswith("PodGroup ns/g does not exist: create it in the API group ")
        world.groups.apply("ADDED", pod_group(minimum=0))
        await asyncio.sleep(15)
        assert api.messages("m0")[-1] == "PodGroup ns/g: spec.minMember: 0; allowed are whole numbers from 1"
        assert api.binds == []
        world.groups.apply("MODIFIED", pod_group(minimum=2))
        await asyncio.sleep(0.5)
    assert len(api.bound()) == 2


async def test_members_that_disagree_are_reported() -> None:
    world = World()
    world.add_node(cards=8)
    world.submit(annotated("a", "2"), annotated("b", "3"), annotated("c", "2"))
    async with world.running() as api:
        await asyncio.sleep(10)
        for name in "abc":
            assert api.messages(name) == [
                "pod group ns/g: annotation berth.dev/pod-group-min-member must be the same on all its pods; it is 2, 3"
            ]
        world.change(annotated("b", "2"))
        await asyncio.sleep(0.5)
    assert len(api.bound()) == 3


async def test_an_invalid_member_is_reported_and_its_gang_waits() -> None:
    world = filled(2)
    world.change(member("m1", requests={"kubernetes.io/gpu": "150"}))
    async with world.running() as api:
        await asyncio.sleep(10)
        assert api.messages("m1")[0].startswith("invalid request: kubernetes.io/gpu: 150")
        assert api.messages("m0") == ["PodGroup ns/g: waiting for members: 1 of 2"]
        world.change(member("m1"))
        await asyncio.sleep(0.5)
    assert len(api.bound()) == 2


async def test_a_gang_that_does_not_fit_holds_nothing_and_is_woken_by_what_frees_it() -> None:
    world = filled(4, cards=4)
    world.delete("m3")
    world.submit(pod("other", {NVIDIA: "1"}, priority=1), member("m3"))
    async with world.running() as api:
        await asyncio.sleep(100)
        assert api.bound() == {"other": "node0"}
        assert api.messages("m0")[-1].startswith("PodGroup ns/g: 3 of the 4 required members fit; next")
        world.delete("other")
        await asyncio.sleep(0.1)
    assert len(api.bound()) == 4
    assert api.bind_times("m0") == [100.0]


async def test_of_two_gangs_that_fit_alone_but_not_together_one_is_bound_and_the_other_waits_whole() -> None:
    world = filled(3, cards=4)
    world.groups.apply("ADDED", pod_group("h", 3, created="2026-01-02T00:00:00Z"))
    world.submit(*(member(f"n{i}", "h") for i in range(3)))
    async with world.running() as api:
        await asyncio.sleep(200)
        assert sorted(api.bound()) == ["m0", "m1", "m2"]
        assert world.users() == 3
        assert {name for _, name, _ in api.binds} == {"m0", "m1", "m2"}
        for i in range(3):
            world.delete(f"m{i}")
        await asyncio.sleep(0.5)
    assert sorted(api.bound()) == ["n0", "n1", "n2"]


async def test_a_gang_of_higher_priority_comes_first() -> None:
    world = filled(2, cards=2)
    world.groups.apply("ADDED", pod_group("h", 2))
    world.submit(member("n0", "h"), member("n1", "h", priority=1))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert sorted(api.bound()) == ["n0", "n1"]


async def test_a_pod_that_joins_a_gang_while_it_waits_waits_with_it() -> None:
    world = World()
    world.add_node(cards=2)
    world.groups.apply("ADDED", pod_group(minimum=2))
    world.submit(pod("a", {NVIDIA: "4"}))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.change(member("a"))
        await asyncio.sleep(5)
        assert api.bound() == {}
        world.submit(member("b"))
        await asyncio.sleep(0.5)
        assert sorted(api.bound()) == ["a", "b"]
        world.submit(member("c", "x"))
        await asyncio.sleep(1)
        world.delete("a")
        world.change(pod("c", {NVIDIA: "1"}))
        await asyncio.sleep(0.5)
    assert sorted(api.bound()) == ["b", "c"]


# --- a bind that fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 3])
async def test_a_member_that_is_refused_keeps_its_cards_and_is_tried_again(k: int) -> None:
    world = filled(cards=4)
    world.api.faults[f"bind m{k}"] = [REFUSAL] * 3
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.submit(pod("thief", {NVIDIA: "1"}, priority=1000, preemptionPolicy="Never"))
        await asyncio.sleep(2)
        assert len(api.bound()) == 3
        assert world.users() == 4
        await asyncio.sleep(20)
        assert sorted(api.bound()) == ["m0", "m1", "m2", "m3"]
    pauses = [later - earlier for earlier, later in pairwise(api.bind_times(f"m{k}"))]
    assert pauses == pytest.approx([1, 2, 4], abs=0.1)
    (first, *others) = [body for _, name, body in api.binds if name == f"m{k}"]
    assert all(body == first for body in others)
    assert api.events_of(f"m{k}", "FailedBinding") == ["no"]
    assert api.deletions == []
    assert len(api.events_of(f"m{k}", "Scheduled")) == 1


async def test_member_that_the_fence_refuses_is_reported_and_tried_again_within_the_term() -> None:
    world = filled()
    world.api.faults["bind m0"] = [refusal(422, f"{names.FENCE}-epoch denied request: no params found")]
    async with world.running() as api:
        await asyncio.sleep(0.5)
        assert len(api.events_of("m0", "FailedBinding")) == 1
        assert world.users() == 4
        await asyncio.sleep(5)
        assert len(api.bound()) == 4


async def test_refusal_of_a_member_that_comes_after_the_term_is_not_reported() -> None:
    world = filled()
    world.api.always["bind m0"] = refusal(403, f"{names.FENCE}-epoch denied request: epoch 1 is over")
    world.api.latency = 2.0
    async with world.running() as api:
        await asyncio.sleep(1)
        world.term = None
        await asyncio.sleep(5)
    assert api.events_of("m0", "FailedBinding") == []


@pytest.mark.parametrize("k", [0, 3])
async def test_a_gang_with_a_member_that_is_always_refused_is_undone(k: int) -> None:
    world = filled()
    world.api.always[f"bind m{k}"] = REFUSAL
    others = [f"m{i}" for i in range(4) if i != k]
    async with world.running() as api:
        await asyncio.sleep(TIMEOUT - 1)
        assert sorted(api.bound()) == others
        assert world.users() == 4
        await asyncio.sleep(5)
        assert sorted(name for _, name in api.deletions) == others
        assert all(TIMEOUT <= at <= TIMEOUT + 2 for at, _ in api.deletions)
        for name in others:
            (note,) = api.events_of(name, "PodGroupTimedOut")
            assert note.startswith("PodGroup ns/g could not be completed within 60 s: 3 of 4 members were bound")
        assert world.users() == 0
        assert api.bound() == {}
        # Their controller creates them again; by now no bind is refused.
        del api.always[f"bind m{k}"]
        world.submit(*(member(name, uid=f"uid-new-{name}") for name in others))
        await asyncio.sleep(2)
        assert len(api.bound()) == 4
        await asyncio.sleep(2 * TIMEOUT)
        assert len(api.bound()) == 4
    assert len(api.deletions) == 3


async def test_a_gang_that_can_never_be_completed_is_undone_ever_less_often() -> None:
    world = filled()
    world.api.always["bind m0"] = REFUSAL
    others = [f"m{i}" for i in range(1, 4)]
    async with world.running() as api:
        for number in range(20):
            # Their controller creates them again at once.
            await asyncio.sleep(TIMEOUT + 5)
            names_left = set(world.cluster.pending) | {charge.uid for charge in world.cluster.fleet.charges.values()}
            gone = [name for name in others if not any(name in uid for uid in names_left)]
            world.submit(*(member(name, uid=f"uid-{number}-{name}") for name in gone))
        rounds = [at for at, name in api.deletions if name == "m1"]
        assert api.messages("m1")[-1] == (
            "PodGroup ns/g: its bound members were deleted 5 times, because it could not be completed; "
            "it is tried again 480 s after the last time"
        )
    # At once after the first time, then after one minute, two, four, eight: without that some 18 times.
    assert len(rounds) == 6
    pauses = [after - before - TIMEOUT for before, after in pairwise(rounds)]
    assert all(least <= pause <= least + 15 for pause, least in zip(pauses, (0, 60, 120, 240, 480), strict=True))


async def test_the_timeout_is_the_groups_own() -> None:
    world = filled(timeout=5)
    world.api.always["bind m0"] = REFUSAL
    async with world.running() as api:
        await asyncio.sleep(8)
        assert len(api.deletions) == 3
    assert "within 5 s" in api.events_of("m1", "PodGroupTimedOut")[0]


async def test_a_gang_of_which_no_member_could_be_bound_is_decided_again() -> None:
    world = filled(2)
    world.api.always = {f"bind m{i}": REFUSAL for i in range(2)}
    async with world.running() as api:
        await asyncio.sleep(TIMEOUT + 0.5)
        assert world.users() == 0
        await asyncio.sleep(3)
        assert world.users() == 2
        assert api.deletions == []
        api.always.clear()
        await asyncio.sleep(15)
        assert len(api.bound()) == 2


async def test_bound_members_stay_where_a_setting_keeps_them() -> None:
    world = filled(policy=replace(Policy(), gang_keep_partial=True))
    world.api.always["bind m2"] = REFUSAL
    async with world.running() as api:
        await asyncio.sleep(3 * TIMEOUT)
        assert sorted(api.bound()) == ["m0", "m1", "m3"]
        assert api.deletions == []
        del api.always["bind m2"]
        await asyncio.sleep(15)
        assert len(api.bound()) == 4


@pytest.mark.parametrize("k", [0, 3])
async def test_a_member_that_is_gone_is_replaced(k: int) -> None:
    world = filled()
    del world.api.pods[f"m{k}"]
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.pods.apply("DELETED", member(f"m{k}"))
        assert len(api.bound()) == 3
        assert world.users() == 3
        await asyncio.sleep(5)
        world.submit(member("new"))
        await asyncio.sleep(2)
        assert "new" in api.bound()
        await asyncio.sleep(2 * TIMEOUT)
    assert len(api.bound()) == 4
    assert api.deletions == []


async def test_a_member_that_is_gone_and_not_replaced_undoes_its_gang() -> None:
    world = filled()
    del world.api.pods["m0"]
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.pods.apply("DELETED", member("m0"))
        await asyncio.sleep(TIMEOUT + 5)
    assert len(api.deletions) == 3
    assert world.users() == 0


async def test_a_bind_without_an_answer_is_sent_again_for_as_long_as_it_takes() -> None:
    world = filled(timeout=5)
    world.api.always["bind m0"] = Unreachable("no answer")
    async with world.running() as api:
        await asyncio.sleep(4)
        assert world.users() == 4
        # The others are deleted at the timeout, but this one may still be bound.
        await asyncio.sleep(6)
        assert world.users() == 1
        del api.always["bind m0"]
        await asyncio.sleep(2.5)
        assert api.bound() == {"m0": "node0"}
        # It is part of a gang again, and the gang's timeout begins again.
        await asyncio.sleep(10)
    assert world.users() == 0
    assert [name for _, name in api.deletions].count("m0") == 1


async def test_a_lost_answer_is_no_failure() -> None:
    world = filled()
    world.api.faults["bind m1"] = [LostError("lost")]
    async with world.running() as api:
        await asyncio.sleep(2 * TIMEOUT)
    assert len(api.bound()) == 4
    assert api.deletions == []


async def test_a_term_that_ends_sends_nothing_more() -> None:
    world = filled()
    world.api.always["bind m0"] = REFUSAL
    async with world.running() as api:
        await asyncio.sleep(1.5)
        sent = len(api.binds)
        world.term = None
        await asyncio.sleep(3 * TIMEOUT)
    assert len(api.binds) == sent
    assert api.deletions == []


@pytest.mark.parametrize(
    "fault", [pytest.param(refusal(500), id="error"), pytest.param(Unreachable("away"), id="no answer")]
)
async def test_a_deletion_that_fails_is_sent_again(fault: Exception) -> None:
    world = filled(2)
    world.api.always["bind m0"] = REFUSAL
    world.api.faults["delete m1"] = [fault, fault]
    async with world.running() as api:
        await asyncio.sleep(TIMEOUT + 20)
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(api.deletions)]
    assert pauses == pytest.approx([AGAIN, AGAIN], abs=1)
    assert len(api.events_of("m1", "PodGroupTimedOut")) == 1
    assert "m1" not in api.pods


async def test_a_gang_whose_record_cannot_be_written_is_not_bound_in_part() -> None:
    world = filled(2)
    world.change(member("m1", annotations={"big": "x" * 250 * 1024}))
    async with world.running() as api:
        await asyncio.sleep(30)
        assert api.binds == []
        assert world.users() == 0
        assert any(each.startswith("the allocation takes") for each in api.messages("m1"))
        world.change(member("m1"))
        await asyncio.sleep(12)
    assert len(api.bound()) == 2


# --- a member that dies -------------------------------------------------------------------------------------------


async def test_a_member_that_dies_is_replaced_near_the_others() -> None:
    world = filled(4, nodes=4, cards=8)
    async with world.running() as api:
        await asyncio.sleep(1)
        (node,) = set(api.bound().values())
        world.delete("m2")
        # It waits without a limit: a gang that has formed is not aborted.
        await asyncio.sleep(5 * TIMEOUT)
        assert len(api.bound()) == 3
        world.submit(member("new"))
        await asyncio.sleep(0.5)
    assert api.bound()["new"] == node
    assert api.deletions == []


KOORDINATOR = {
    f"{names.GANG_PREFIX}name": "g",
    f"{names.GANG_PREFIX}min-available": "3",
    f"{names.GANG_PREFIX}match-policy": "once-satisfied",
}
NEEDS_THREE: dict[str, Callable[..., Raw]] = {
    "annotations": lambda name, **fields: annotated(name, "3", **fields),
    "PodGroup": member,
    "Koordinator": lambda name, **fields: pod(name, {NVIDIA: "1"}, annotations=KOORDINATOR, **fields),
}


def lose(world: World, name: str, how: str) -> None:
    """Let a bound member go."""
    match how:
        case "succeeded, deleted":
            world.end(name)
            world.ended.apply("DELETED", world.api.pods.pop(name))
        case "failed":
            world.end(name, "Failed")
        case "evicted":
            world.terminate(name)
        case _:
            world.delete(name)


@pytest.mark.parametrize(
    ("protocol", "how"),
    [*((each, "succeeded, deleted") for each in NEEDS_THREE), ("annotations", "failed"), ("annotations", "evicted")],
)
async def test_a_replacement_is_bound_at_once_while_one_member_of_a_formed_gang_runs(protocol: str, how: str) -> None:
    world, made = World(), NEEDS_THREE[protocol]
    world.add_node(cards=3)
    if protocol == "PodGroup":
        world.groups.apply("ADDED", pod_group(minimum=3))
    world.submit(*map(made, "abc"))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert len(api.bound()) == 3
        lose(world, "a", how)
        lose(world, "b", "deleted")
        world.submit(made("b2"))
        await asyncio.sleep(0.5)
        assert {"b2", "c"} <= api.bound().keys()
        # Each replacement is decided for itself: one that does not fit keeps no other waiting.
        world.submit(pod("other", {NVIDIA: "1"}, priority=1))
        await asyncio.sleep(1)
        world.delete("c")
        world.submit(made("a2"), made("c2"))
        await asyncio.sleep(3 * TIMEOUT)
        assert len({"a2", "c2"} & api.bound().keys()) == 1
    assert api.deletions == []


async def test_a_formed_gang_stays_formed_when_it_is_to_have_more_members() -> None:
    world = filled(2)
    async with world.running() as api:
        await asyncio.sleep(1)
        world.groups.apply("MODIFIED", pod_group(minimum=4))
        world.submit(member("m2"))
        await asyncio.sleep(0.5)
        assert "m2" in api.bound()
        world.groups.apply("DELETED", pod_group(minimum=4))
        world.delete("m0")
        world.submit(member("m0", uid="again"))
        await asyncio.sleep(0.5)
        assert "m0" in api.bound()
        world.groups.apply("ADDED", pod_group(minimum=5, uid="another"))
        world.submit(member("m3"))
        await asyncio.sleep(3 * TIMEOUT)
    assert api.bound().keys() == {"m0", "m1", "m2", "m3"}
    assert api.deletions == []


async def test_a_formed_gang_by_annotations_takes_members_with_another_minimum() -> None:
    world = World()
    world.add_node(cards=4)
    world.submit(annotated("a"), annotated("b"))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(annotated("c", "3"))
        await asyncio.sleep(0.5)
    assert api.bound().keys() == {"a", "b", "c"}


async def test_a_new_generation_that_comes_while_the_last_one_leaves_starts_all_or_none() -> None:
    world = filled(3, cards=6)
    world.grace = 20.0
    async with world.running() as api:
        await asyncio.sleep(1)
        for i in range(3):
            world.terminate(f"m{i}")
        world.api.always["bind n2"] = REFUSAL
        world.submit(member("n0"), member("n1"))
        await asyncio.sleep(5)
        assert not api.bound().keys() & {"n0", "n1"}
        world.submit(member("n2"))
        await asyncio.sleep(TIMEOUT - 2)
        assert api.bound().keys() == {"n0", "n1"}
        await asyncio.sleep(5)
    # The last generation's start is none of this one.
    assert {name for _, name in api.deletions} == {"n0", "n1"}


async def test_members_that_come_while_a_gang_is_bound_wait_until_it_has_formed() -> None:
    world = filled(3)
    world.api.faults["bind m2"] = [REFUSAL] * 3
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.submit(member("late"))
        await asyncio.sleep(5)
        assert "late" not in api.bound()
        assert api.messages("late") == ["PodGroup ns/g: waiting for the members that are being bound"]
        await asyncio.sleep(5)
    assert api.bound().keys() == {"m0", "m1", "m2", "late"}


async def test_a_member_on_its_way_out_does_not_count() -> None:
    world = filled(2)
    async with world.running() as api:
        await asyncio.sleep(1)
        api.pods["m0"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        world.pods.apply("MODIFIED", api.pods["m0"])
        world.submit(member("new"))
        await asyncio.sleep(0.5)
        assert "new" in api.bound()


async def test_a_member_whose_label_is_taken_off_leaves_its_gang() -> None:
    world = filled(2)
    async with world.running() as api:
        await asyncio.sleep(1)
        api.pods["m0"]["metadata"]["labels"] = {}
        world.pods.apply("MODIFIED", api.pods["m0"])
        world.submit(member("new"))
        await asyncio.sleep(0.5)
        assert "new" in api.bound()
        assert world.cluster.gang_tracker.counts("ns/g").bound == 2
        assert world.users() == 3


async def test_a_member_that_succeeded_counts_and_one_that_failed_does_not() -> None:
    world = filled(3)
    async with world.running() as api:
        await asyncio.sleep(1)
        world.end("m0")
        world.end("m1", "Failed")
        world.submit(member("new"))
        await asyncio.sleep(0.5)
        assert "new" in api.bound()
        world.end("m2", "Failed")
        world.end("new", "Failed")
        world.submit(member("newer"))
        await asyncio.sleep(5)
        assert api.messages("newer") == ["PodGroup ns/g: waiting for members: 2 of 3"]


async def test_a_refused_replacement_backs_off_and_costs_the_others_nothing() -> None:
    world = filled(2)
    async with world.running() as api:
        await asyncio.sleep(1)
        world.delete("m0")
        world.api.always["bind new"] = REFUSAL
        world.submit(member("new"))
        await asyncio.sleep(3 * TIMEOUT)
        assert sorted(api.bound()) == ["m1"]
    assert 7 <= len(api.bind_times("new")) <= 15
    assert api.deletions == []


# --- after a crash ------------------------------------------------------------------------------------------------


def restarted(before: World, *groups: Raw, cards: int = 8) -> World:
    """Return what a new leader reads after the end of the one before."""
    before.api.on_bound.clear()
    before.api.on_deleted.clear()
    world = World(api=before.api, policies=before.policies)
    for name in before.fleet.rows:
        world.add_node(name, cards=cards)
    relist(world.groups, list(groups))
    ended = [pod for pod in world.api.pods.values() if pod["status"].get("phase") in ("Succeeded", "Failed")]
    relist(world.pods, [pod for pod in world.api.pods.values() if pod not in ended])
    relist(world.ended, ended)
    return world


async def killed_while_it_binds(world: World, *unbound: str) -> None:
    """Run a leader until it has bound all pods but these, and end it."""
    for name in unbound:
        world.api.always[f"bind {name}"] = REFUSAL
    async with world.running():
        await asyncio.sleep(0.5)
        world.term = None
    world.api.always.clear()


@pytest.mark.parametrize("model", ["NVIDIA A100-SXM4-80GB", "Tesla T4"])
async def test_a_new_leader_completes_a_gang_with_cards_of_the_model_that_it_has(model: str) -> None:
    world = World()
    for name, of_node in (("a100", "NVIDIA A100-SXM4-80GB"), ("t4", "Tesla T4")):
        world.cluster.node_cache.put_node(node(name))
        world.cluster.node_cache.put_device(device(name, *(entry(minor, model=of_node) for minor in range(4))))
    where = "t4" if model == "Tesla T4" else "a100"
    relist(world.groups, [pod_group(minimum=4)])
    world.api.pods["m0"] = member("m0", on=where, allocated=whole(0))
    relist(world.pods, [world.api.pods["m0"]])
    world.submit(*(member(f"m{number}") for number in range(1, 4)))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert api.bound() == {f"m{number}": where for number in range(4)}
        world.submit(member("later"))
        await asyncio.sleep(1)
        assert "later" not in api.bound()


@pytest.mark.parametrize("phase", ["", "Running"])
async def test_a_new_leader_undoes_what_it_cannot_complete(phase: str) -> None:
    world = filled(4)
    await killed_while_it_binds(world, "m2", "m3")
    # A phase may be that of an earlier generation.
    world = restarted(world, pod_group(minimum=4, status={"phase": phase}), cards=3)
    async with world.running() as api:
        await asyncio.sleep(TIMEOUT - 2)
        assert sorted(api.bound()) == ["m0", "m1"]
        assert api.deletions == []
        await asyncio.sleep(5)
        assert world.users() == 0
        assert {name for _, name in api.deletions} == {"m0", "m1"}


async def test_two_half_bound_gangs_do_not_wait_for_each_other_forever() -> None:
    world = World()
    world.add_node(cards=6)
    world.submit(*(annotated(f"m{i}", "3") for i in range(3)))
    world.submit(*(annotated(f"n{i}", "3", "h", created="2026-01-02T00:00:00Z") for i in range(3)))
    await killed_while_it_binds(world, "m2", "n2")
    world.api.pods["other"] = pod("other", {NVIDIA: "2"}, on="node", allocated=whole(2, 5))
    world = restarted(world, cards=6)
    async with world.running() as api:
        await asyncio.sleep(TIMEOUT + 5)
        assert api.bound().keys() == {"other"}
        world.submit(*(annotated(name, "3", uid=f"new-{name}") for name in ("m0", "m1")))
        world.submit(*(annotated(name, "3", "h", uid=f"new-{name}") for name in ("n0", "n1")))
        await asyncio.sleep(15)
        assert sorted(api.bound()) == ["m0", "m1", "m2", "other"]


@pytest.mark.parametrize(
    ("protocol", "how", "reported"),
    [
        ("annotations", "failed", False),
        ("annotations", "deleted", True),
        ("Koordinator", "deleted", True),
        ("PodGroup", "deleted", True),
    ],
)
async def test_a_restart_leaves_alone_what_had_formed(protocol: str, how: str, reported: bool) -> None:
    world, made = World(), NEEDS_THREE[protocol]
    groups = [pod_group(minimum=3)] if protocol == "PodGroup" else []
    world.add_node(cards=3)
    relist(world.groups, groups)
    world.submit(*map(made, "abc"))
    async with world.running():
        await asyncio.sleep(75)
        lose(world, "a", how)
    for _ in range(2):
        world = restarted(world, *groups, cards=3)
        async with world.running() as api:
            await asyncio.sleep(3 * TIMEOUT)
    assert api.deletions == []
    # Only a member that is gone could show whether it had been bound.
    (note,) = api.events_of("b", "PodGroupUnknown") or [""]
    assert ("2 of 3 members of " in note and "nothing records" in note) == reported
    world = restarted(world, *groups, cards=3)
    world.submit(made("a2"))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert {"a2", "b", "c"} <= api.bound().keys()


async def test_what_a_status_says_to_have_formed_is_not_reported() -> None:
    world = filled(3)
    async with world.running():
        await asyncio.sleep(1)
        world.delete("m0")
    world = restarted(world, pod_group(minimum=3, status={"phase": "Running"}))
    async with world.running() as api:
        await asyncio.sleep(3 * TIMEOUT)
    assert api.deletions == []
    assert api.events_of("m1", "PodGroupUnknown") == []


async def test_a_gang_that_a_version_without_records_bound_is_kept() -> None:
    world = World()
    world.add_node(cards=2)
    for minor, name in enumerate(("m0", "m1")):
        world.api.pods[name] = annotated(name, "3", on="node", allocated=whole(minor))
    relist(world.pods, list(world.api.pods.values()))
    world.submit(annotated("m2", "3"))
    async with world.running() as api:
        await asyncio.sleep(3 * TIMEOUT)
        assert api.messages("m2")[-1].startswith("pod group ns/g: 0 of the 1 required members fit")
    assert api.deletions == []
    assert len(api.events_of("m0", "PodGroupUnknown")) == 1


async def test_a_member_that_a_person_put_on_a_node_is_not_deleted_and_forms_no_gang() -> None:
    world = World()
    world.add_node(cards=2)
    of_gang = {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "3"}
    world.submit(pod("launcher", {"cpu": "1"}, annotations=of_gang, on="node"))
    world.submit(annotated("m0", "3"), annotated("m1", "3"))
    world.api.always["bind m1"] = REFUSAL
    async with world.running() as api:
        await asyncio.sleep(TIMEOUT - 5)
        assert api.bound().keys() == {"launcher", "m0"}
        await asyncio.sleep(2 * TIMEOUT)
    assert {name for _, name in api.deletions} == {"m0"}


async def test_the_pods_of_other_schedulers_are_their_own_affair() -> None:
    world = World(schedulers=["berth"])
    world.add_node(cards=8)
    relist(world.groups, [pod_group(minimum=4)])
    world.pods.apply("ADDED", member("m0", on="node", allocated=whole(0), schedulerName="other"))
    async with world.running() as api:
        await asyncio.sleep(3 * TIMEOUT)
        assert now() > 100
    assert api.deletions == []


# --- gangs of controllers -----------------------------------------------------------------------------------------


def worker(number: int, **fields: Any) -> Raw:
    """Return a pod of one card of a LeaderWorkerSet's group of four."""
    labels = {f"{LWS}name": "vllm", f"{LWS}group-index": "0", f"{LWS}worker-index": str(number)}
    requests = fields.pop("requests", {NVIDIA: "1"})
    return pod(f"w{number}", requests, labels=labels, annotations={f"{LWS}size": "4"}, **fields)


async def test_the_pods_of_a_leader_worker_set_are_bound_together() -> None:
    world = World()
    world.add_node("n0", cards=2)
    leader = worker(0, requests={"cpu": "1"}, schedulerName="default-scheduler")
    world.submit(*(worker(number) for number in range(1, 4)))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.messages("w1")[-1] == "LeaderWorkerSet group ns/vllm-0: waiting for members: 3 of 4"
        # Another scheduler places the leader, which needs no device.
        world.cluster.put_bound({**leader, "spec": {**leader["spec"], "nodeName": "n0"}})
        await asyncio.sleep(5)
        assert api.messages("w1")[-1].startswith("LeaderWorkerSet group ns/vllm-0: 2 of the 3 required members fit")
        assert not api.bound()
        world.add_node("n1", cards=1)
        await asyncio.sleep(5)
    assert api.bound().keys() == {"w1", "w2", "w3"}


async def test_a_namespace_switches_the_gangs_of_controllers_off_and_on() -> None:
    world = World()
    world.add_node(cards=2)
    world.cluster.put_namespace("ns", {}, {names.CONTROLLER_GANGS: "false"})
    world.submit(worker(0))
    async with world.running() as api:
        await asyncio.sleep(1)
        assert api.bound().keys() == {"w0"}
        world.cluster.put_namespace("ns", {}, {})
        world.submit(worker(1))
        await asyncio.sleep(5)
        # The first one was placed alone, so the group is no gang that could be undone.
        assert api.bound().keys() == {"w0", "w1"}
        await asyncio.sleep(2 * TIMEOUT)
        assert api.deletes == []


async def test_waiting_pods_are_released_from_their_controllers_gang() -> None:
    world = World()
    world.add_node(cards=2)
    world.submit(*(worker(number) for number in range(4)))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert not api.bound()
        world.cluster.put_namespace("ns", {}, {names.CONTROLLER_GANGS: "false"})
        await asyncio.sleep(5)
    assert len(api.bound()) == 2


async def test_members_of_a_controllers_gang_are_never_deleted() -> None:
    world = World()
    world.add_node(cards=4)
    world.submit(*(worker(number) for number in range(4)))
    async with world.running() as api:
        api.always["bind w3"] = REFUSAL
        await asyncio.sleep(3 * TIMEOUT)
    assert api.deletes == []
    assert api.bound().keys() == {"w0", "w1", "w2"}


RAY: Raw = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "llm", "uid": "u", "controller": True}


def ray(name: str) -> Raw:
    return pod(name, {NVIDIA: "1"}, metadata={"ownerReferences": [RAY]})


def ray_cluster(replicas: int) -> Raw:
    """Return a RayCluster as its watch shows it."""
    spec = {"workerGroupSpecs": [{"replicas": replicas, "minReplicas": 0, "maxReplicas": 9}]}
    return gang_owners.read(
        OWNED["RayCluster"], {"metadata": {"namespace": "ns", "name": "llm", "uid": "u"}, "spec": spec}
    )


async def test_the_pods_of_a_ray_cluster_are_bound_together_if_it_is_read() -> None:
    world = World()
    world.add_node(cards=4)
    async with world.running() as api:
        world.submit(ray("unread"))
        await asyncio.sleep(1)
        assert api.bound().keys() == {"unread"}
        world.delete("unread")
        await asyncio.sleep(1)
        dict(gang_owners.sources(world.cluster, {"ray.io"}))
        world.submit(ray("head"))
        await asyncio.sleep(5)
        assert api.messages("head")[-1] == "RayCluster ns/llm does not exist yet"
        world.cluster.put_owner("RayCluster", ray_cluster(2))
        world.submit(ray("w0"))
        await asyncio.sleep(5)
        assert api.messages("head")[-1] == "RayCluster ns/llm: waiting for members: 2 of 3"
        world.submit(ray("w1"))
        await asyncio.sleep(1)
        assert api.bound().keys() == {"head", "w0", "w1"}
        # A worker that an autoscaler adds is placed alone.
        world.submit(ray("w2"))
        await asyncio.sleep(1)
    assert api.bound().keys() == {"head", "w0", "w1", "w2"}


async def test_pods_of_a_controller_that_may_start_alone_are_no_gang() -> None:
    world = World()
    world.add_node(cards=1)
    dict(gang_owners.sources(world.cluster, {"ray.io"}))
    world.cluster.put_owner("RayCluster", ray_cluster(2))
    world.submit(ray("head"), ray("w0"), ray("w1"))
    async with world.running() as api:
        await asyncio.sleep(5)
        assert not api.bound()
        world.cluster.put_owner("RayCluster", ray_cluster(0))
        await asyncio.sleep(5)
        assert len(api.bound()) == 1
        world.cluster.remove_owner("RayCluster", "ns/llm")
        await asyncio.sleep(5)
    assert api.deletes == []
