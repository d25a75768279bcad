"""Events and conditions that users see: once, in time, and never outdated."""

import asyncio
import itertools
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_client.errors import ApiError, Unreachable
from berth_operator.binding.reports.events import MAX_QUEUED, Event, EventQueue, Subject
from berth_operator.binding.reports.in_flight_binds import PATIENCE, InFlightBinds
from berth_operator.binding.reports.waiting_pods import (
    CREDIT,
    LONG_SETTLE,
    MAX_HOLD,
    MAX_RETRY,
    QUIET,
    RATE,
    REFILL,
    SERIES,
    SETTLE,
    STABLE,
)
from berth_operator.core.decision.cycle import Failure, Placement
from berth_operator.core.values.verdict import Change
from tests.component.world import LostError, World, now, refusal
from tests.objects.builders import GPU, NVIDIA, Raw, condition, node, pod, waiting

pytestmark = pytest.mark.looptime


def failure(message: str) -> Failure:
    return Failure(message=message, wakes_on=Change(0))


NO_DEVICE = (
    "0/1 nodes are available: 1 node(s) have no Device. "
    "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
)


# --- Scheduled --------------------------------------------------------------------------------------------------


async def test_a_bound_pod_gets_one_event_that_names_its_cards() -> None:
    world = World()
    world.add_node(cards=2)
    world.submit(pod("a", {NVIDIA: "2"}))
    async with world.running() as api:
        await asyncio.sleep(30)
    ((at, event),) = api.events
    assert at < 10
    assert event["note"] == "Successfully assigned ns/a to node with GPU 0; GPU 1"
    assert (event["type"], event["reason"], event["action"]) == ("Normal", "Scheduled", "Binding")
    assert (event["reportingController"], event["reportingInstance"]) == ("berth-scheduler", "me")
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Pod", "namespace": "ns", "name": "a", "uid": "uid-a"}
    assert event["metadata"]["name"] == "a.uid-a"


async def test_a_pod_without_devices_gets_an_event_with_its_node() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a"))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.events_of("a", "Scheduled") == ["Successfully assigned ns/a to node"]


async def test_what_was_read_of_other_systems_words_is_said_once_on_the_controller() -> None:
    note = "nvidia.com/gpumem is read as 1 card of 3000 MiB"
    world = World()
    world.add_node(cards=1)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
    for name in ("a", "b", "alone"):
        manifest = pod(name, {"nvidia.com/gpumem": "3k"})
        manifest["metadata"]["ownerReferences"] = [] if name == "alone" else [owner]
        world.submit(manifest)
    async with world.running() as api:
        await asyncio.sleep(30)
    events = {event["metadata"]["name"]: event for _, event in api.events if event["reason"] == "WordsRead"}
    assert {event["note"] for event in events.values()} == {note}
    regarding = {"apiVersion": "batch/v1", "kind": "Job", "namespace": "ns", "name": "train", "uid": "uid-train"}
    assert events.pop("train.uid-train.words")["regarding"] == regarding
    assert list(events) == ["alone.uid-alone.words"]


async def test_what_is_asked_about_limits_is_in_the_event_and_in_the_condition() -> None:
    question = (
        f"container main: {GPU}: 100 in requests and 800 in limits; "
        "Berth allocates what is requested; did you mean 800 in both?"
    )
    world = World()
    world.add_node(cards=1)
    for name in "ab":
        main = {"name": "main", "resources": {"requests": {GPU: "100"}, "limits": {GPU: "800"}}}
        world.submit(pod(name, containers=[main]))
    async with world.running() as api:
        await asyncio.sleep(30)
    assert api.events_of("a", "Scheduled") == [f"Successfully assigned ns/a to node with GPU 0 ({question})"]
    [refusal] = set(api.events_of("b", "FailedScheduling"))
    assert refusal.startswith("0/1 nodes are available: 1 node(s) have too few free GPUs")
    assert question in refusal


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
    world.reporter.in_flight_binds.begin()
    async with world.running() as api:
        await asyncio.sleep(5)
        assert api.events == []
        world.reporter.in_flight_binds.end()
        await asyncio.sleep(1)
    assert len(api.events) == 2


async def test_events_do_not_wait_forever_for_binds() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a"), pod("b"))
    world.reporter.in_flight_binds.begin()
    async with world.running() as api:
        await asyncio.sleep(30)
    assert len(api.events) == 2
    assert all(PATIENCE <= at < 10 for at, _ in api.events)


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


async def test_each_mistake_in_the_configuration_is_reported_once_on_our_own_pod() -> None:
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


async def test_stale_metrics_are_reported_on_our_own_pod() -> None:
    world = World()
    async with world.running() as api:
        for since in ("10:00", "10:00", "11:00"):
            world.reporter.gpu_metrics_stale("berth/operator-0/uid", f"GPU metrics are stale since {since}")
            await asyncio.sleep(60)
    notes = [f"GPU metrics are stale since {since}" for since in ("10:00", "11:00")]
    assert api.events_of("operator-0", "GPUMetricsStale") == notes


async def test_a_long_note_is_cut_to_what_an_event_holds() -> None:
    world = World()
    world.api.pods["b"] = pod("b")
    async with world.running() as api:
        world.reporter.scheduled(Placement(pod=waiting("a"), node="node"), "GPU" * 1000)
        world.reporter.unschedulable(waiting("b"), failure("é" * 1000))
        await asyncio.sleep(1)
    notes = {event["regarding"]["name"]: event["note"] for _, event in api.events}
    assert len(notes["a"].encode()) == 1024
    assert notes["b"] == "é" * 512


# --- FailedScheduling -------------------------------------------------------------------------------------------


async def test_a_pod_that_fits_nowhere_gets_a_condition_and_an_event() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(30)
    ((_, _, reported),) = api.patches
    assert (reported["type"], reported["status"], reported["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert reported["message"] == NO_DEVICE
    assert "lastTransitionTime" in reported
    assert api.events_of("a", "FailedScheduling") == [NO_DEVICE]


def pod_free_node() -> dict[str, object]:
    return {"metadata": {"name": "node", "uid": "u"}, "status": {"allocatable": {"pods": "110"}}}


async def test_an_unchanged_reason_is_never_written_twice() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        for _ in range(50):
            world.cluster.waker.changed(Change.DEVICE)
            await asyncio.sleep(1)
    assert len(api.patches) == 1
    assert len(api.events) == 1


async def test_a_reason_that_the_pod_already_has_is_not_written_after_a_restart() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    reported = condition("PodScheduled", "False", reason="Unschedulable", message=NO_DEVICE)
    world.submit(pod("a", {NVIDIA: "1"}, status={"conditions": [reported]}))
    async with world.running() as api:
        await asyncio.sleep(30)
    assert api.patches == []
    assert api.events == []


async def test_a_condition_that_stands_keeps_its_time() -> None:
    world = World()
    async with world.running() as api:
        world.api.pods["a"] = pod("a")
        world.reporter.unschedulable(waiting("a", last_message="another reason"), failure("this"))
        await asyncio.sleep(SETTLE + 1)
    ((_, _, reported),) = api.patches
    assert "lastTransitionTime" not in reported


async def test_a_condition_states_the_generation_that_was_decided() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}, metadata={"generation": 3}))
    async with world.running() as api:
        await asyncio.sleep(1)
    ((_, _, reported),) = api.patches
    assert reported["observedGeneration"] == 3


async def test_a_condition_of_an_older_api_server_states_no_generation() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert "observedGeneration" not in api.patches[0][2]


async def test_the_message_of_scheduling_gates_is_no_report() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    gated = condition("PodScheduled", "False", reason="SchedulingGated", message="Scheduling is blocked")
    world.submit(pod("a", {NVIDIA: "1"}, status={"conditions": [gated]}))
    async with world.running() as api:
        await asyncio.sleep(1)
    assert api.messages("a") == [NO_DEVICE]


TAINT = {"key": "example.com/keep-off", "effect": "NoSchedule"}


@pytest.mark.parametrize("change", ["taint", "join", "device"])
async def test_a_condition_states_the_current_reason_though_the_change_helps_no_pod(change: str) -> None:
    world = World()
    world.add_node(cards=1)
    world.submit(pod("a", {NVIDIA: "2"}))
    async with world.running() as api:
        await asyncio.sleep(30)
        match change:
            case "taint":
                world.cluster.node_cache.put_node(node("node", taints=[TAINT]))
            case "join":
                world.cluster.node_cache.put_node(node("other", taints=[TAINT]))
            case "device":
                world.cluster.node_cache.remove_device("node")
        await asyncio.sleep(15)
    first, last = api.messages("a")
    assert "healthy" in first
    assert "node(s) have no Device" in last if change == "device" else "untolerated taint" in last


async def test_a_new_pod_of_a_parked_class_states_the_current_reason() -> None:
    world = World()
    world.add_node(cards=1)
    world.submit(pod("old", {NVIDIA: "2"}))
    async with world.running() as api:
        await asyncio.sleep(30)
        world.cluster.node_cache.put_node(node("node", taints=[TAINT]))
        await asyncio.sleep(1.5)  # the parked pod was decided again
        world.cluster.node_cache.put_node(node("node"))
        world.submit(pod("new", {NVIDIA: "2"}))
        await asyncio.sleep(15)
    assert not any("untolerated taint" in message for message in api.messages("new"))


async def test_every_class_states_the_current_reason_three_seconds_after_a_storm() -> None:
    world = World()
    world.add_node(cards=1)
    names = [f"p{number}" for number in range(150)]
    world.submit(*(pod(name, {NVIDIA: "2", "cpu": f"{number % 100 + 1}m"}) for number, name in enumerate(names)))
    async with world.running() as api:
        await asyncio.sleep(5)
        for flip in range(1, 162):
            world.cluster.node_cache.put_node(node("node", taints=[TAINT] if flip % 2 else []))
            await asyncio.sleep(0.25)
        await asyncio.sleep(3 - 0.25)
        stated = {"untolerated taint" in api.messages(name)[-1] for name in names}
    assert stated == {True}
    assert len(api.patches) <= 5 * 150


async def test_reasons_are_brought_up_to_date_within_a_twentieth_of_the_time() -> None:
    world = World(cpu=itertools.count(0.0, 0.05).__next__)  # what each decision takes
    world.add_node(cards=1)
    names = [f"p{number}" for number in range(200)]
    world.submit(*(pod(name, {NVIDIA: "2", "cpu": f"{number + 1}m"}) for number, name in enumerate(names)))
    async with world.running() as api:
        await asyncio.sleep(30)
        world.cluster.node_cache.put_node(node("node", taints=[TAINT]))
        await asyncio.sleep(10)
        stated = sum("untolerated taint" in api.messages(name)[-1] for name in names)
    # Half a second is saved, and 10 s save as much.
    assert 15 <= stated <= 25


async def test_nothing_is_decided_while_nothing_changes() -> None:
    world = World()
    world.add_node(cards=1)
    world.submit(pod("a", {NVIDIA: "2"}))
    async with world.running():
        await asyncio.sleep(30)
        looks = world.fleet.looks
        await asyncio.sleep(300)
        assert world.fleet.looks == looks


# --- how often --------------------------------------------------------------------------------------------------


def create_pods(world: World, count: int, prefix: str = "p") -> list[str]:
    """Create this many pods on the API server, and return their names."""
    names = [f"{prefix}{number}" for number in range(count)]
    world.api.pods |= {name: pod(name) for name in names}
    return names


def report_failure(world: World, names: Iterable[str], message: str, **fields: Any) -> None:
    for name in names:
        world.reporter.unschedulable(waiting(name, **fields), failure(message))


async def test_three_hundred_new_pods_are_reported_within_a_second() -> None:
    world = World()
    names = create_pods(world, 300)
    async with world.running() as api:
        report_failure(world, names, "x")
        await asyncio.sleep(1)
        assert {name for _, name, _ in api.patches} == set(names)
        await asyncio.sleep(1)
    assert len(api.events) == len(api.patches) == 300


async def test_new_pods_are_reported_within_a_second_in_a_storm_of_binds() -> None:
    world = World()
    names = create_pods(world, 300)
    async with world.running() as api:
        world.reporter.in_flight_binds.begin()
        report_failure(world, names, "x")
        await asyncio.sleep(1)
    assert len(api.patches) >= 300


async def test_more_pods_are_reported_at_two_hundred_a_second_and_never_faster_than_the_bucket() -> None:
    world = World()
    names = create_pods(world, 1200)
    async with world.running() as api:
        report_failure(world, names, "x")
        await asyncio.sleep(15)
    times = [at for at, _, _ in api.patches]
    assert len(times) == 1200
    assert times[-1] - times[0] <= 1200 / 200
    assert all(sum(at <= other < at + 1 for other in times) <= 2 * RATE + 1 for at in times[::100])


async def test_pods_that_were_never_reported_come_before_those_that_were() -> None:
    world = World()
    old, new = create_pods(world, 1000, "old"), create_pods(world, 100, "new")
    async with world.running() as api:
        report_failure(world, old, "first")
        await asyncio.sleep(30)
        report_failure(world, old, "second")
        await asyncio.sleep(SETTLE + 1.5)  # hundreds are through, and hundreds wait
        since = now()
        report_failure(world, new, "first")
        await asyncio.sleep(30)
    last_new = max(at for at, name, _ in api.patches if name.startswith("new"))
    assert last_new - since < 1.5
    assert sum(1 for at, name, _ in api.patches if name.startswith("old") and at > last_new) > 200


async def test_another_reason_is_written_once_it_has_stood_and_only_the_last_one() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        for message in ("first", "second", "third", "last"):
            report_failure(world, ["a0"], message)
            await asyncio.sleep(SETTLE - 0.1)
        since = now() - SETTLE + 0.1
        await asyncio.sleep(30)
    assert api.messages("a0") == ["first", "last"]
    assert SETTLE <= api.patched_at("a0")[-1] - since <= SETTLE + 0.1


async def test_a_reason_that_has_stood_for_long_is_replaced_soon() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(100)
        report_failure(world, ["a0"], "second")
        await asyncio.sleep(30)
    _, second = api.patched_at("a0")
    assert SETTLE <= second - 100 <= SETTLE + 1


async def test_another_reason_of_a_pod_whose_spec_changed_is_written_at_once() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        report_failure(world, ["a0"], "first", generation=1)
        await asyncio.sleep(1)
        report_failure(world, ["a0"], "second", generation=2)
        await asyncio.sleep(1)
    assert api.messages("a0") == ["first", "second"]
    assert [reported["observedGeneration"] for _, _, reported in api.patches] == [1, 2]


async def test_reasons_that_always_change_are_written_four_times_and_then_seldom_including_the_last() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        for i in range(100):
            report_failure(world, ["a0"], f"0/{i} nodes are available: {i} node(s) were not ready")
            await asyncio.sleep(1)
        await asyncio.sleep(15)
    times = api.patched_at("a0")
    assert CREDIT + 100 / MAX_HOLD - 1 <= len(times) <= CREDIT + 100 / REFILL + 1
    assert all(later - earlier <= MAX_HOLD + 2 for earlier, later in pairwise(times))
    assert api.messages("a0")[-1] == "0/99 nodes are available: 99 node(s) were not ready"


async def test_a_storm_costs_two_writes_a_pod_and_leaves_the_reason_of_its_end() -> None:
    world = World()
    names = create_pods(world, 50)
    async with world.running() as api:
        report_failure(world, names, "a taint")
        await asyncio.sleep(20)
        for flip in range(1, 162):
            report_failure(world, names, "a taint" if flip % 2 == 0 else "no card")
            await asyncio.sleep(0.25)
        await asyncio.sleep(15)
        assert {api.messages(name)[-1] for name in names} == {"no card"}
    assert len(api.patches) <= 2 * 50
    assert len(api.events) == 50
    assert len(api.series) <= 50


async def test_a_reason_that_returns_in_time_is_not_written() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        for message in ("1 node(s) were not ready", "2 node(s) were not ready", "1 node(s) were not ready"):
            report_failure(world, ["a0"], message)
            await asyncio.sleep(SETTLE - 0.1)
        await asyncio.sleep(30)
    assert api.messages("a0") == ["1 node(s) were not ready"]


async def test_a_state_that_changes_every_two_seconds_costs_few_writes_and_leaves_the_reason_of_its_end() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        for number in range(40):
            world.cluster.waker.record_change()
            report_failure(world, ["a0"], f"0/{number} nodes are available")
            await asyncio.sleep(2)
        await asyncio.sleep(LONG_SETTLE - 2 + 0.1)
    assert api.messages("a0")[-1] == "0/39 nodes are available"
    assert len(api.patches) <= CREDIT + 80 / REFILL + 1


@pytest.mark.parametrize(
    ("lasts", "written_after"),
    [
        pytest.param(STABLE + 1, STABLE, id="stable"),
        pytest.param(STABLE - 2, MAX_HOLD, id="alternating"),
    ],
)
async def test_while_the_state_never_stands_still_a_reason_is_written_once_it_has_lasted(
    lasts: float, written_after: float
) -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(20)
        for step in range(int(60 / 0.2)):
            world.cluster.waker.record_change()
            if step * 0.2 % lasts < 0.1:
                report_failure(world, ["a0"], f"reason {round(step * 0.2 / lasts)}")
            await asyncio.sleep(0.2)
        times = api.patched_at("a0")
    assert written_after <= times[1] - 20 <= written_after + 0.5
    assert all(later - earlier >= QUIET for earlier, later in pairwise(times))


async def test_a_reason_of_an_older_state_waits_for_the_next_decision() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(20)
        report_failure(world, ["a0"], "old")
        await asyncio.sleep(0.1)
        world.cluster.waker.record_change()
        await asyncio.sleep(1)
        report_failure(world, ["a0"], "new")
        await asyncio.sleep(1)
    assert api.messages("a0") == ["first", "new"]


async def test_conditions_are_written_before_the_counts_of_events() -> None:
    world = World()
    names = create_pods(world, 200)
    async with world.running() as api:
        report_failure(world, names, "first")
        await asyncio.sleep(30)
        report_failure(world, names, "second")
        await asyncio.sleep(15)
    assert len(api.series) == 200
    assert max(at for at, _, _ in api.patches) <= min(at for at, _ in api.series) + 0.1


async def test_a_report_in_flight_is_followed_by_the_latest_alone() -> None:
    world = World()
    create_pods(world, 1, "a")
    world.api.latency = 2.0
    async with world.running() as api:
        for generation in range(1, 20):
            report_failure(world, ["a0"], f"reason {generation}", generation=generation)
            await asyncio.sleep(0.1)
        await asyncio.sleep(30)
    assert api.messages("a0") == ["reason 1", "reason 19"]


async def test_nothing_is_kept_of_pods_that_wait_no_more() -> None:
    world = World()
    names = create_pods(world, 100)
    async with world.running():
        report_failure(world, names, "first")
        await asyncio.sleep(5)
        report_failure(world, names, "second")
        for name in names:
            world.reporter.dismiss(f"uid-{name}")
        # Its Binding was refused, since it had been deleted.
        world.reporter.refused(waiting("gone"), "no")
        await asyncio.sleep(30)
        assert world.reporter.waiting == 0


# --- series of Events -------------------------------------------------------------------------------------------


async def test_reasons_of_a_pod_make_one_series_of_events() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        for i in range(5):
            report_failure(world, ["a0"], f"reason {i}")
            await asyncio.sleep(20)
        assert api.counts("a0") == [2]  # the second is reported at once, and those after it are only counted
        await asyncio.sleep(SERIES)
    assert api.counts("a0") == [5]
    assert len(api.series) == 2
    assert api.events_of("a0", "FailedScheduling") == ["reason 0"]  # an Event's note cannot be changed
    assert api.events[0][1]["series"]["lastObservedTime"].endswith("Z")


async def test_a_series_ends_and_the_next_one_has_the_note_of_its_time() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        for message in ("first", "second"):
            report_failure(world, ["a0"], message)
            await asyncio.sleep(SERIES + 10)
    assert api.events_of("a0", "FailedScheduling") == ["first", "second"]
    assert api.series == []


async def test_refused_binds_and_failed_decisions_are_series_of_their_own() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        for _ in range(3):
            report_failure(world, ["a0"], "no card")
            await asyncio.sleep(20)
            world.reporter.refused(waiting("a0"), "no quota")
            await asyncio.sleep(20)
        await asyncio.sleep(SERIES)
    assert api.counts("a0") == [3, 3]
    assert len(api.events) == 2


async def test_a_series_whose_event_is_gone_is_recorded_again() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(20)
        api.events.clear()
        report_failure(world, ["a0"], "second")
        await asyncio.sleep(20)
    assert api.counts("a0") == [2]


async def test_an_event_whose_answer_got_lost_is_recorded_once() -> None:
    world = World()
    create_pods(world, 1, "a")
    world.api.faults["event a0"] = [LostError("lost")]
    async with world.running() as api:
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(20)
        report_failure(world, ["a0"], "second")
        await asyncio.sleep(20)
    assert api.counts("a0") == [2]


# --- failures ---------------------------------------------------------------------------------------------------


async def test_a_condition_is_tried_again_as_long_as_its_pod_waits() -> None:
    world = World()
    create_pods(world, 1, "a")
    world.api.always["condition a0"] = Unreachable("x")
    async with world.running() as api:
        report_failure(world, ["a0"], "reason")
        await asyncio.sleep(600)
        assert api.messages("a0") == []
        del world.api.always["condition a0"]
        await asyncio.sleep(MAX_RETRY + 1)
    assert api.messages("a0") == ["reason"]
    assert api.events_of("a0", "FailedScheduling") == ["reason"]


async def test_pods_that_cannot_be_written_delay_no_others() -> None:
    world = World()
    names = create_pods(world, 200)
    for name in names[:100]:
        world.api.always[f"condition {name}"] = refusal(403)
    async with world.running() as api:
        report_failure(world, names, "reason")
        await asyncio.sleep(2)
    assert len(api.patches) == 100


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_without_a_condition_the_event_shows_why_a_pod_waits(status: int) -> None:
    world = World()
    create_pods(world, 1, "a")
    answer = refusal(status, 'admission webhook "no.example.com" denied the request: no')
    world.api.always["condition a0"] = answer
    async with world.running() as api:
        report_failure(world, ["a0"], "reason")
        await asyncio.sleep(1)
        assert api.events_of("a0", "FailedScheduling") == ["reason"]
        refusal_text = world.reporter.refusal("uid-a0")
        assert refusal_text == f"its condition cannot be written, refused by webhook/no.example.com: {answer}"
        world.reporter.refused(waiting("a0"), answer.message, "node")
        assert world.reporter.refusal("uid-a0").startswith(
            f"decided for node, refused by webhook/no.example.com: {answer.message}; its condition cannot"
        )
        world.api.always.clear()
        await asyncio.sleep(MAX_RETRY + 1)
        assert api.messages("a0") == [answer.message]
        assert world.reporter.refusal("uid-a0").endswith(answer.message)


async def test_a_condition_that_was_refused_for_seconds_is_written_within_as_many() -> None:
    world = World()
    create_pods(world, 1, "a")
    world.api.always["condition a0"] = refusal(422, "ValidatingAdmissionPolicy 'strict' denied request: no")
    async with world.running() as api:
        report_failure(world, ["a0"], "reason")
        await asyncio.sleep(6)
        assert api.messages("a0") == []
        world.api.always.clear()
        await asyncio.sleep(6)
    assert api.messages("a0") == ["reason"]


async def test_an_event_that_is_refused_delays_no_condition_of_its_pod() -> None:
    world = World()
    create_pods(world, 1, "a")
    world.api.always["event a0"] = refusal(403, "exceeded quota: events")
    async with world.running() as api:
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(10)
        report_failure(world, ["a0"], "second")
        await asyncio.sleep(SETTLE + 1)
        assert api.messages("a0") == ["first", "second"]
        world.api.always.clear()
        await asyncio.sleep(SERIES)
        report_failure(world, ["a0"], "third")
        await asyncio.sleep(SETTLE + 1)
    assert api.messages("a0")[-1] == "third"
    assert len(api.events_of("a0", "FailedScheduling")) >= 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(refusal(404), id="gone"),
        pytest.param(
            refusal(
                422, "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node"
            ),
            id="bound",
        ),
    ],
)
async def test_a_report_that_its_pod_needs_no_more_is_no_error(answer: ApiError) -> None:
    world = World()
    create_pods(world, 1, "a")
    world.api.always["condition a0"] = answer
    with capture_logs() as logs:
        async with world.running():
            world.reporter.nominated_node_changed(waiting("a0", nominated_node="node"))
            report_failure(world, ["a0"], "reason", nominated_node="node")
            await asyncio.sleep(200)
            assert world.reporter.waiting == 0
    assert [each for each in logs if each["log_level"] != "debug"] == []


async def test_a_reason_that_was_refused_with_a_conflict_is_written_later() -> None:
    world = World()
    create_pods(world, 1, "a")
    world.api.faults["condition a0"] = [refusal(409, "a webhook denied the request")] * 3
    async with world.running() as api:
        report_failure(world, ["a0"], "reason")
        await asyncio.sleep(10)
        assert api.messages("a0") == ["reason"]


async def test_a_nominated_node_is_written_with_the_reason_and_at_once() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        world.reporter.nominated_node_changed(waiting("a0", nominated_node="node"))
        report_failure(world, ["a0"], "reason", nominated_node="node")
        await asyncio.sleep(1)
        assert len(api.patches) == 1
        world.reporter.nominated_node_changed(waiting("a0"))
        await asyncio.sleep(1)
    assert api.nominations == [("a0", "node"), ("a0", None)]


# --- Events of bound pods ---------------------------------------------------------------------------------------


class Recorder:
    """Records every Event."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def create_event(self, _namespace: str, event: Raw) -> None:
        self.names.append(event["metadata"]["name"])


async def test_events_beyond_the_bound_are_dropped_the_oldest_first() -> None:
    recorder = Recorder()
    queue = EventQueue(api=recorder, instance="me", in_flight_binds=InFlightBinds(), clock=now)
    subject = Subject.of(waiting("a"))
    for number in range(MAX_QUEUED + 10):
        queue.put(Event(subject=subject, name=f"e{number}", type="Normal", reason="R", action="A", note="note"))
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(1)
    task.cancel()
    assert recorder.names == [f"e{number}" for number in range(10, MAX_QUEUED + 10)]


async def test_a_pod_that_no_longer_waits_gets_no_more_reports() -> None:
    world = World()
    world.api.pods["a"] = pod("a")
    async with world.running() as api:
        world.reporter.unschedulable(waiting("a"), failure("1 node(s) were not ready"))
        await asyncio.sleep(1)
        world.reporter.unschedulable(waiting("a"), failure("2 node(s) were not ready"))
        world.reporter.dismiss("uid-a")
        await asyncio.sleep(30)
    assert api.messages("a") == ["1 node(s) were not ready"]


async def test_a_failed_report_does_not_undo_a_newer_one() -> None:
    world = World()
    world.api.pods["a"] = pod("a")
    world.api.faults["condition a"] = [Unreachable("x")]
    async with world.running() as api:
        world.reporter.unschedulable(waiting("a"), failure("old"))
        await asyncio.sleep(0.5)
        world.reporter.unschedulable(waiting("a"), failure("new"))
        await asyncio.sleep(30)
    assert api.messages("a") == ["new"]


async def test_a_reason_that_returns_after_a_write_without_an_answer_is_written_again() -> None:
    world = World()
    create_pods(world, 1, "a")
    async with world.running() as api:
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(30)
        world.api.faults["condition a0"] = [LostError("lost")]
        report_failure(world, ["a0"], "second")
        await asyncio.sleep(SETTLE + 0.5)
        report_failure(world, ["a0"], "first")
        await asyncio.sleep(30)
    assert api.messages("a0") == ["first", "second", "first"]


async def test_a_late_report_is_not_written_to_a_bound_pod() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    world.api.faults["condition a"] = [Unreachable("x")]
    async with world.running() as api:
        await asyncio.sleep(0.5)
        world.add_node()
        await asyncio.sleep(30)
    assert api.bound() == {"a": "node"}
    assert api.messages("a") == []


async def test_a_pod_that_is_created_again_is_reported_again() -> None:
    world = World()
    world.cluster.node_cache.put_node(pod_free_node())
    world.submit(pod("a", {NVIDIA: "1"}))
    async with world.running() as api:
        await asyncio.sleep(1)
        world.delete("a")
        world.submit(pod("a", {NVIDIA: "1"}, uid="new"))
        await asyncio.sleep(1)
    assert api.messages("a") == [NO_DEVICE, NO_DEVICE]


async def test_an_invalid_request_is_reported_on_the_pod() -> None:
    world = World()
    world.add_node()
    world.submit(pod("a", {"kubernetes.io/gpu": "150"}))
    async with world.running() as api:
        await asyncio.sleep(5)
    (message,) = api.messages("a")
    assert message.startswith("invalid request: kubernetes.io/gpu: 150; allowed are 1 to 100")
    assert api.events_of("a", "FailedScheduling") == [message]
