"""The writer under virtual time: what is written, when, and in which order."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import pytest

from berth_api import names
from berth_api.request import BUILT_IN, Kind, Kinds
from berth_client.errors import ApiError, Unreachable
from berth_operator.clients.bucket import Bucket
from berth_operator.controllers.reconcile.writer import CONFLICT_RETRY, PATIENCE, RETRY, SAME, Writer
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values import refused
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.views import StatusKind, View
from tests.objects.builders import GPU, NVIDIA, device, entry, gpu_pod, half, node, pod, pod_group, whole
from tests.objects.managed_fields import fields_of

pytestmark = pytest.mark.looptime

Raw = dict[str, Any]
NODE, DEVICE, POD_GROUP, GPU_POD = StatusKind


def now() -> float:
    return asyncio.get_running_loop().time()


class Api:
    """Nodes and Devices in memory: the cluster state sees every write at once, as by a watch."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.nodes: dict[str, Raw] = {}
        self.devices: dict[str, Raw] = {}
        self.pods: dict[str, Raw] = {}
        self.groups: dict[str, Raw] = {}
        """Status subresources."""
        self.events: list[Raw] = []
        self.denied: set[str] = set()
        """Resources that a policy keeps off Nodes."""
        self.forgets: set[str] = set()
        """Fields that the CRD of PodGroups does not have."""
        self.calls: list[tuple[float, str]] = []
        self.faults: dict[str, list[Exception]] = {}
        """The answers of a call, in the order in which they are used."""
        self.during: Callable[[str], None] = lambda _what: None
        """Called while a call is under way."""

    def add(self, name: str, *entries: Raw) -> None:
        self.nodes[name] = node(name)
        self.devices[name] = device(name, *entries)
        self.cluster.node_cache.put_node(self.nodes[name])
        self.cluster.node_cache.put_device(self.devices[name])

    async def call(self, what: str) -> None:
        self.calls.append((now(), what))
        self.during(what)
        await asyncio.sleep(0.01)
        if faults := self.faults.get(what):
            raise faults.pop(0)

    async def merge_patch(self, path: str, body: Raw) -> Raw:
        if "gpupods" in path:
            return await self._patch_gpu_pod(path, body)
        return await (self._patch_group(path, body) if "podgroups" in path else self._patch_node(path, body))

    async def get(self, path: str) -> Raw:
        name = path.rpartition("/")[2]
        await self.call(f"pod {name}")
        if name not in self.pods:
            raise ApiError(404, "NotFound", "no")
        return self.pods[name]

    async def delete(self, path: str, *, uid: str, version: str) -> None:
        name = path.rpartition("/")[2]
        record = self.cluster.allocations.gpu_pod(f"ns/{name}")
        await self.call(f"delete {name}")
        assert record is not None
        assert (uid, version) == (record.uid, record.version)
        if record != self.cluster.allocations.gpu_pod(f"ns/{name}"):
            raise ApiError(409, "Conflict", "the resourceVersion in the precondition does not match")
        self.cluster.allocations.remove_gpu_pod(f"ns/{name}")

    async def _patch_gpu_pod(self, path: str, body: Raw) -> Raw:
        _, _, _, name, last = path.rsplit("/", 4)
        assert last == "status"
        await self.call(f"gpu pod {name}")
        assert body["metadata"] == {"uid": "uid-gpupod-p"}
        self.cluster.allocations.put_gpu_pod(gpu_pod("p", "GPU-0", node="a", conditions=body["status"]["conditions"]))
        return {}

    async def _patch_group(self, path: str, body: Raw) -> Raw:
        _, namespace, _, name, last = path.rsplit("/", 4)
        key = f"{namespace}/{name}"
        assert last == "status"
        await self.call(f"group {key}")
        view = self.cluster.gangs.view(key)
        assert view is not None
        assert body["metadata"] == {"uid": view.group.uid}
        self.groups[key] = {name: value for name, value in body["status"].items() if name not in self.forgets}
        self.cluster.gangs.put_group(pod_group(name, uid=body["metadata"]["uid"], status=self.groups[key]))
        return {}

    async def _patch_node(self, path: str, body: Raw) -> Raw:
        name = path.split("/")[4]
        if self.denied & body.get("status", {}).get("allocatable", {}).keys():
            await self.call(f"npus {name}")
            raise DENIED
        await self.call(f"{'sums' if path.endswith('/status') else 'labels'} {name}")
        stored = self.nodes[name]
        for kind, changes in body.get("status", {}).items():
            stored["status"][kind] |= changes
            stored["status"][kind] = {key: value for key, value in stored["status"][kind].items() if value is not None}
        for key, value in body.get("metadata", {}).get("labels", {}).items():
            stored["metadata"]["labels"] |= {key: value}
            if value is None:
                del stored["metadata"]["labels"][key]
        self.cluster.node_cache.put_node(stored)
        return stored

    async def json_patch(self, path: str, operations: list[Raw]) -> Raw:
        name = path.split("/")[4]
        await self.call(f"taints {name}")
        assert [operation["op"] for operation in operations] == ["test", "remove"]
        stored = self.nodes[name]
        del stored["spec"]["taints"][int(operations[1]["path"].rpartition("/")[2])]
        self.cluster.node_cache.put_node(stored)
        return stored

    async def apply(self, path: str, body: Raw, field_manager: str, *, force: bool) -> Raw:
        assert (field_manager, force) == ("berth-operator", True)
        name = path.split("/")[5]
        await self.call(f"device {name}")
        stored = self.devices[name]
        mine = {condition["type"] for condition in body["status"]["conditions"]}
        kept = [condition for condition in stored["status"].get("conditions", []) if condition["type"] not in mine]
        stored["status"] = {**body["status"], "conditions": [*kept, *body["status"]["conditions"]]}
        self.cluster.node_cache.put_device(stored)
        fields = fields_of({"status": body["status"]})
        owner = {"manager": field_manager, "operation": "Apply", "subresource": "status", "fieldsV1": fields}
        return {**stored, "metadata": {**stored["metadata"], "managedFields": [owner]}}

    async def create_event(self, namespace: str, event: Raw) -> None:
        await self.call(f"event {namespace}/{event['regarding']['name']}")
        self.events.append(event)

    def order(self) -> list[str]:
        return [what for _, what in self.calls]

    def times(self, what: str) -> list[float]:
        return [round(at, 2) for at, each in self.calls if each == what]


class World:
    """A writer, its cluster state, and the API that it writes to."""

    def __init__(self, rate: float = 1000.0, node_rate: float = 1000.0, kinds: Kinds = BUILT_IN) -> None:
        self.cluster = Cluster(grace=20.0, clock=now, fleet=Fleet(kinds=kinds))
        self.api = Api(self.cluster)
        self.busy = False
        self.asked: Callable[[tuple[StatusKind, str]], None] = lambda _of: None
        self.writer = Writer(
            api=self.api,
            view=self.view,
            node_bucket=Bucket(rate=node_rate, clock=now),
            bucket=Bucket(rate=rate, clock=now),
            busy=lambda: self.busy,
        )

    async def view(self, kind: StatusKind, name: str) -> View | None:
        self.asked((kind, name))
        return self.cluster.view(kind, name)


def with_card() -> World:
    """Return a world with one card, on the node `a`."""
    world = World()
    world.api.add("a", entry(0))
    return world


@contextlib.asynccontextmanager
async def running(world: World) -> AsyncIterator[Api]:
    task = asyncio.create_task(world.writer.run())
    try:
        yield world.api
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_statuses_let_binds_go_first_and_sums_do_not() -> None:
    world = with_card()
    world.busy = True
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(5)
        assert api.order() == ["sums a", "labels a"]
        world.busy = False
        await asyncio.sleep(1)
        assert api.order() == ["sums a", "labels a", "device a"]


async def test_statuses_do_not_wait_forever_for_binds() -> None:
    world = with_card()
    world.busy = True
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(30)
    (at,) = api.times("device a")
    assert PATIENCE <= at < PATIENCE + 1


def exceeding(pod_: str, memory: str = "52Gi", minor: int = 0) -> Raw:
    return {
        "type": "gpu",
        "minor": minor,
        "namespace": "ns",
        "pod": pod_,
        "podUID": f"uid-{pod_}",
        "memory": memory,
        "limit": "40Gi",
    }


async def reported(world: "World", *uses: Raw, field: str = "exceeding") -> list[str]:
    """Let the agent report uses; return the Events that are created."""
    api = world.api
    api.calls.clear()
    api.devices["a"]["status"][field] = list(uses)
    world.cluster.node_cache.put_device(api.devices["a"])
    world.writer.mark(NODE, "a")
    await asyncio.sleep(1)
    # The writer's apply leaves the agent's fields out.
    api.devices["a"]["status"][field] = list(uses)
    world.cluster.node_cache.put_device(api.devices["a"])
    return [what for what in api.order() if what.startswith("event")]


async def test_a_pod_without_a_request_that_uses_a_card_gets_one_event_for_each() -> None:
    world = World()
    world.api.add("a", entry(0), entry(1))
    world.cluster.put_bound(pod("p", {"cpu": "1"}, on="a", schedulerName="default-scheduler"))

    def unheld(minor: int, **fields: str) -> Raw:
        use = {key: value for key, value in exceeding("p", minor=minor).items() if key != "limit"}
        return {**use, "id": f"GPU-{minor}", **fields}

    async with running(world) as api:
        forged = unheld(1, namespace="of-others"), unheld(1, podUID="uid-other")
        assert await reported(world, unheld(0), *forged, field="unheld") == ["event ns/p"]
        [event] = api.events
        assert (event["type"], event["reason"]) == ("Warning", "CardNotHeld")
        assert event["note"].startswith("its processes use 52Gi of GPU 0 (GPU-0), and it does not hold the card")
        assert await reported(world, unheld(0, memory="60Gi"), field="unheld") == []
        assert await reported(world, unheld(0), unheld(1), field="unheld") == ["event ns/p"]
        assert len({event["metadata"]["name"] for event in api.events}) == 2


async def test_a_pod_that_exceeds_its_share_gets_one_event_until_it_does_again() -> None:
    world = with_card()
    world.cluster.put_bound(pod("p", on="a", allocated=half(0)))

    async with running(world) as api:
        forged = {**exceeding("p"), "namespace": "of-others"}
        assert await reported(world, exceeding("p"), exceeding("not-here"), forged) == ["event ns/p"]
        [event] = api.events
        assert (event["type"], event["reason"]) == ("Warning", "ShareExceeded")
        assert event["note"].startswith("its processes use 52Gi of GPU 0, its share is 40Gi")
        assert event["note"].endswith("nothing limits it")
        assert await reported(world, exceeding("p", memory="60Gi")) == []
        assert await reported(world) == []
        api.faults["event ns/p"] = [ApiError(409, "AlreadyExists", "it exists")]
        assert await reported(world, exceeding("p")) == ["event ns/p"]
        assert await reported(world, exceeding("p", memory="44Gi")) == []


async def test_an_event_that_is_refused_keeps_no_other_pod_from_its_event() -> None:
    world = with_card()
    names_of_pods = [f"p{number}" for number in range(8)]
    for name in names_of_pods:
        world.cluster.put_bound(pod(name, on="a", allocated=half(0)))
    terminating = ApiError(403, "Forbidden", "unable to create new content in namespace ns: it is being terminated")
    world.api.faults["event ns/p3"] = [terminating] * 100
    async with running(world) as api:
        created = await reported(world, *map(exceeding, names_of_pods))
        assert sorted(created) == [f"event ns/{name}" for name in names_of_pods]
        await asyncio.sleep(100)
        assert len(api.events) == len(names_of_pods) - 1
        assert api.order().count("event ns/p3") == 1


async def test_the_startup_taint_goes_once_the_node_shows_its_sums() -> None:
    world = with_card()
    other = {"key": "team", "effect": "NoSchedule"}
    world.api.nodes["a"]["spec"]["taints"] = [other, {"key": names.AGENT_NOT_READY[0], "effect": "NoSchedule"}]
    world.cluster.node_cache.put_node(world.api.nodes["a"])
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(1)
        assert "taints a" not in api.order()
        world.writer.mark(NODE, "a")
        await asyncio.sleep(1)
    assert [what for what in api.order() if not what.startswith("device")] == ["sums a", "labels a", "taints a"]
    assert api.nodes["a"]["spec"]["taints"] == [other]


async def test_pods_change_a_device_and_the_sums_only_where_these_depend_on_them() -> None:
    world = World()
    world.api.add("a", entry(0), entry(1, health=False))
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(1)
        asked: list[tuple[StatusKind, str]] = []
        world.asked = asked.append
        for minor, calls in ((0, ["device a"]), (1, ["device a", "sums a"])):
            api.calls.clear()
            world.cluster.put_bound(pod(f"p{minor}", {NVIDIA: "1"}, on="a", allocated=whole(minor)))
            world.writer.mark(DEVICE, "a")
            await asyncio.sleep(1)
            assert api.order() == calls
        assert asked == [(DEVICE, "a"), (DEVICE, "a"), (NODE, "a")]
        assert api.nodes["a"]["status"]["allocatable"][GPU] == "200"


async def test_the_sums_of_all_nodes_come_before_the_status_of_any() -> None:
    world = World()
    for name in "abc":
        world.api.add(name, entry(0))
        world.writer.mark(NODE, name)
    async with running(world) as api:
        await asyncio.sleep(1)
    assert api.order()[-3:] == ["device a", "device b", "device c"]
    assert api.order()[:-3] == [f"{what} {name}" for name in "abc" for what in ("sums", "labels")]


async def test_of_the_statuses_the_longest_marked_comes_first_however_often_another_is_marked() -> None:
    world = World()
    for name in "abc":
        world.api.add(name, entry(0))
    for name in "cabac":
        world.writer.mark(NODE, name)
    async with running(world) as api:
        await asyncio.sleep(1)
    assert [what for what in api.order() if what.startswith("device")] == ["device c", "device a", "device b"]


async def test_of_the_statuses_the_one_written_longest_ago_comes_first() -> None:
    world = World()
    async with running(world):
        for name in "ab":
            world.api.add(name, entry(0))
            world.writer.mark(DEVICE, name)
            await asyncio.sleep(1)
        asked: list[tuple[StatusKind, str]] = []
        world.asked = asked.append
        for name in "ba":
            world.writer.mark(DEVICE, name)
        await asyncio.sleep(1)
    assert [name for kind, name in asked if kind is DEVICE] == ["a", "b"]


async def flap(world: World, names: Sequence[str], seconds: float) -> None:
    """Change the devices of these nodes each second, and so their sums and statuses."""
    generation, end = 1, now() + seconds
    while now() < end:
        generation += 1
        for name in names:
            raw = device(name, *(entry(minor) for minor in range(generation % 2 + 1)), generation=generation)
            world.api.devices[name] = {**raw, "status": world.api.devices[name]["status"]}
            world.cluster.node_cache.put_device(world.api.devices[name])
            world.writer.mark(NODE, name)
        await asyncio.sleep(1)


async def test_a_status_is_at_most_ten_seconds_old_though_others_change_all_the_time() -> None:
    world = World(rate=2.0)
    world.busy = True
    others = [f"n{number}" for number in range(20)]
    for name in ("quiet", *others):
        world.api.add(name, entry(0))
    async with running(world) as api:
        storm = asyncio.create_task(flap(world, others, 30))
        await asyncio.sleep(15)
        since = now()
        world.writer.mark(NODE, "quiet")
        await asyncio.sleep(15)
        await storm
    (at,) = api.times("device quiet")
    assert at - since <= 10
    sums = [at for at, what in api.calls if what.startswith("sums") and at > 15]
    assert len(sums) > 15 * 20 / 4  # kubelet reads the sums, so they must not starve either


async def test_sums_do_not_wait_for_the_tokens_of_statuses() -> None:
    world = World(rate=0.1)
    for name in "abc":
        world.api.add(name, entry(0))
    world.writer.mark(NODE, "a")
    world.writer.mark(NODE, "b")
    async with running(world) as api:
        await asyncio.sleep(3.5)
        assert "device b" not in api.order()
        world.writer.mark(NODE, "c")
        await asyncio.sleep(0.1)
    assert api.order()[-2:] == ["sums c", "labels c"]


async def test_a_mark_during_a_write_is_not_lost() -> None:
    world = with_card()
    calls: list[str] = []

    def during(what: str) -> None:
        if what == "device a" and not calls:
            calls.append(what)
            world.cluster.put_bound(pod("p", {GPU: "50"}, on="a", allocated=half()))
            world.writer.mark(NODE, "a")

    world.api.during = during
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(1)
    assert api.order().count("device a") == 2
    assert api.devices["a"]["status"]["allocated"] == "0.5"


async def test_a_change_while_a_write_waits_for_its_token_is_written_too() -> None:
    world = World(rate=1.0)
    world.api.add("a", entry(0))
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(0.5)
        world.cluster.node_cache.put_device(device("a", entry(0), entry(1), generation=2))
        world.api.devices["a"] = device("a", entry(0), entry(1), generation=2)
        world.writer.mark(NODE, "a")
        await asyncio.sleep(20)
    assert api.nodes["a"]["status"]["allocatable"][GPU] == "200"
    assert api.devices["a"]["status"]["gpus"] == 2


async def test_writes_keep_to_the_rate() -> None:
    world = World(rate=2.0, node_rate=4.0)
    for i in range(10):
        world.api.add(f"n{i}", entry(0))
        world.writer.mark(NODE, f"n{i}")
    async with running(world) as api:
        await asyncio.sleep(60)
    nodes = [at for at, what in api.calls if not what.startswith("device")]
    devices = [at for at, what in api.calls if what.startswith("device")]
    for times, count, rate in ((nodes, 20, 4), (devices, 10, 2)):
        assert len(times) == count
        assert times[-1] - times[0] == pytest.approx((count - rate) / rate, abs=0.5)
        for at in times:
            assert sum(at <= other < at + 1 for other in times) <= 2 * rate


@pytest.mark.parametrize(
    ("fault", "pause"),
    [
        pytest.param(Unreachable("gone"), RETRY, id="no answer"),
        pytest.param(ApiError(500, "InternalError", "x"), RETRY, id="server error"),
        pytest.param(ApiError(422, "Invalid", "x"), RETRY, id="refused"),
        pytest.param(ApiError(409, "Conflict", "another manager"), CONFLICT_RETRY, id="another's field"),
    ],
)
@pytest.mark.parametrize("what", [pytest.param("sums a", id="sums"), pytest.param("device a", id="device")])
async def test_a_failed_write_is_tried_again_after_a_pause(fault: Exception, pause: float, what: str) -> None:
    world = World()
    for name in "ab":
        world.api.add(name, entry(0))
        world.writer.mark(NODE, name)
    world.api.faults[what] = [fault]
    async with running(world) as api:
        await asyncio.sleep(100)
    first, second = api.times(what)
    assert second - first == pytest.approx(pause, abs=0.1)
    assert [api.devices[name]["status"]["gpus"] for name in "ab"] == [1, 1]
    assert api.times("device b")[0] < 1, "no other node waits"


@pytest.mark.parametrize("what", [pytest.param("sums a", id="node"), pytest.param("device a", id="device")])
async def test_what_is_gone_is_dropped(what: str) -> None:
    world = with_card()
    world.api.faults[what] = [ApiError(404, "NotFound", "x")]
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(100)
    assert api.order().count(what) == 1


async def test_unknown_nodes_and_devices_of_other_instances_are_left_alone() -> None:
    world = World()
    world.cluster = Cluster(grace=20.0, confined=True, clock=now)
    world.api.cluster = world.cluster
    world.cluster.node_cache.put_device(device("a", entry(0)))
    for name in ("a", "missing"):
        world.writer.mark(NODE, name)
    async with running(world) as api:
        await asyncio.sleep(1)
    assert api.calls == []


async def test_a_quiet_writer_does_nothing_until_it_is_marked() -> None:
    world = with_card()
    async with running(world) as api:
        await asyncio.sleep(3600)
        assert api.calls == []
        for _ in range(2):  # nothing is written twice
            world.writer.mark(NODE, "a")
            await asyncio.sleep(1)
    assert api.order() == ["sums a", "labels a", "device a"]
    assert api.nodes["a"]["metadata"]["labels"]["berth.dev/devices"] == "true"


# --- PodGroups ----------------------------------------------------------------------------------------------------


def grouped(*waiting: str, **fields: Any) -> World:
    """Return a world with a PodGroup that needs two members, and with members that wait."""
    world = World()
    world.cluster.gangs.put_group(pod_group(minimum=2, **fields))
    for name in waiting:
        world.cluster.put_pending(pod(name, labels={names.POD_GROUP_LABEL: "g"}))
    return world


async def test_a_pod_group_shows_how_far_its_gang_has_come() -> None:
    world = grouped("a", "b")
    world.writer.mark(POD_GROUP, "ns/g")
    async with running(world) as api:
        await asyncio.sleep(1)
        assert api.groups["ns/g"]["phase"] == "PreScheduling"
        world.cluster.put_bound(pod("a", labels={names.POD_GROUP_LABEL: "g"}, on="node", status={"phase": "Running"}))
        world.writer.mark(POD_GROUP, "ns/g")
        await asyncio.sleep(1)
        assert {**api.groups["ns/g"], "scheduleStartTime": ""} == {
            "phase": "Scheduling",
            "scheduled": 1,
            "running": 1,
            "succeeded": 0,
            "failed": 0,
            "scheduleStartTime": "",
        }
        world.cluster.remove_bound("uid-a")
        world.writer.mark(POD_GROUP, "ns/g")
        await asyncio.sleep(1)
    assert (api.groups["ns/g"]["phase"], api.groups["ns/g"]["scheduled"]) == ("Pending", 0)
    assert api.order() == ["group ns/g"] * 3


async def test_a_pod_group_without_members_of_ours_is_left_alone() -> None:
    world = grouped(status={"phase": "Running", "running": 2})
    world.writer.mark(POD_GROUP, "ns/g")
    world.writer.mark(POD_GROUP, "ns/missing")
    async with running(world) as api:
        await asyncio.sleep(1)
    assert api.calls == []


async def test_what_a_foreign_definition_does_not_keep_is_not_written_forever() -> None:
    world = grouped("a", "b")
    world.api.forgets = {"scheduled"}
    world.cluster.put_bound(pod("a", labels={names.POD_GROUP_LABEL: "g"}, on="node"))
    async with running(world) as api:
        for _ in range(5):
            world.writer.mark(POD_GROUP, "ns/g")
            await asyncio.sleep(1)
        assert len(api.calls) == 1
        # A new group of the same name has no status yet.
        world.cluster.gangs.put_group(pod_group(minimum=2, uid="another"))
        world.writer.mark(POD_GROUP, "ns/g")
        await asyncio.sleep(1)
    assert len(api.calls) == 2


async def test_a_pod_group_that_could_not_be_written_is_written_later() -> None:
    world = grouped("a", "b")
    world.api.faults["group ns/g"] = [ApiError(500, "InternalError", "no"), Unreachable("no answer")]
    world.writer.mark(POD_GROUP, "ns/g")
    async with running(world) as api:
        await asyncio.sleep(10)
    assert api.times("group ns/g") == pytest.approx([0.0, 2.0, 4.0], abs=0.05)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_status_that_returns_after_a_write_without_an_answer_is_written_again(*, is_late: bool) -> None:
    """The watch shows what was written before the status returns, or after that."""
    world = grouped("a", "b")
    done = pod_group(minimum=2, status={"phase": "Scheduling", "scheduled": 1})
    world.writer.mark(POD_GROUP, "ns/g")
    async with running(world) as api:
        await asyncio.sleep(1)
        first = {**api.groups["ns/g"]}
        api.faults["group ns/g"] = [Unreachable("no answer")]
        api.during = lambda _: None if is_late else world.cluster.gangs.put_group(done)
        world.cluster.put_bound(pod("a", labels={names.POD_GROUP_LABEL: "g"}, on="node"))
        world.writer.mark(POD_GROUP, "ns/g")
        await asyncio.sleep(1)
        api.during = lambda _: None
        world.cluster.remove_bound("uid-a")
        world.cluster.put_pending(pod("a", labels={names.POD_GROUP_LABEL: "g"}))
        world.writer.mark(POD_GROUP, "ns/g")
        await asyncio.sleep(10)
        if is_late:
            world.cluster.gangs.put_group(done)
            world.writer.mark(POD_GROUP, "ns/g")
            await asyncio.sleep(10)
        view = world.cluster.gangs.view("ns/g")
    assert view
    assert {**view.status, "scheduleStartTime": ""} == {**first, "scheduleStartTime": ""}


# --- GpuPods ----------------------------------------------------------------------------------------------------


async def test_a_gpu_pod_shows_whether_its_pod_holds_what_it_was_allocated() -> None:
    world = with_card()
    world.cluster.put_bound(pod("p", {NVIDIA: "1"}, on="a", allocated=whole(1)))
    world.cluster.allocations.put_gpu_pod(gpu_pod("p", "GPU-0", node="a"))
    world.writer.mark(GPU_POD, "ns/p.a")
    async with running(world) as api:
        await asyncio.sleep(1)
        assert api.order() == ["gpu pod p.a"]
        record = world.cluster.allocations.gpu_pod("ns/p.a")
        assert record is not None
        [condition] = record.conditions
        assert (condition["type"], condition["status"], condition["reason"]) == ("Consistent", "False", "Drifted")
        world.writer.mark(GPU_POD, "ns/p.a")
        world.writer.mark(GPU_POD, "ns/unknown")
        await asyncio.sleep(1)
        assert len(api.calls) == 1


async def test_a_gpu_pod_that_could_not_be_written_is_written_later() -> None:
    world = with_card()
    world.cluster.put_bound(pod("p", {NVIDIA: "1"}, on="a", allocated=whole(0)))
    world.cluster.allocations.put_gpu_pod(gpu_pod("p", "GPU-0", node="a"))
    world.api.faults["gpu pod p.a"] = [Unreachable("away")]
    world.writer.mark(GPU_POD, "ns/p.a")
    async with running(world) as api:
        await asyncio.sleep(RETRY + 1)
    assert len(api.times("gpu pod p.a")) == 2


@pytest.mark.parametrize(
    ("current", "calls"),
    [
        pytest.param(pod("p", on="b"), ["pod p", "delete"], id="on another node"),
        pytest.param(pod("p", on="a", uid="another"), ["pod p", "delete"], id="of another UID"),
        pytest.param(pod("p"), ["pod p", "delete"], id="not bound"),
        pytest.param(pod("p", on="a"), ["pod p"], id="not seen yet"),
        pytest.param(None, ["pod p", "delete"], id="there is none"),
    ],
)
async def test_a_gpu_pod_without_a_pod_of_its_name_node_and_uid_is_deleted(
    current: Raw | None, calls: list[str]
) -> None:
    world = with_card()
    if current is not None:
        world.api.pods["p"] = current
    world.cluster.allocations.put_gpu_pod(gpu_pod("p", "GPU-0", node="a"))
    world.writer.mark(GPU_POD, "ns/p.a")
    async with running(world) as api:
        await asyncio.sleep(RETRY + 1)
    assert api.order() == [call.replace("delete", "delete p.a") for call in calls]


async def test_a_gpu_pod_stays_while_its_pod_cannot_be_read() -> None:
    world = with_card()
    world.api.faults["pod p"] = [ApiError(403, "Forbidden", "no"), Unreachable("no answer")]
    world.cluster.allocations.put_gpu_pod(gpu_pod("p", "GPU-0", node="a"))
    world.writer.mark(GPU_POD, "ns/p.a")
    async with running(world) as api:
        await asyncio.sleep(2 * RETRY - 1)
        assert api.order() == ["pod p", "pod p"]
        await asyncio.sleep(RETRY)
    assert api.order() == ["pod p", "pod p", "pod p", "delete p.a"]


async def test_a_gpu_pod_that_cannot_be_read_stays() -> None:
    """Another version wrote it, and which pod it names is not known."""
    world = with_card()
    world.cluster.allocations.put_gpu_pod({**gpu_pod("p", node="a"), "spec": {"nodeName": "a"}})
    world.writer.mark(GPU_POD, "ns/p.a")
    async with running(world) as api:
        await asyncio.sleep(RETRY + 1)
    assert api.order() == []


async def test_a_gpu_pod_that_its_agent_corrects_in_the_same_moment_stays() -> None:
    world = with_card()
    world.api.pods["p"] = pod("p", on="a")
    put = world.cluster.allocations.put_gpu_pod
    put(gpu_pod("p", "GPU-0", node="a", of="uid-old"))
    world.api.during = lambda what: put(gpu_pod("p", "GPU-0", node="a")) if what == "delete p.a" else None
    world.writer.mark(GPU_POD, "ns/p.a")
    async with running(world) as api:
        await asyncio.sleep(CONFLICT_RETRY + 1)
    assert api.order() == ["pod p", "delete p.a", "pod p"]
    record = world.cluster.allocations.gpu_pod("ns/p.a")
    assert record is not None
    assert record.actual.uid == "uid-p"


# --- plug-ins' resources that a policy refuses --------------------------------------------------------------------

NPU: Final = "example.com/npu"
DENIED: Final = ApiError(403, "Forbidden", f"ValidatingAdmissionPolicy '{refused.POLICY}' denied the request")


def limited(*node_names: str) -> World:
    world = World(kinds=Kinds(added=(Kind(name="npu", resources={NPU: 1}),)))
    world.api.denied = {NPU}
    npu = {"type": "npu", "minor": 0, "id": "N", "health": True}
    for name in node_names:
        world.api.add(name, entry(0), npu)
        world.writer.mark(NODE, name)
    return world


def written(api: Api, name: str) -> list[tuple[str, str]]:
    conditions = api.devices[name]["status"]["conditions"]
    return [
        (condition["status"], condition["reason"])
        for condition in conditions
        if condition["type"] == "ResourcesWritten.npu"
    ]


async def test_a_refused_plug_in_leaves_the_other_sums_and_is_tried_on_one_node_at_growing_intervals() -> None:
    world = limited("a", "b", "c")
    taint = {"key": names.AGENT_NOT_READY[0], "effect": "NoSchedule"}
    world.api.nodes["b"]["spec"]["taints"] = [taint]
    world.cluster.node_cache.put_node(world.api.nodes["b"])
    async with running(world) as api:
        await asyncio.sleep(1)
        assert {api.nodes[name]["status"]["allocatable"][GPU] for name in "abc"} == {"100"}
        assert {*written(api, "a"), *written(api, "b"), *written(api, "c")} == {("False", "RefusedByPolicy")}
        world.writer.mark(NODE, "b")
        await asyncio.sleep(299)
        assert api.nodes["b"]["spec"]["taints"] == []
        tries = [(round(at), what) for at, what in api.calls if what.startswith("npus")]
        assert tries[:6] == [
            (0, "npus a"), (2, "npus a"), (6, "npus b"), (14, "npus c"), (30, "npus a"), (62, "npus b")
        ]  # fmt: skip
        assert len(tries) == 9
        assert len(api.times("device a")) == 2  # once more because its agent is silent
        api.denied.clear()
        await asyncio.sleep(62)
        assert {api.nodes[name]["status"]["allocatable"][NPU] for name in "abc"} == {"1"}
        for name in "abc":
            world.writer.mark(NODE, name)
        await asyncio.sleep(1)
        assert {*written(api, "a"), *written(api, "b"), *written(api, "c")} == {("True", "Written")}


async def test_nodes_that_are_gone_have_no_turn_to_try_a_refused_plug_in() -> None:
    world = limited("a", "b", "c")
    async with running(world) as api:
        await asyncio.sleep(60)
        for name in "ab":
            world.cluster.node_cache.remove_device(name)
            world.cluster.node_cache.remove_node(name)
        await asyncio.sleep(480)
        late = [round(at) for at in api.times("npus c") if at > 150]
        assert {after - before for before, after in itertools.pairwise(late)} == {60}
        # Without any node there is no turn. The first new one tries at once.
        world.cluster.node_cache.remove_device("c")
        world.cluster.node_cache.remove_node("c")
        await asyncio.sleep(100)
        api.denied.clear()
        api.add("d", entry(0), {"type": "npu", "minor": 0, "id": "N", "health": True})
        world.writer.mark(NODE, "d")
        await asyncio.sleep(1)
        assert api.nodes["d"]["status"]["allocatable"][NPU] == "1"


async def test_a_write_without_the_right_is_retried_at_growing_intervals() -> None:
    world = with_card()
    world.api.faults["sums a"] = [ApiError(403, "Forbidden", "no")] * 6
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(130)
    assert [round(at) for at in api.times("sums a")] == [0, 2, 6, 14, 30, 62, 122]


async def test_a_status_that_another_client_changes_is_written_again_a_few_times_a_minute() -> None:
    world = with_card()
    world.writer.mark(NODE, "a")
    async with running(world) as api:
        await asyncio.sleep(1)
        assert len(api.times("device a")) == 1
        for _ in range(120):
            stored = api.devices["a"]
            world.cluster.node_cache.put_device({**stored, "status": {**stored["status"], "gpus": 9}})
            world.writer.mark(DEVICE, "a")
            await asyncio.sleep(1)
        written = api.times("device a")
        assert SAME < len(written) <= 3 * SAME
        # Another status is written at once.
        api.devices["a"] = device("a", entry(0), entry(1), generation=2)
        world.cluster.node_cache.put_device(api.devices["a"])
        world.writer.mark(DEVICE, "a")
        await asyncio.sleep(1)
    assert len(api.times("device a")) == len(written) + 1
    assert api.devices["a"]["status"]["gpus"] == 2
