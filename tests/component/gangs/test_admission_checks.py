"""Writes of Workloads and AdmissionChecks, on an API server in memory and in virtual time."""

import asyncio
import copy
import itertools
from collections.abc import Mapping
from typing import Any

import looptime
import pytest
from structlog.testing import capture_logs

from berth_api import names
from berth_client.errors import ApiError, Unreachable
from berth_operator.binding.workloads.admission_checks import ACTIVE_SECONDS, BACKOFF, IN_FLIGHT, PAUSE, CheckWriter
from berth_operator.core.values.pod_admission import PriorityClass
from berth_operator.core.values.quota_workload import CheckAnswer, CheckState
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import workloads
from berth_operator.state.objects.pod_sets import Templates
from berth_operator.state.watches.kueue import API, QuotaObjects
from tests.objects.kueue_objects import (
    CHECK,
    LATER,
    admission_check,
    check_state,
    condition,
    flavor,
    pod_set,
    with_quota,
    workload,
)

pytestmark = pytest.mark.looptime

Raw = dict[str, Any]

LAG = 0.5
"""Seconds until the watch shows a change."""


def now() -> float:
    return asyncio.get_running_loop().time()


class Server:
    """Workloads and AdmissionChecks in memory, with the fence of a term; the watch shows changes after a moment."""

    def __init__(self, objects: QuotaObjects) -> None:
        self._objects = objects
        self.stored: dict[str, Raw] = {}
        self.writes: list[str] = []
        self.faults: list[Exception] = []
        self.refuses: set[str] = set()
        """Paths whose writes are refused."""
        self.refusal = ApiError(422, "Invalid", "a policy says no")
        self.refused: list[tuple[float, str]] = []
        """When which path was refused."""
        self.term, self.fenced, self.version = 1, True, 100
        self.at_once = self.most = 0

    def put(self, path: str, raw: Raw) -> None:
        """Create or update an object, as Kueue does."""
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.stored[path] = raw
        asyncio.get_running_loop().call_later(LAG, self._show, path, copy.deepcopy(raw))

    def delete(self, path: str) -> None:
        del self.stored[path]
        asyncio.get_running_loop().call_later(LAG, self._objects.remove_workload, "ns/" + path.rpartition("/")[2])

    def _show(self, path: str, raw: Raw) -> None:
        if "/workloads/" in path:
            self._objects.put_workload(workloads.transform(raw))
        else:
            self._objects.put_check(raw)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str,
        decode: bool,
    ) -> None:
        assert (method, content_type, decode) == ("PATCH", "application/json-patch+json", False), accept
        path = path.removesuffix("/status")
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0.05)
        self.at_once -= 1
        assert params is not None
        if self.fenced and params["fieldManager"] != f"berth/{self.term}":
            raise ApiError(403, "Forbidden", f"policy '{names.FENCE}-kueue' denied the request")
        if "dryRun" in params:
            return
        if self.faults:
            raise self.faults.pop(0)
        if path in self.refuses:
            self.refused.append((now(), path))
            raise self.refusal
        if path not in self.stored:
            raise ApiError(404, "NotFound", "")
        raw = copy.deepcopy(self.stored[path])
        for operation in body:
            if operation["path"] == "/metadata/resourceVersion":
                if operation["value"] != raw["metadata"]["resourceVersion"]:
                    raise ApiError(409, "Conflict", "")
            elif operation["op"] == "add":
                raw["status"] = operation["value"]
            else:
                raw["status"]["admissionChecks"][int(operation["path"].rpartition("/")[2])] = operation["value"]
        self.writes.append(path)
        self.put(path, raw)


class World:
    """A cluster with one flavor, and the writer of one term."""

    def __init__(self) -> None:
        self.cluster = Cluster(grace=1.0, clock=now)
        classes = self.cluster.admission_rules.priority_classes
        self.objects = QuotaObjects(self.cluster, Templates(priority_classes=classes))
        self.server = Server(self.objects)
        self.term: int | None = 1
        self.objects.put_flavor(flavor())
        self.writer = self.make_writer()
        self._task = asyncio.create_task(self.writer.run())

    def make_writer(self) -> CheckWriter:
        return CheckWriter(api=self.server, objects=self.objects, lease="berth", term=lambda: self.term, fenced=True)

    async def put(self, raw: Raw) -> None:
        self.server.put(path_of(raw["metadata"]["name"]), raw)
        await asyncio.sleep(LAG + 0.01)

    async def put_check(self, **spec: Any) -> None:
        self.server.put(CHECK_PATH, admission_check(**spec))
        await asyncio.sleep(LAG + 0.5)

    def answer(self, state: CheckState, message: str = "", name: str = "job", requeue_after: int | None = None) -> None:
        decided = self.cluster.workloads.by_key[f"ns/{name}"]
        self.writer.answer(CheckAnswer(workload=decided, state=state, message=message, requeue_after=requeue_after))

    def item(self, name: str = "job") -> Raw:
        item: Raw
        [item] = self.server.stored[path_of(name)]["status"]["admissionChecks"]
        return item

    def active(self) -> Raw:
        shown: Raw
        [shown] = self.server.stored[CHECK_PATH]["status"]["conditions"]
        return shown

    async def close(self) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task


def path_of(name: str) -> str:
    return f"{API}/namespaces/ns/workloads/{name}"


CHECK_PATH = f"{API}/admissionchecks/{CHECK}"


@pytest.fixture
async def world() -> Any:
    own = World()
    with looptime.enabled(strict=True):
        await own.put_check()
        await own.put(with_quota("job", pod_set("a", count=2), pod_set("b")))
    yield own
    await own.close()


async def test_an_answer_is_written_with_what_kueue_adds_to_the_pods(world: World) -> None:
    world.answer(CheckState.READY, "places on node-a")
    await asyncio.sleep(1)
    item = world.item()
    assert (item["name"], item["state"], item["message"]) == (CHECK, "Ready", "places on node-a")
    assert item["lastTransitionTime"] > LATER
    assert item["podSetUpdates"] == [
        {"name": each, "annotations": {names.WORKLOAD: "job", names.POD_SET: each}} for each in "ab"
    ]


async def test_pod_sets_of_other_schedulers_get_nothing(world: World) -> None:
    await world.put(with_quota("mixed", pod_set("a"), pod_set("b", schedulerName="other")))
    world.answer(CheckState.READY, name="mixed")
    await asyncio.sleep(1)
    assert [each["name"] for each in world.item("mixed")["podSetUpdates"]] == ["a"]


async def test_a_retry_has_its_pause_and_keeps_the_count_of_kueue(world: World) -> None:
    await world.put(with_quota("job", checks=[check_state(retryCount=2, requeueAfterSeconds=9)]))
    world.answer(CheckState.RETRY, "0/1 nodes are available", requeue_after=60)
    await asyncio.sleep(1)
    item = world.item()
    assert (item["state"], item["requeueAfterSeconds"], item["retryCount"]) == ("Retry", 60, 2)
    assert "podSetUpdates" not in item
    await world.put(with_quota("job", checks=[check_state(retryCount=3, requeueAfterSeconds=60)]))
    world.answer(CheckState.PENDING, "waits")
    await asyncio.sleep(1)
    assert "requeueAfterSeconds" not in world.item()


async def test_what_the_api_server_shows_is_not_written_again(world: World) -> None:
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(1)
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(1)
    assert world.server.writes.count(path_of("job")) == 1


async def test_what_kueue_adds_to_pods_stays_while_the_check_stays_ready(world: World) -> None:
    updates = [{"name": "a", "annotations": {"as": "it was"}}]
    await world.put(with_quota("job", pod_set("a"), checks=[check_state("Ready", podSetUpdates=updates)]))
    world.answer(CheckState.READY, "other places")
    await asyncio.sleep(1)
    assert world.item()["podSetUpdates"] == updates
    assert world.item()["message"] == "other places"


# --- outdated answers ---------------------------------------------------------------------------------------


async def test_after_a_conflict_the_answer_waits_for_the_newer_version(world: World) -> None:
    newer = copy.deepcopy(world.server.stored[path_of("job")])
    newer["status"]["requeueState"] = {"count": 1}
    world.server.put(path_of("job"), newer)
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(0.2)
    assert world.item()["state"] == "Pending"
    await asyncio.sleep(LAG + 0.1)
    assert world.item()["state"] == "Ready"


@pytest.mark.parametrize(
    "later",
    [
        with_quota("job", metadata={"uid": "another"}),
        with_quota("job", conditions=[condition("QuotaReserved", since=LATER)]),
        with_quota("job", conditions=[condition("Evicted")]),
        with_quota("job", conditions=[condition("Finished")]),
        workload("job"),
    ],
    ids=["another of its name", "reserved again", "evicted", "finished", "without quota"],
)
async def test_an_answer_is_dropped_once_it_is_outdated(world: World, later: Raw) -> None:
    # The write meets the newer version before the watch has shown it.
    world.server.put(path_of("job"), copy.deepcopy(later))
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(2)
    assert world.item()["state"] == "Pending"


async def test_a_workload_that_is_gone_is_not_written(world: World) -> None:
    world.answer(CheckState.READY, "m")
    world.server.delete(path_of("job"))
    await asyncio.sleep(5)
    assert path_of("job") not in world.server.writes


async def test_the_newest_answer_counts(world: World) -> None:
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(0.02)  # it is on its way
    world.answer(CheckState.RETRY, "n", requeue_after=30)
    await asyncio.sleep(2)
    assert (world.item()["state"], world.item()["message"]) == ("Retry", "n")


@pytest.mark.parametrize(
    "fault",
    [
        Unreachable("no answer"),
        ApiError(422, "Invalid", "the webhook says no"),
        ApiError(409, "Conflict", "the webhook says no"),
    ],
)
async def test_a_write_that_fails_is_sent_again_after_a_pause(world: World, fault: Exception) -> None:
    world.server.faults = [fault]
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(PAUSE - 0.5)
    assert world.item()["state"] == "Pending"
    await asyncio.sleep(1)
    assert world.item()["state"] == "Ready"


async def test_a_refused_answer_is_sent_again_after_growing_pauses(world: World) -> None:
    world.server.refuses = {path_of("job")}
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(4 * BACKOFF.longest)
    tries = [at for at, _ in world.server.refused]
    pauses = [round(later - before) for before, later in itertools.pairwise(tries)]
    assert pauses[:3] == [PAUSE, 2 * PAUSE, 4 * PAUSE]
    assert pauses[-2:] == [BACKOFF.longest, BACKOFF.longest]
    # Other answers, and other versions of the Workload, are tried at once, but begin no further series of tries.
    for number in range(3):
        world.answer(CheckState.READY, f"m{number}")
        await asyncio.sleep(1)
    await world.put(with_quota("job", pod_set("a", count=2), pod_set("b"), checks=[check_state(message="newer")]))
    await asyncio.sleep(1)
    tried = len(world.server.refused)
    assert tried == len(tries) + 4
    await asyncio.sleep(2 * BACKOFF.longest)
    assert len(world.server.refused) - tried <= 3
    world.server.refuses = set()
    await asyncio.sleep(BACKOFF.longest)
    assert (world.item()["state"], world.item()["message"]) == ("Ready", "m2")


async def test_a_webhook_that_refuses_with_a_conflict_is_logged(world: World) -> None:
    world.server.refuses, world.server.refusal = {path_of("job")}, ApiError(409, "Conflict", "the webhook says no")
    with capture_logs() as logs:
        world.answer(CheckState.READY, "m")
        await asyncio.sleep(2 * PAUSE)
    assert ["the webhook says no" in line["reason"] for line in logs] == [True]


async def test_the_pauses_begin_again_after_a_write(world: World) -> None:
    world.server.refuses = {path_of("job")}
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(20 * PAUSE)
    world.server.refuses = set()
    await asyncio.sleep(20 * PAUSE)
    assert world.item()["message"] == "m"
    world.server.refuses = {path_of("job")}
    before = len(world.server.refused)
    world.answer(CheckState.READY, "n")
    await asyncio.sleep(1.5 * PAUSE)
    assert len(world.server.refused) - before == 2


@pytest.mark.parametrize(("status", "reason"), [(422, "Invalid"), (500, "InternalError")])
async def test_refused_answers_hold_up_no_others(world: World, status: int, reason: str) -> None:
    world.server.refusal = ApiError(status, reason, "a webhook says no")
    names_of_refused = [f"w{number}" for number in range(2 * IN_FLIGHT)]
    for name in names_of_refused:
        await world.put(with_quota(name))
    world.server.refuses = {path_of(name) for name in names_of_refused}
    for name in names_of_refused:
        world.answer(CheckState.READY, name=name)
    await asyncio.sleep(0.2)
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(0.2)
    assert world.item()["state"] == "Ready"


async def test_few_writes_are_under_way_at_once(world: World) -> None:
    for number in range(5 * IN_FLIGHT):
        await world.put(with_quota(f"w{number}"))
    for number in range(5 * IN_FLIGHT):
        world.answer(CheckState.READY, name=f"w{number}")
    await asyncio.sleep(2)
    assert all(world.item(f"w{number}")["state"] == "Ready" for number in range(5 * IN_FLIGHT))
    assert world.server.most == IN_FLIGHT


# --- AdmissionChecks, the fence, the term -------------------------------------------------------------------


async def test_our_admission_checks_are_active(world: World) -> None:
    shown = world.active()
    assert (shown["type"], shown["status"], shown["observedGeneration"]) == ("Active", "True", 1)
    await asyncio.sleep(5 * ACTIVE_SECONDS)
    assert world.server.writes.count(CHECK_PATH) == 1


async def test_an_admission_check_with_parameters_is_not_active(world: World) -> None:
    await world.put_check(parameters={"apiGroup": "a", "kind": "B", "name": "c"})
    shown = world.active()
    assert (shown["status"], shown["reason"]) == ("False", "BadParametersRef")


async def test_a_check_may_be_deleted_while_another_is_written(world: World) -> None:
    world.server.put(f"{API}/admissionchecks/z-other", admission_check("z-other"))
    world.server.put(CHECK_PATH, admission_check(parameters={"apiGroup": "a", "kind": "B", "name": "c"}))
    asyncio.get_running_loop().call_later(LAG + 0.02, world.objects.remove_check, "z-other")
    await asyncio.sleep(LAG + 0.5)
    assert world.active()["reason"] == "BadParametersRef"


async def test_a_check_that_is_refused_keeps_no_other_inactive(world: World) -> None:
    refused = f"{API}/admissionchecks/a-refused"
    world.server.refuses = {refused}
    world.server.put(refused, admission_check("a-refused"))
    await asyncio.sleep(LAG + 1)
    await world.put_check(parameters={"apiGroup": "a", "kind": "B", "name": "c"})
    assert world.active()["reason"] == "BadParametersRef"


async def test_nothing_is_written_of_checks_of_other_controllers() -> None:
    world = World()
    await world.put_check(controller="kueue.x-k8s.io/multikueue")
    await world.put(with_quota())
    assert world.server.writes == []
    assert world.objects.views == {}
    await world.close()


async def test_without_a_fence_no_answer_is_written_and_the_check_is_not_active() -> None:
    world = World()
    world.server.fenced = False
    await world.put_check()
    await world.put(with_quota())
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(3)
    assert world.item()["state"] == "Pending"
    assert (world.active()["status"], world.active()["reason"]) == ("False", "NotFenced")
    world.server.fenced = True
    await asyncio.sleep(ACTIVE_SECONDS + 1)
    assert world.item()["state"] == "Ready"
    assert world.active()["status"] == "True"
    await world.close()


async def test_nothing_is_written_after_the_term(world: World) -> None:
    world.term = None
    world.answer(CheckState.READY, "m")
    await asyncio.sleep(3)
    assert world.item()["state"] == "Pending"


# --- what is watched ----------------------------------------------------------------------------------------


async def test_a_workload_is_read_once_its_flavor_is_known(world: World) -> None:
    later = workload("late", assigned=[{"name": "main", "flavors": {"cpu": "later"}, "count": 1}])
    await world.put(later)
    assert "ns/late" not in world.cluster.workloads.by_key
    world.objects.put_flavor(flavor("later"))
    assert world.cluster.workloads.by_key["ns/late"].has_quota


async def test_a_workload_is_read_once_its_check_is_known() -> None:
    world = World()
    await world.put(with_quota())
    assert world.cluster.workloads.by_key == {}
    await world.put_check()
    assert set(world.cluster.workloads.by_key) == {"ns/job"}
    world.objects.remove_check(CHECK)
    assert world.cluster.workloads.by_key == {}
    await world.close()


async def test_pods_are_read_again_with_another_flavor_or_priority_class_and_not_otherwise(world: World) -> None:
    def pods() -> Any:
        return world.cluster.workloads.by_key["ns/job"].pod_sets

    first = pods()
    await world.put(with_quota("job", pod_set("a", count=2), pod_set("b"), checks=[check_state(message="new")]))
    assert pods() is first
    world.objects.put_flavor(flavor(labels={"model": "A100"}))
    assert [each.key for each in pods()[0].pods[0].request.node_selector] == ["model"]
    world.cluster.admission_rules.put_priority_class("c", PriorityClass(value=7, is_default=True))
    assert pods()[0].pods[0].priority == 7


async def test_a_finished_workload_is_forgotten(world: World) -> None:
    await world.put(with_quota("job", conditions=[condition("Finished")]))
    assert world.cluster.workloads.by_key == {}
    assert world.objects.views == {}
