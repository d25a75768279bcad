"""Which pods each watch shows, and that no pod is lost while scheduler names change."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

from berth_api import names
from berth_client.errors import ApiError
from berth_client.lists import StreamedLists
from berth_client.versions import Versions
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.watches.pod_watches import PodTable, PodWatches, WatchedPods
from tests.objects.builders import GPU, NVIDIA, device, entry, node, pod, relist, whole

Raw = dict[str, Any]


@pytest.fixture
def cluster() -> Cluster:
    state = Cluster(grace=20.0, clock=lambda: 100.0)
    state.node_cache.put_node(node())
    state.node_cache.put_device(device("node", *map(entry, range(4))))
    return state


def held(name: str, minor: int, scheduler: str) -> Raw:
    return pod(name, {NVIDIA: "1"}, on="node", allocated=whole(minor), schedulerName=scheduler)


def test_a_list_removes_only_pods_that_it_could_show(cluster: Cluster) -> None:
    table = PodTable(cluster)
    ours, others = WatchedPods(table, "ours".__eq__), WatchedPods(table, "ours".__ne__)
    relist(ours, [held("a", 0, "ours"), pod("w", {GPU: "50"}, schedulerName="ours")])
    relist(others, [held("b", 1, "other")])
    assert cluster.fleet.charges.keys() == {"uid-a", "uid-b"}
    relist(ours, [])
    assert cluster.fleet.charges.keys() == {"uid-b"}
    assert not cluster.pending
    relist(others, [])
    assert not cluster.fleet.charges


def test_pods_pass_from_one_watch_to_another(cluster: Cluster) -> None:
    table = PodTable(cluster)
    relist(WatchedPods(table, "ours".__eq__), [held("a", 0, "ours"), held("b", 1, "ours")])
    relist(WatchedPods(table, "ours".__eq__), [held("a", 0, "ours"), pod("w", schedulerName="ours")])
    table.leave("ours")
    assert not cluster.pending
    assert cluster.fleet.charges.keys() == {"uid-a"}
    relist(WatchedPods(table, lambda _name: True), [held("a", 0, "ours")])
    assert cluster.fleet.charges.keys() == {"uid-a"}
    relist(WatchedPods(table, lambda _name: True), [])
    assert not cluster.fleet.charges


class Server:
    """Answers each list with the pods that its selector matches, and never sends watch events."""

    def __init__(self, *pods: Raw) -> None:
        self.pods = pods
        self.watching: list[str] = []
        self.versions, self.streamed_lists = Versions(), StreamedLists()

    async def request(self, _method: str, _path: str, *, params: Mapping[str, str] | None = None) -> Any:
        assert params is not None
        items = [pod for pod in self.pods if _picks(params["fieldSelector"], pod)]
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def stream(
        self, _path: str, params: Mapping[str, str], *, idle_timeout: float
    ) -> AsyncGenerator[bytes, None]:
        assert idle_timeout
        if "sendInitialEvents" in params:
            raise ApiError(422, "Invalid", "sendInitialEvents is forbidden")
        self.watching.append(params["fieldSelector"])
        try:
            yield b""
            await asyncio.Event().wait()
        finally:
            self.watching.remove(params["fieldSelector"])

    def shows(self, raw: Raw) -> int:
        """Return the number of watches that show a pod."""
        return sum(_picks(each, raw) for each in self.watching)


def _picks(selector: str, raw: Raw) -> bool:
    fields = {
        "spec.schedulerName": raw["spec"]["schedulerName"],
        "spec.nodeName": raw["spec"].get("nodeName", ""),
        "status.phase": raw["status"].get("phase", "Pending"),
    }
    return all(
        (fields[name.removesuffix("!")] == value) is not name.endswith("!")
        for name, _, value in (term.partition("=") for term in selector.split(","))
    )


class OverError(Exception):
    """Ends the test when it has seen enough."""


async def end() -> None:
    raise OverError


@contextlib.asynccontextmanager
async def group() -> AsyncIterator[asyncio.TaskGroup]:
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
            tasks.create_task(end())
    except* OverError:
        pass


async def follow(watches: PodWatches, tasks: asyncio.TaskGroup, *names: str) -> None:
    watches.follow(names, tasks)
    for reflector in watches.reflectors.values():
        await reflector.synced.wait()
    await asyncio.sleep(0)


async def test_each_pod_is_in_one_watch_whatever_names_there_are(cluster: Cluster) -> None:
    bound = [held("a", 0, "a"), held("b", 1, "b"), held("other", 2, "other")]
    waiting = {name: pod(f"wait-{name}", {GPU: "50"}, schedulerName=name) for name in ("a", "b", "other")}
    server = Server(*bound, *waiting.values())
    watches = PodWatches(api=server, cluster=cluster)
    async with group() as tasks:
        for names in (("a",), ("a", "b"), ("b",)):
            await follow(watches, tasks, *names)
            ours = [waiting[name] for name in names]
            assert cluster.fleet.charges.keys() == uids(bound)
            assert cluster.pending.keys() == uids(ours)
            assert len(server.watching) == 2 * len(names) + 1
            assert [server.shows(each) for each in (*bound, *ours)] == [1] * (3 + len(ours))
            assert server.shows(waiting["other"]) == 0


async def test_the_same_names_again_change_nothing(cluster: Cluster) -> None:
    watches = PodWatches(api=Server(), cluster=cluster)
    async with group() as tasks:
        await follow(watches, tasks, "a")
        before = dict(watches.reflectors)
        watches.follow(["a"], tasks)
        assert watches.reflectors == before


def uids(pods: Sequence[Raw]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


def test_the_highest_term_of_listed_pods_is_known(cluster: Cluster) -> None:
    table = PodTable(cluster)
    ours = WatchedPods(table, "ours".__eq__)
    bound = {names.EPOCH: "41"}
    relist(
        ours,
        [
            pod("a", on="node", schedulerName="ours", annotations=bound),
            pod("b", on="node", schedulerName="ours", annotations={names.EPOCH: "40"}),
            pod("waits", schedulerName="ours", annotations={names.EPOCH: "90"}),
            pod("strange", on="node", schedulerName="ours", annotations={names.EPOCH: "9" * 18}),
            pod("broken", on="node", schedulerName="ours", annotations={names.EPOCH: "x"}),
        ],
    )
    assert table.highest_epoch == 41
