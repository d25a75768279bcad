"""Decisions become Bindings, for every answer of the API server."""

import asyncio
from itertools import pairwise

import orjson
import pytest

from berth_api import names
from berth_client.errors import ApiError, Unreachable
from berth_operator.binding.scheduler import MAX_BINDS
from berth_operator.state.cache import raised_sums
from berth_operator.state.cache.unknown_allocations import KUBELET_SECONDS
from tests.component.world import LATENCY, LostError, World, now, refusal
from tests.objects.builders import CORE, GPU, NVIDIA, OFFERED, RATIO, device, entry, half, node, pod, relist

pytestmark = pytest.mark.looptime


async def test_a_pod_is_bound_with_its_cards_in_one_call() -> None:
    world = World()
    world.add_node(cards=2)
    world.submit(pod("a", {NVIDIA: "2"}))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.bound() == {"a": "node"}
    ((_, _, binding),) = api.binds
    assert binding["metadata"]["uid"] == "uid-a"
    assert binding["metadata"]["labels"] == {names.FENCED_BY: "berth"}
    annotations = api.pods["a"]["metadata"]["annotations"]
    assert annotations[names.EPOCH] == "1"
    assert annotations["main.devices.berth.dev/visible"] == "GPU-0,GPU-1"
    assert [each["minor"] for each in orjson.loads(annotations[names.ALLOCATED])["gpu"]] == [0, 1]
    assert world.users() == 2
    assert len(world.cluster.queue) == 0


async def test_binds_are_concurrent_and_decisions_see_each_other() -> None:
    world = World()
    world.add_node(cards=8)
    world.submit(*(pod(f"p{i}", {GPU: "50"}) for i in range(16)))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert len(api.bound()) == 16
    assert api.most_under_way == 16
    minors = [
        orjson.loads(each["metadata"]["annotations"][names.ALLOCATED])["gpu"][0]["minor"] for each in api.pods.values()
    ]
    assert sorted(minors) == sorted([*range(8), *range(8)])


async def test_pods_are_bound_once_kubelet_knows_the_sums_that_the_operator_has_just_raised() -> None:
    """kubelet admits pods by what its own watch of the Node has shown, and ends those beyond it."""
    world = World()
    tenths = {f"p{number}": pod(f"p{number}", {GPU: "10"}) for number in range(MAX_BINDS + 10)}
    world.cluster.node_cache.put_node(node(sums={GPU: "20"}, allocatable={"pods": "999"}))
    world.cluster.node_cache.put_device(device("node", *(entry(minor) for minor in range(40))))
    world.submit(*tenths.values())
    async with world.running() as api:
        await asyncio.sleep(1)
        assert len(api.bound()) == 2
        raised = now()
        raised_node = node(sums={GPU: "4000"}, offered={**OFFERED, NVIDIA: 2000}, allocatable={"pods": "999"})
        world.cluster.node_cache.put_node(raised_node)
        world.submit(pod("cpu", {"cpu": "1"}), pod("card", {NVIDIA: "1"}))
        await asyncio.sleep(0.5)
        assert set(api.bound()) - set(tenths) == {"cpu", "card"}, "kubelet knows its own resources"
        assert len(api.bound()) == 4
        await asyncio.sleep(1)
        assert set(api.bound()) == {"cpu", "card", *tenths}
        assert min(when for when, name, _ in api.binds[2:] if name in tenths) >= raised + raised_sums.SECONDS


async def test_pods_do_not_wait_on_a_node_that_has_shown_its_sums_for_long() -> None:
    world = World()
    world.cluster.node_cache.put_node(node(sums={GPU: "100"}))
    world.cluster.node_cache.put_device(device("node", entry()))
    async with world.running() as api:
        for sums in ({GPU: "200"}, {GPU: "100"}):
            world.cluster.node_cache.put_node(node(sums=sums))
            await asyncio.sleep(raised_sums.SECONDS + LATENCY)
        world.submit(pod("a", {GPU: "100"}))
        await asyncio.sleep(5 * LATENCY)
        assert api.bound() == {"a": "node"}


async def test_a_conflict_with_our_own_decision_is_success() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [LostError("the answer got lost")]
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.bound() == {"a": "node"}
    assert len(api.binds) == 2
    assert world.users() == 1
    assert len(api.events_of("a", "Scheduled")) == 1


async def test_a_conflict_is_success_before_the_watch_shows_it() -> None:
    world = World(watch=False)
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [LostError("the answer got lost")]
    async with world.running() as api:
        await asyncio.sleep(5)
    assert world.users() == 1
    assert len(api.binds) == 2
    assert len(api.events_of("a", "Scheduled")) == 1


@pytest.mark.parametrize(
    ("node", "annotations"),
    [
        pytest.param("elsewhere", {}, id="on another node"),
        pytest.param("node", {}, id="on our node, without our cards"),
        pytest.param("node", {names.ALLOCATED: "{}"}, id="on our node, with other cards"),
    ],
)
async def test_a_conflict_with_anothers_decision_is_forgotten(node: str, annotations: dict[str, str]) -> None:
    world = World(watch=False)
    world.add_node()
    raw = pod("a", {NVIDIA: "1"})
    world.submit(raw)
    raw["spec"]["nodeName"] = node
    raw["metadata"]["annotations"] = annotations
    async with world.running() as api:
        await asyncio.sleep(0.5)
    assert world.users() == 0
    assert api.events_of("a", "Scheduled") == []


@pytest.mark.parametrize("is_bound", [False, True])
async def test_a_conflict_over_a_pod_made_again_is_forgotten(*, is_bound: bool) -> None:
    world = World(watch=False)
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(0.5)
    allocated = api.pods["a"]["metadata"]["annotations"]
    world = World(watch=False)
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [refusal(409, "Precondition failed: UID in precondition: uid-a")]
    world.api.pods["a"] = pod("a", {NVIDIA: "1"}, uid="new")
    if is_bound:
        world.api.pods["a"]["spec"]["nodeName"] = "node"
        world.api.pods["a"]["metadata"]["annotations"] = allocated
    async with world.running() as api:
        await asyncio.sleep(0.5)
    assert world.users() == 0
    assert api.events_of("a", "Scheduled") == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Unreachable("no answer"), id="no answer"),
        pytest.param(refusal(500), id="server error"),
    ],
)
async def test_a_conflict_that_cannot_be_looked_into_is_asked_again(fault: Exception) -> None:
    world = World(watch=False)
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults = {"bind a": [LostError("lost")], "get a": [fault, fault]}
    async with world.running() as api:
        await asyncio.sleep(5)
    assert len(api.binds) == 4
    assert world.users() == 1


async def test_a_pod_that_is_gone_frees_its_card() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}), pod("b", {NVIDIA: "1"}, created="2026-01-02T00:00:00Z"))
    del world.api.pods["a"]
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.pods.apply("DELETED", pod("a"))
        await asyncio.sleep(60)
    assert api.bound() == {"b": "node"}
    assert api.bind_times("a") == [0.0]
    assert world.users() == 1


async def test_a_pod_that_is_gone_while_a_conflict_is_looked_into_frees_its_card() -> None:
    world = World(watch=False)
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults = {"bind a": [refusal(409)], "get a": [refusal(404)]}
    async with world.running():
        await asyncio.sleep(0.5)
    assert world.users() == 0


WEBHOOK = 'admission webhook "no.example.com" denied the request: no'


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (refusal(403, "exceeded quota: q, requested: count/x=1"), [1, 2, 4, 8, 10, 10, 10, 10]),
        (refusal(409, "modified"), [1, 2, 4, 8, 10, 10, 10, 10]),
        (refusal(422, WEBHOOK), [1, 2, 4, 8, 16, 32, 60]),
        (refusal(404, WEBHOOK), [1, 2, 4, 8, 16, 32, 60]),
    ],
)
async def test_a_refused_pod_backs_off_longer_each_time(answer: ApiError, expected: list[float]) -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = answer
    async with world.running() as api:
        await asyncio.sleep(sum(expected) + 5)
    pauses = [later - earlier for earlier, later in pairwise(api.bind_times("a"))]
    assert pauses == pytest.approx(expected, abs=0.2)
    assert api.events_of("a", "FailedBinding") == [answer.message]
    assert api.messages("a") == [answer.message]


async def test_a_refusal_is_reported_once_in_the_servers_words() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = refusal(message="exceeded quota")
    async with world.running() as api:
        await asyncio.sleep(60)
    assert api.events_of("a", "FailedBinding") == ["exceeded quota"]
    assert [condition["reason"] for _, _, condition in api.patches] == ["SchedulerError"]


async def test_a_refused_pod_starves_no_other() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}, priority=1000))
    world.api.always["bind a"] = refusal()
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.submit(pod("b", {NVIDIA: "1"}))
        await asyncio.sleep(0.5)
    assert api.bound() == {"b": "node"}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Unreachable("no answer"), id="no answer"),
        pytest.param(refusal(500, "etcd"), id="server error"),
        pytest.param(refusal(504, "timeout"), id="gateway"),
    ],
)
async def test_without_an_answer_the_same_binding_is_sent_until_there_is_one(fault: Exception) -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [fault] * 8
    async with world.running() as api:
        await asyncio.sleep(5)
        assert world.users() == 1
        await asyncio.sleep(20)
    assert api.bound() == {"a": "node"}
    assert len(api.binds) == 9
    assert all(binding == api.binds[0][2] for _, _, binding in api.binds)
    pauses = [later - earlier - LATENCY for earlier, later in pairwise(api.bind_times("a"))]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], abs=0.02)


async def test_a_card_whose_bind_has_no_answer_goes_to_no_other_pod() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = Unreachable("no answer")
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(pod("b", {NVIDIA: "1"}, priority=1000, preemptionPolicy="Never"))
        await asyncio.sleep(60)
        assert api.bind_times("b") == []
        del world.api.always["bind a"]
        await asyncio.sleep(5)
    assert api.bound() == {"a": "node"}


async def test_a_lost_term_ends_everything() -> None:
    world = World()
    world.add_node(cards=2)
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = Unreachable("no answer")
    async with world.running() as api:
        await asyncio.sleep(1)
        sent = len(api.binds)
        world.term = None
        world.submit(pod("b", {NVIDIA: "1"}))
        await asyncio.sleep(60)
        assert len(api.binds) == sent
        assert now() > 60


async def test_a_new_term_is_not_the_old_one() -> None:
    world = World()
    world.add_node()
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.term = 2
        world.submit(pod("a", {NVIDIA: "1"}))
        await asyncio.sleep(60)
    assert api.binds == []


async def test_without_a_term_nothing_is_sent() -> None:
    world = World()
    world.term = None
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(60)
    assert api.binds == []


NO_PARAMS = f"ValidatingAdmissionPolicy '{names.FENCE}-epoch' denied request: no params found"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(refusal(422, NO_PARAMS), id="fence"),
        pytest.param(refusal(500, 'failed calling webhook "x.example.com": timeout'), id="webhook"),
        pytest.param(
            refusal(500, 'admission webhook "x.example.com" denied the request: no'), id="denied by a webhook"
        ),
        pytest.param(refusal(500, "etcdserver: request is too large"), id="too large for etcd"),
    ],
)
async def test_refusal_by_admission_is_reported_and_the_pod_is_tried_again(answer: ApiError) -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [answer, answer]
    async with world.running() as api:
        await asyncio.sleep(0.5)
        assert api.events_of("a", "FailedBinding") == [answer.message]
        assert [condition["status"] for _, _, condition in api.patches] == ["False"]
        assert world.users() == 0
        await asyncio.sleep(10)
        assert api.bound() == {"a": "node"}


async def test_refusal_that_comes_after_the_term_is_not_reported() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = refusal(403, f"{names.FENCE}-epoch denied request: epoch 1 is over")
    world.api.latency = 2.0
    async with world.running() as api:
        await asyncio.sleep(1)
        world.term = None
        await asyncio.sleep(5)
    assert len(api.binds) == 1
    assert (api.events, api.patches) == ([], [])


async def test_an_ending_process_waits_for_the_answers_to_its_binds() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.latency = 2.0
    async with world.running():
        await asyncio.sleep(0.1)
    assert world.api.bound() == {"a": "node"}
    assert await world.scheduler.drain()


async def test_an_ending_process_does_not_wait_forever() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.latency = 1000.0
    async with world.running():
        await asyncio.sleep(0.1)
    assert now() < 10
    assert not await world.scheduler.drain()


async def test_a_binding_that_was_given_up_may_still_be_on_its_way() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = Unreachable("no answer")
    async with world.running():
        await asyncio.sleep(0.5)
        world.term = None
    assert not await world.scheduler.drain()


async def test_a_refusal_after_a_lost_answer_does_not_free_the_card_of_a_bound_pod() -> None:
    world = World(watch=False)
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}), pod("b", {NVIDIA: "1"}, created="2026-01-02T00:00:00Z"))
    world.api.faults["bind a"] = [LostError("lost"), refusal(422, "denied")]
    async with world.running() as api:
        await asyncio.sleep(30)
    assert api.bound() == {"a": "node"}
    assert len(api.binds) == 2
    assert len(api.events_of("a", "Scheduled")) == 1
    assert world.users() == 1


async def test_a_refusal_after_a_server_error_is_reported_and_the_pod_is_tried_again() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [refusal(500), *[refusal(422, "denied")] * 45]
    async with world.running() as api:
        await asyncio.sleep(30)
        assert api.events_of("a", "FailedBinding") == ["denied"]
        await asyncio.sleep(180)
    assert api.bound() == {"a": "node"}


@pytest.mark.parametrize("status", [403, 409])
async def test_a_refusal_does_not_free_the_card_while_an_earlier_binding_may_still_be_executed(status: int) -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}), pod("b", {NVIDIA: "1"}, created="2026-01-02T00:00:00Z"))
    world.api.faults["bind a"] = [Unreachable("no answer"), *[refusal(status, "denied")] * 60]
    async with world.running() as api:
        await asyncio.sleep(70)
        # The request that had no answer has waited for a webhook of another API server until now.
        assert api.bound() == {}
        _, _, first = api.binds[0]
        api.faults.clear()
        await api.bind("ns", "a", first)
        await asyncio.sleep(30)
    assert api.bound() == {"a": "node"}
    assert world.users() == 1


async def test_a_webhook_that_refuses_with_a_conflict_is_reported_on_the_pod() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = refusal(409, "denied: the team has no budget")
    async with world.running() as api:
        await asyncio.sleep(30)
    assert set(api.events_of("a", "FailedBinding")) == {"denied: the team has no budget"}
    assert world.users() == 0


async def test_a_conflict_of_a_pod_that_is_being_deleted_is_no_refusal() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"], world.api.latency = refusal(409, "no"), 1.0
    async with world.running() as api:
        await asyncio.sleep(0.5)
        # The watch has not shown it yet.
        api.pods["a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await asyncio.sleep(30)
    assert api.events_of("a", "FailedBinding") == []
    assert world.users() == 0


# --- many at once -----------------------------------------------------------------------------------------------


async def test_a_bounded_number_of_binds_is_under_way() -> None:
    world = World()
    world.add_node(cards=0, allocatable={"pods": "1000"})
    world.submit(*(pod(f"p{i}") for i in range(600)))
    async with world.running() as api:
        await asyncio.sleep(5)
    assert api.most_under_way == MAX_BINDS
    assert len(api.bound()) == 600


async def test_bindings_that_always_fail_delay_no_other_pod() -> None:
    world = World()
    world.add_node(cards=0, allocatable={"pods": "1000"})
    stuck = [f"p{i}" for i in range(2 * MAX_BINDS)]
    world.api.always = dict.fromkeys((f"bind {name}" for name in stuck), refusal(500, "a server error"))
    async with world.running() as api:
        world.submit(*map(pod, stuck))
        await asyncio.sleep(60)
        world.submit(pod("other"))
        await asyncio.sleep(1)
        assert api.bound() == {"other": "node"}
        assert api.events_of("other", "Scheduled")
        assert world.cluster.clock() - world.scheduler.turn_at <= 1
        assert {name for _, name, _ in api.patches} == set(stuck)
        assert world.cluster.placements.in_flight() == [f"uid-{name}" for name in stuck]
        world.api.always.clear()
        await asyncio.sleep(5)
    assert len(api.bound()) == len(stuck) + 1
    assert api.most_under_way <= MAX_BINDS


async def test_a_gang_whose_bindings_always_fail_delays_no_other_pod() -> None:
    world = World()
    world.add_node(cards=0, allocatable={"pods": "1000"})
    stuck = [f"p{i}" for i in range(MAX_BINDS)]
    world.api.always = dict.fromkeys((f"bind {name}" for name in stuck), refusal(500, "a server error"))
    of_gang = {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: str(MAX_BINDS)}
    world.submit(*(pod(name, annotations=of_gang) for name in stuck))
    async with world.running() as api:
        await asyncio.sleep(10)
        assert len(world.cluster.placements.in_flight()) == MAX_BINDS
        world.submit(pod("other"))
        await asyncio.sleep(1)
        assert api.bound() == {"other": "node"}


async def test_a_lasting_server_error_is_reported_while_the_card_stays_charged() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["bind a"] = refusal(500, "a server error")
    async with world.running() as api:
        await asyncio.sleep(60)
        assert api.events_of("a", "FailedBinding") == ["a server error"]
        assert [(condition["reason"], condition["message"]) for _, _, condition in api.patches] == [
            ("SchedulerError", "a server error")
        ]
        assert world.users() == 1
        world.delete("a")
        world.api.always["bind a"] = refusal(404)
        await asyncio.sleep(5)
    assert world.users() == 0


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([refusal(500)] * 2, id="two server errors"),
        pytest.param([Unreachable("no answer")] * 8, id="no answer"),
    ],
)
async def test_a_failure_that_may_end_soon_is_not_reported(faults: list[Exception]) -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = faults
    async with world.running() as api:
        await asyncio.sleep(30)
    assert api.bound() == {"a": "node"}
    assert api.patches == []


async def test_a_pod_that_is_bound_is_not_reported_though_its_binding_gets_server_errors() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [LostError("lost"), *[refusal(500)] * 8]
    async with world.running() as api:
        await asyncio.sleep(30)
    assert api.bound() == {"a": "node"}
    assert api.patches == []


async def test_a_pod_that_changes_while_all_binds_are_busy_is_decided_once_and_by_its_newest_form() -> None:
    world = World()
    world.add_node(cards=1, allocatable={"pods": "1000"})
    world.api.latency = 1.0
    world.submit(*(pod(f"p{i}", priority=1) for i in range(MAX_BINDS)), pod("last", {GPU: "50"}))
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.change(pod("last", {GPU: "50"}, labels={names.GENIUS_PRIORITY: "7"}))
        await asyncio.sleep(30)
    assert api.bind_times("last") == [1.0]
    assert world.users() == 1
    assert len(api.bound()) == MAX_BINDS + 1


async def test_a_pod_deleted_while_all_binds_are_busy_is_not_decided() -> None:
    world = World()
    world.add_node(cards=1, allocatable={"pods": "1000"})
    world.api.latency = 1.0
    world.submit(*(pod(f"p{i}", priority=1) for i in range(MAX_BINDS)), pod("last", {GPU: "200"}))
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.delete("last")
        await asyncio.sleep(30)
        world.add_node("new", cards=2)
        await asyncio.sleep(5)
    assert len(api.bound()) == MAX_BINDS
    assert "last" not in {name for _, name, _ in api.binds}


async def test_a_class_of_many_pods_costs_one_decision() -> None:
    world = World()
    world.add_node()
    world.submit(*(pod(f"p{i}", {NVIDIA: "2"}) for i in range(300)))
    fleet = world.fleet
    async with world.running() as api:
        await asyncio.sleep(0)
        await asyncio.sleep(5)
        one = fleet.looks
        assert one <= 4
        assert len({name for _, name, _ in api.patches}) == 300
        world.cluster.node_cache.remove_node("unknown")
        await asyncio.sleep(5)
        # No pod wakes, and the review of reasons decides the class once more.
        assert fleet.looks == 2 * one
        world.add_node("second")
        await asyncio.sleep(5)
    # The new node woke the pod; that decision refreshed its reasons.
    assert fleet.looks == 3 * one


# --- woken by what frees them -----------------------------------------------------------------------------------


async def test_a_pod_is_bound_as_soon_as_its_card_is_free() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.submit(pod("b", {NVIDIA: "1"}))
        await asyncio.sleep(100)
        assert api.bound() == {"a": "node"}
        world.delete("a")
        await asyncio.sleep(0.1)
    assert api.bound() == {"b": "node"}
    assert api.bind_times("b") == [101.0]


async def test_a_pod_with_unknown_devices_blocks_and_its_end_frees() -> None:
    world = World()
    world.add_node(cards=4)
    world.pods.apply("ADDED", pod("lost", {NVIDIA: "1"}, on="node"))
    world.api.pods["lost"] = pod("lost", {NVIDIA: "1"}, on="node")
    world.submit(pod("a", {GPU: "50"}))
    async with world.running() as api:
        await asyncio.sleep(KUBELET_SECONDS)
        world.cluster.unknown_allocations.report()
        await asyncio.sleep(5)
        assert api.bound() == {"lost": "node"}
        (note,) = api.events_of("lost", "AllocationUnknown")
        assert note.startswith("The pod requests gpu devices on node, but its allocation is missing")
        world.delete("lost")
        await asyncio.sleep(0.5)
    assert api.bound() == {"a": "node"}


async def test_a_deleted_pod_that_a_finalizer_keeps_blocks_until_its_agent_finds_its_end() -> None:
    world = World()
    world.add_node(cards=4)
    kept = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/stays"]}
    lost = pod("lost", {NVIDIA: "1"}, on="node", metadata=kept)
    world.pods.apply("ADDED", lost)
    world.api.pods["lost"] = lost
    world.submit(pod("a", {GPU: "50"}))
    async with world.running() as api:
        await asyncio.sleep(KUBELET_SECONDS)
        world.cluster.unknown_allocations.report()
        await asyncio.sleep(5)
        assert api.bound() == {"lost": "node"}
        (note,) = api.events_of("lost", "AllocationUnknown")
        assert note.endswith(
            "until the pod is gone, which finalizer example.com/stays prevents, or until the node's agent finds no "
            "process of it, and kubelet reports no device for it"
        )
        world.cluster.node_cache.put_device(device("node", *map(entry, range(4)), status={"stopped": ["uid-lost"]}))
        await asyncio.sleep(0.5)
    assert api.bound() == {"lost": "node", "a": "node"}


async def test_after_a_restart_what_pods_hold_is_not_given_again() -> None:
    world = World()
    world.add_node(cards=1)
    relist(world.pods, [pod("old", {GPU: "50"}, on="node", allocated=half())])
    world.submit(pod("a", {GPU: "50"}), pod("b", {GPU: "50"}))
    async with world.running() as api:
        await asyncio.sleep(5)
    assert api.bound() == {"a": "node"}


async def test_after_an_upgrade_pods_are_charged_for_what_would_now_be_refused() -> None:
    world = World()
    world.add_node(cards=1)
    hundredth = {"gpu": [{"minor": 0, "resources": {CORE: "1", RATIO: "1"}}]}
    relist(world.pods, [pod("old", {GPU: "1"}, on="node", allocated=hundredth)])
    world.submit(pod("whole", {GPU: "100"}), pod("rest", {GPU: "99"}), pod("new", {GPU: "1"}))
    async with world.running() as api:
        await asyncio.sleep(5)
    assert api.bound() == {"rest": "node"}
    assert api.messages("new")[-1].startswith("invalid request: kubernetes.io/gpu: 1; ")


async def test_a_pod_with_too_many_annotations_is_reported_and_its_siblings_are_bound() -> None:
    world = World()
    world.add_node(cards=2)
    world.submit(pod("crowded", {NVIDIA: "1"}, annotations={"big": "x" * 250 * 1024}), pod("b", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.bound() == {"b": "node"}
    assert api.messages("crowded") == [
        next(each for each in api.messages("crowded") if each.startswith("the allocation takes"))
    ]


async def test_a_mistake_in_a_bind_ends_the_scheduler() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["bind a"] = [ZeroDivisionError("a mistake")]
    with pytest.raises(ZeroDivisionError):
        await world.scheduler.run()
