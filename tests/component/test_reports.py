"""What users are told: once, in time, and never what is no longer so."""

import asyncio
from itertools import pairwise

import pytest

from berth_operator.binding.calm import PATIENCE
from berth_operator.clients.kube import Unreachable
from berth_operator.core.cycle import Failure, Placement
from berth_operator.core.verdict import Change
from tests.builders import NVIDIA, condition, grant, pod, waiting
from tests.component.world import LostError, World, refusal

pytestmark = pytest.mark.looptime


def failure(message: str) -> Failure:
    return Failure(message=message, wakes_on=Change(0))


NO_DEVICE = "0/1 nodes available: 1 no Device"


# --- Scheduled --------------------------------------------------------------------------------------------------


async def test_a_bound_pod_gets_one_event_that_names_its_cards() -> None:
    world = World()
    world.add_node(cards=2)
    world.submit(pod("a", {NVIDIA: "2"}))
    async with world.running() as api:
        await asyncio.sleep(30)
    ((at, event),) = api.events
    assert at < 10
    assert event["note"] == "Successfully assigned ns/a to node with gpu 0, gpu 1"
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "Scheduled", "Binding")
    assert (event["reportingController"], event["reportingInstance"]) == ("berth-scheduler", "me")
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "a", "uid": "uid-a"}
    assert event["metadata"]["name"] == "a.uid-a"


async def test_a_pod_without_devices_is_told_its_node() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a"))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.events_of("a", "Scheduled") == ["Successfully assigned ns/a to node"]


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param([LostError("lost")], id="lost answer"),
        pytest.param([Unreachable("x"), refusal(500), refusal(503)], id="busy server"),
    ],
)
async def test_the_event_of_a_bind_is_stored_exactly_once(faults: list[Exception]) -> None:
    world = World()
    world.add_node()
    world.submit(pod("a"))
    world.api.faults["event a"] = faults
    async with world.running() as api:
        await asyncio.sleep(30)
    assert len(api.events_of("a", "Scheduled")) == 1


async def test_events_let_binds_go_first() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a"), pod("b"))
    world.api.faults["bind a"] = [Unreachable("x")] * 3
    async with world.running() as api:
        await asyncio.sleep(30)
    assert len(api.events) == 2
    assert min(at for at, _ in api.events) > max(at for at, _, _ in api.binds)


async def test_events_do_not_wait_for_ever_for_binds() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a"), pod("b"))
    world.api.always["bind a"] = Unreachable("x")
    async with world.running() as api:
        await asyncio.sleep(30)
    ((at, event),) = api.events
    assert event["regarding"]["name"] == "b"
    assert PATIENCE <= at < 10


async def test_an_event_that_the_server_does_not_want_is_given_up() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a"), pod("b"))
    world.api.always["event a"] = refusal(422)
    async with world.running() as api:
        await asyncio.sleep(30)
    assert api.events_of("a", "Scheduled") == []
    assert len(api.events_of("b", "Scheduled")) == 1


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        pytest.param("a" * 253, "a" * 200, id="long"),
        pytest.param("a" * 199 + "-b", "a" * 199, id="cut at a dash"),
        pytest.param("a" * 198 + ".-b", "a" * 198, id="cut at a dot"),
    ],
)
async def test_an_events_name_is_one_that_the_server_takes(name: str, stem: str) -> None:
    world = World()
    async with world.running() as api:
        world.reporter.scheduled(Placement(pod=waiting(name, uid="u"), node="node"))
        await asyncio.sleep(1)
    assert api.events[0][1]["metadata"]["name"] == f"{stem}.u"


async def test_each_mistake_in_the_configuration_is_told_once_by_our_own_pod() -> None:
    world = World()
    async with world.running() as api:
        for problem in ("a.yaml: first", "a.yaml: first", "a.yaml: second", "a.yaml: first"):
            world.reporter.misconfigured("berth/operator-0/uid", problem)
            await asyncio.sleep(60)
    assert api.events_of("operator-0", "ConfigurationRefused") == [
        "The last valid configuration stays in use: a.yaml: first",
        "The last valid configuration stays in use: a.yaml: second",
    ]
    _, event = api.events[0]
    assert (event["type"], event["reportingController"]) == ("Warning", "berth-operator")
    assert event["metadata"]["namespace"] == event["regarding"]["namespace"] == "berth"
    assert event["regarding"]["uid"] == "uid"


async def test_a_long_note_is_cut_to_what_an_event_holds() -> None:
    world = World()
    grants = tuple(grant(minor, ratio=100) for minor in range(256))
    async with world.running() as api:
        world.reporter.scheduled(Placement(pod=waiting("a"), node="node", grants=grants))
        world.reporter.unschedulable(waiting("b"), failure("é" * 1000))
        await asyncio.sleep(1)
    notes = {event["regarding"]["name"]: event["note"] for _, event in api.events}
    assert len(notes["a"].encode()) == 1024
    assert notes["b"] == "é" * 512


# --- FailedScheduling -------------------------------------------------------------------------------------------


async def test_a_pod_that_fits_nowhere_gets_a_condition_and_an_event() -> None:
    world = World()
    world.cluster.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(30)
    ((_, _, told),) = api.patches
    assert (told["type"], told["status"], told["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert told["message"] == NO_DEVICE
    assert "lastTransitionTime" in told
    assert api.events_of("a", "FailedScheduling") == [NO_DEVICE]


def pod_free_node() -> dict[str, object]:
    return {"metadata": {"name": "node", "uid": "u"}, "status": {"allocatable": {"pods": "110"}}}


async def test_an_unchanged_reason_is_never_told_twice() -> None:
    world = World()
    world.cluster.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        for _ in range(50):
            world.cluster.changed(Change.DEVICE)
            await asyncio.sleep(1)
    assert len(api.patches) == 1
    assert len(api.events) == 1


async def test_a_reason_that_the_pod_carries_already_is_not_told_after_a_restart() -> None:
    world = World()
    world.cluster.put_node(pod_free_node())
    told = condition("PodScheduled", "False", message=NO_DEVICE)
    world.submit(pod("a", {NVIDIA: "1"}, status={"conditions": [told]}))
    async with world.running() as api:
        await asyncio.sleep(30)
    assert api.patches == []
    assert api.events == []


async def test_a_condition_that_stands_keeps_its_time() -> None:
    world = World()
    async with world.running() as api:
        world.reporter.unschedulable(waiting("a", said="another reason"), failure("this"))
        world.api.pods["a"] = pod("a")
        await asyncio.sleep(1)
    ((_, _, told),) = api.patches
    assert "lastTransitionTime" not in told


async def test_another_reason_is_told_at_once() -> None:
    world = World()
    world.api.pods["a"] = pod("a")
    async with world.running() as api:
        for message in ("first", "second", "first"):
            world.reporter.unschedulable(waiting("a"), failure(message))
            await asyncio.sleep(1)
    assert api.messages("a") == ["first", "second", "first"]


async def test_changed_counts_are_told_at_most_every_ten_seconds_and_the_last_of_them_is() -> None:
    world = World()
    world.api.pods["a"] = pod("a")
    async with world.running() as api:
        for i in range(35):
            world.reporter.unschedulable(waiting("a"), failure(f"0/{i} nodes available: {i} not ready"))
            await asyncio.sleep(1)
        await asyncio.sleep(30)
    times = [at for at, _, _ in api.patches]
    assert len(times) == 5
    assert all(later - earlier > 9.99 for earlier, later in pairwise(times))
    assert api.messages("a")[-1] == "0/34 nodes available: 34 not ready"


async def test_counts_that_change_back_in_time_are_not_told() -> None:
    world = World()
    world.api.pods["a"] = pod("a")
    async with world.running() as api:
        for message in ("1 not ready", "2 not ready", "1 not ready"):
            world.reporter.unschedulable(waiting("a"), failure(message))
            await asyncio.sleep(1)
        await asyncio.sleep(30)
    assert api.messages("a") == ["1 not ready"]


async def test_a_pod_that_waits_no_more_is_told_nothing_more() -> None:
    world = World()
    world.api.pods["a"] = pod("a")
    async with world.running() as api:
        world.reporter.unschedulable(waiting("a"), failure("1 not ready"))
        await asyncio.sleep(1)
        world.reporter.unschedulable(waiting("a"), failure("2 not ready"))
        world.reporter.dismiss("uid-a")
        await asyncio.sleep(30)
    assert api.messages("a") == ["1 not ready"]


async def test_a_late_word_does_not_undo_a_newer_one() -> None:
    world = World()
    world.api.pods["a"] = pod("a")
    world.api.faults["condition a"] = [Unreachable("x")]
    async with world.running() as api:
        world.reporter.unschedulable(waiting("a"), failure("old"))
        await asyncio.sleep(0.5)
        world.reporter.unschedulable(waiting("a"), failure("new"))
        await asyncio.sleep(30)
    assert api.messages("a") == ["new"]


async def test_a_late_word_does_not_land_on_a_bound_pod() -> None:
    world = World()
    world.cluster.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["condition a"] = [Unreachable("x")]
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.add_node()
        await asyncio.sleep(30)
    assert api.bound() == {"a": "node"}
    assert api.messages("a") == []


async def test_a_condition_that_was_lost_is_told_with_the_next_decision() -> None:
    world = World()
    world.cluster.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.always["condition a"] = Unreachable("x")
    async with world.running() as api:
        await asyncio.sleep(30)
        assert api.messages("a") == []
        del world.api.always["condition a"]
        world.cluster.changed(Change.DEVICE)
        await asyncio.sleep(5)
    assert api.messages("a") == [NO_DEVICE]


async def test_a_pod_made_again_is_told_anew() -> None:
    world = World()
    world.cluster.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.delete("a")
        world.submit(pod("a", {NVIDIA: "1"}, uid="new"))
        await asyncio.sleep(1)
    assert api.messages("a") == [NO_DEVICE, NO_DEVICE]


async def test_a_request_that_means_nothing_is_told_on_the_pod() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {"kubernetes.io/gpu": "150"}))
    async with world.running() as api:
        await asyncio.sleep(5)
    (message,) = api.messages("a")
    assert message.startswith("invalid request: kubernetes.io/gpu: 150; allowed are 1 to 100")
    assert api.events_of("a", "FailedScheduling") == [message]
