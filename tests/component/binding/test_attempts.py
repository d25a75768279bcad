"""Attempts to schedule pods, as kube-scheduler counts them."""

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from prometheus_client.samples import Sample

from berth_api import names
from berth_client.errors import ApiError
from berth_operator.binding.reports.attempts import SIZES, size
from tests.component.world import World, refusal
from tests.objects.builders import GPU, NVIDIA, asks, pod

pytestmark = pytest.mark.looptime

PROFILE = "berth-scheduler"


class Samples:
    """The growth of samples since the test began."""

    def __init__(self) -> None:
        self._before = {(each.name, *sorted(each.labels.items())): each.value for each in self._all()}

    @staticmethod
    def _all() -> Iterator[Sample]:
        return (sample for family in REGISTRY.collect() for sample in family.samples)

    def __call__(self, name: str, **labels: str) -> float:
        key = (name, *sorted(labels.items()))
        now: float = REGISTRY.get_sample_value(name, labels) or 0.0
        return now - self._before.get(key, 0.0)

    def results(self) -> dict[str, float]:
        counts = {
            result: self("scheduler_schedule_attempts_total", result=result, profile=PROFILE)
            for result in ("scheduled", "unschedulable", "error")
        }
        for result, count in counts.items():
            labels = {"result": result, "profile": PROFILE}
            assert self("scheduler_scheduling_attempt_duration_seconds_count", **labels) == count
        return {result: count for result, count in counts.items() if count}


@pytest.fixture
def samples() -> Samples:
    return Samples()


async def test_bound_at_once(samples: Samples) -> None:
    world = World()
    world.add_node(cards=1)
    world.submit(pod("p", {NVIDIA: "1"}))
    async with world.running():
        await asyncio.sleep(1)

    assert samples.results() == {"scheduled": 1}
    assert samples("scheduler_pod_scheduling_attempts_sum") == 1
    assert samples("scheduler_pod_scheduling_sli_duration_seconds_count", attempts="1") == 1
    assert samples("berth_pod_waiting_duration_seconds_count", gpus="1") == 1
    assert samples("scheduler_scheduling_algorithm_duration_seconds_count") == 1


async def test_the_second_attempt_after_a_wait(samples: Samples) -> None:
    world = World()
    world.submit(pod("p", {NVIDIA: "1"}))
    async with world.running():
        await asyncio.sleep(100)
        before = samples("scheduler_schedule_attempts_total", result="unschedulable", profile=PROFILE)
        world.add_node(cards=1)
        await asyncio.sleep(1)

    attempts = int(before) + 1
    assert samples.results() == {"unschedulable": before, "scheduled": 1}
    assert samples("scheduler_pod_scheduling_attempts_sum") == attempts
    assert samples("scheduler_pod_scheduling_sli_duration_seconds_sum", attempts=str(attempts)) >= 100


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        pytest.param(refusal(), {"error": 1, "scheduled": 1}, id="refused"),
        pytest.param(refusal(404), {"error": 1, "scheduled": 1}, id="gone for a moment"),
    ],
)
async def test_a_binding_that_fails_is_an_error(samples: Samples, error: ApiError, attempts: dict[str, float]) -> None:
    world = World()
    world.add_node(cards=1)
    world.api.faults["bind p"] = [error]
    world.submit(pod("p", {NVIDIA: "1"}))
    async with world.running():
        await asyncio.sleep(20)

    assert samples.results() == attempts
    assert samples("scheduler_pod_scheduling_sli_duration_seconds_count", attempts="2") == 1


async def test_members_of_a_gang_count_one_by_one(samples: Samples) -> None:
    world = World()
    world.add_node(cards=3)
    group = {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "3"}
    world.submit(*(pod(f"p{number}", {NVIDIA: "1"}, annotations=group) for number in range(3)))
    async with world.running():
        await asyncio.sleep(2)

    assert samples.results() == {"scheduled": 3}
    assert samples("scheduler_scheduling_algorithm_duration_seconds_count") == 1


async def test_preemption(samples: Samples) -> None:
    world = World()
    world.add_node(cards=2)
    world.submit(*(pod(f"low{number}", {NVIDIA: "1"}) for number in range(2)))
    async with world.running():
        await asyncio.sleep(1)
        world.submit(pod("high", {NVIDIA: "2"}, priority=10))
        await asyncio.sleep(10)

    assert samples("scheduler_preemption_victims_sum") == 2
    assert samples("scheduler_preemption_victims_count") == 1
    assert samples("scheduler_preemption_attempts_total") >= 1
    assert samples.results()["scheduled"] == 3


async def test_a_deleted_pod_is_forgotten() -> None:
    world = World()
    world.submit(pod("p", {NVIDIA: "1"}))
    async with world.running():
        await asyncio.sleep(1)
        world.delete("p")
        await asyncio.sleep(1)

    assert not world.attempts.waiting


@pytest.mark.parametrize(
    ("resources", "label"),
    [
        pytest.param({"cpu": 1}, "0", id="none"),
        pytest.param({GPU: 50}, "part", id="half"),
        pytest.param({GPU: 100}, "1", id="one"),
        pytest.param({NVIDIA: 1}, "1", id="one of a plug-in"),
        pytest.param({NVIDIA: 2}, "2", id="two"),
        pytest.param({GPU: 300}, "3-4", id="three"),
        pytest.param({NVIDIA: 8}, "5-8", id="eight"),
        pytest.param({NVIDIA: 16}, "9+", id="sixteen"),
        pytest.param({"nvidia.com/mig-1g.10gb": 1}, "part", id="instance"),
    ],
)
def test_sizes(resources: dict[str, int], label: str) -> None:
    assert size(asks(resources)) == label
    assert label in SIZES
