"""The watch cache: its state, its history, and where watches continue."""

import asyncio
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from berth_api.objects import gpupod
from berth_client.reflector import EventType
from berth_operator.apis.aggregated.options import Selection, field_selector
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.aggregated.watch_cache import WAIT_SECONDS
from berth_operator.apis.list_watch.cache import ReflectedCache
from berth_operator.apis.list_watch.kinds import NODES, PODS

EVERYTHING = Selection()


def source(pod: str, version: int, node: str = "n1", **metadata: str) -> dict[str, Any]:
    """Return the GpuPod of a pod; `metadata` are other fields of it than those of the right one."""
    name = gpupod.name_of(pod, node)
    own = {"name": name, "namespace": "ns", "uid": pod, "creationTimestamp": "2026-01-01T00:00:00Z", **metadata}
    return {"metadata": {**own, "resourceVersion": str(version)}, "spec": {"nodeName": node}}


def second(pod: str, version: int, node: str = "n2", **metadata: str) -> dict[str, Any]:
    """Return a GpuPod that names the same pod, and was created after that of `source`."""
    return source(pod, version, node, **{"uid": "second", "creationTimestamp": "2026-01-01T00:00:01Z", **metadata})


CARD = {"type": "gpu", "minor": 0, "id": "GPU-0"}
USE = {"type": "gpu", "minor": 0, "free": {"kubernetes.io/gpu-core": "100"}}


def device(name: str, version: int, spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": name, "creationTimestamp": "T", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": spec, "status": {"devices": [USE]}}


def listed(cache: ReflectedCache, version: int, *objects: dict[str, Any]) -> ReflectedCache:
    listing = cache.listing(requested_at=0.0)
    for obj in objects:  # one page each
        listing.put([obj])
    listing.end(str(version))
    return cache


def changed(cache: ReflectedCache, *changes: tuple[EventType, str, int]) -> ReflectedCache:
    for event_type, name, version in changes:
        cache.apply(event_type, source(name, version))
    return cache


def names(cache: ReflectedCache) -> list[tuple[str, int]]:
    return [(entry.key[1], entry.version) for entry in cache.select(EVERYTHING)]


def since(cache: ReflectedCache, version: int) -> list[tuple[str, str, int]]:
    changes = cache.read(cache.place_after(version), 100)
    return [(each.type, each.entry.key[1], each.entry.version) for each in changes]


@pytest.fixture
def cache() -> ReflectedCache:
    known = listed(ReflectedCache(PODS), 10, source("a", 3), source("b", 7))
    return changed(known, ("ADDED", "c", 11), ("MODIFIED", "a", 13), ("DELETED", "b", 16))


def test_the_state_follows_the_changes(cache: ReflectedCache) -> None:
    assert names(cache) == [("a", 13), ("c", 11)]
    assert (cache.version, cache.oldest) == (16, 10)
    found = cache.get(("ns", "a"))
    assert found is not None
    assert found.version == 13
    assert cache.get(("ns", "b")) is None


ALL: list[Any] = [("ADDED", "c", 11), ("MODIFIED", "a", 13), ("DELETED", "b", 16)]


@pytest.mark.parametrize(
    ("version", "expected"),
    [(10, ALL), (11, ALL[1:]), (12, ALL[1:]), (13, ALL[2:]), (15, ALL[2:]), (16, []), (99, [])],
)
def test_a_watch_continues_after_any_version_of_the_history(
    cache: ReflectedCache, version: int, expected: list[Any]
) -> None:
    assert since(cache, version) == expected


def test_an_older_version_has_expired(cache: ReflectedCache) -> None:
    with pytest.raises(StatusError, match=r"too old resource version: 9 \(10\)") as caught:
        cache.place_after(9)
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


def test_the_history_is_bounded_by_its_bytes() -> None:
    size = len(PODS.entry(source("a", 100)).body)
    cache = listed(ReflectedCache(PODS, history_bytes=10 * size), 100)
    place = cache.end()
    for version in range(101, 201):
        cache.apply("MODIFIED", source("a", version))
    assert cache.oldest == 190
    assert [version for _, _, version in since(cache, 190)] == list(range(191, 201))
    with pytest.raises(StatusError, match="too old"):
        cache.place_after(189)
    # A watch that did not keep up.
    with pytest.raises(StatusError, match="too old"):
        cache.read(place, 100)


def test_a_new_list_ends_all_watches(cache: ReflectedCache) -> None:
    place = cache.end()
    assert cache.read(place, 100) == []
    listed(cache, 30, source("a", 13), source("d", 25))
    assert names(cache) == [("a", 13), ("d", 25)]
    with pytest.raises(StatusError, match="too old"):
        cache.read(place, 100)
    with pytest.raises(StatusError, match="too old"):
        cache.place_after(29)
    changed(cache, ("DELETED", "d", 31))
    assert since(cache, 30) == [("DELETED", "d", 31)]


def test_a_bookmark_moves_the_version_alone(cache: ReflectedCache) -> None:
    cache.advance(50)
    cache.advance(40)
    assert (cache.version, cache.oldest, since(cache, 10)) == (50, 10, ALL)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="no field"),
        pytest.param({"devices": [{"minor": 0}]}, id="a card without a type"),
        pytest.param({"devices": [{**CARD, "resources": {"kubernetes.io/gpu-core": "many"}}]}, id="no quantity"),
        pytest.param({"devices": ["GPU-0"]}, id="no object"),
        pytest.param(None, id="null"),
    ],
)
def test_an_object_against_its_definition_is_left_out_and_logged(spec: Any) -> None:
    good = device("good", 3, {"devices": [CARD]})
    bad = device("bad", 4, spec)
    if spec == {}:
        del bad["spec"]
    cache = ReflectedCache(NODES)
    with capture_logs() as logs:
        listed(cache, 10, good, bad)
        cache.apply("MODIFIED", {**bad, "metadata": {**bad["metadata"], "resourceVersion": "11"}})
    assert names(cache) == [("good", 3)]
    assert [(line["event"], line["resource"], line["name"]) for line in logs] == [
        *[("object not shown", "gpunodes", "bad")] * 2
    ]


@pytest.mark.parametrize(
    ("before", "after", "event_type", "seen"),
    [
        pytest.param(None, "n1", "ADDED", "ADDED", id="came"),
        pytest.param(None, "n2", "ADDED", None, id="came elsewhere"),
        pytest.param("n1", "n1", "MODIFIED", "MODIFIED", id="changed"),
        pytest.param("n2", "n1", "MODIFIED", "ADDED", id="moved here"),
        pytest.param("n1", "n2", "MODIFIED", "DELETED", id="moved away"),
        pytest.param("n2", "n2", "MODIFIED", None, id="changed elsewhere"),
        pytest.param("n1", "n1", "DELETED", "DELETED", id="went"),
        pytest.param("n2", "n2", "DELETED", None, id="went elsewhere"),
        pytest.param(None, "n1", "DELETED", None, id="went and was never here"),
    ],
)
def test_a_selection_sees_objects_come_and_go(
    before: str | None, after: str, event_type: EventType, seen: str | None
) -> None:
    selection = Selection(fields=field_selector(PODS, "spec.node_name=n1"))
    cache = listed(ReflectedCache(PODS), 5, *([] if before is None else [source("a", 4, before)]))
    cache.apply(event_type, source("a", 6, after))
    [change] = cache.read(cache.place_after(5), 10)
    assert change.seen_by(selection) == seen


async def test_a_version_is_waited_for(cache: ReflectedCache) -> None:
    await cache.wait_for(16)
    waiting = asyncio.create_task(cache.wait_for(20))
    for version in (18, 20):
        await asyncio.sleep(0)
        assert not waiting.done()
        cache.advance(version)
    await waiting


@pytest.mark.looptime
async def test_a_version_that_does_not_come_is_too_large(cache: ReflectedCache, looptime: float) -> None:
    with pytest.raises(StatusError, match="Too large resource version: 17, current: 16") as caught:
        await cache.wait_for(17)
    assert looptime == WAIT_SECONDS
    assert caught.value.status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    with pytest.raises(StatusError, match="gpupods are not known yet") as caught:
        await ReflectedCache(PODS).wait_for(0)
    assert caught.value.code == 503


# --- two GpuPods of one pod -------------------------------------------------------------------------------------


def nodes(cache: ReflectedCache) -> list[tuple[str, str, int]]:
    """Return the name, the node and the version of all objects, which their bodies have, too."""
    entries = cache.select(EVERYTHING)
    bodies = [orjson.loads(entry.body) for entry in entries]
    assert [int(body["metadata"]["resourceVersion"]) for body in bodies] == [entry.version for entry in entries]
    return [(entry.key[1], entry.fields["spec.node_name"], entry.version) for entry in entries]


SECONDS = [
    pytest.param(second("a", 12), id="of another node"),
    pytest.param(second("a", 12, node="n1"), id="after that of an older agent"),
]


@pytest.mark.parametrize("other", SECONDS)
def test_a_second_gpu_pod_of_a_pod_is_not_served_before_the_first_is_gone(other: dict[str, Any]) -> None:
    node = other["spec"]["nodeName"]
    cache = listed(ReflectedCache(PODS), 10, source("a", 3, name="a"))
    cache.apply("ADDED", other)
    assert (nodes(cache), since(cache, 10), cache.version) == ([("a", "n1", 3)], [], 12)
    cache.apply("MODIFIED", source("a", 13, name="a"))
    cache.apply("DELETED", source("a", 14, name="a"))
    assert nodes(cache) == [("a", node, 14)]
    cache.apply("MODIFIED", {**other, "metadata": {**other["metadata"], "resourceVersion": "15"}})
    cache.apply("DELETED", {**other, "metadata": {**other["metadata"], "resourceVersion": "16"}})
    assert nodes(cache) == []
    assert since(cache, 12) == [
        ("MODIFIED", "a", 13),
        ("MODIFIED", "a", 14),
        ("MODIFIED", "a", 15),
        ("DELETED", "a", 16),
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_gpu_pods_in_a_list_the_first_that_was_created_is_served(order: int) -> None:
    both = [source("a", 3), second("a", 4)]
    cache = listed(ReflectedCache(PODS), 10, *both[::order])
    assert nodes(cache) == [("a", "n1", 3)]
    cache.apply("DELETED", second("a", 11))
    assert (nodes(cache), since(cache, 10)) == ([("a", "n1", 3)], [])
    cache.apply("DELETED", source("a", 12))
    assert (nodes(cache), since(cache, 10)) == ([], [("DELETED", "a", 12)])


def test_what_two_gpu_pods_leave_is_forgotten_with_a_new_list() -> None:
    cache = listed(ReflectedCache(PODS), 10, source("a", 3), second("a", 4))
    listed(cache, 20, source("a", 3))
    cache.apply("DELETED", source("a", 21))
    assert nodes(cache) == []
