"""Watches in virtual time: the state, then changes, bookmarks, and how they end."""

import asyncio
from typing import Any

import orjson
import pytest

from berth_operator.apis.aggregated import options
from berth_operator.apis.aggregated.frames import BATCH, Form
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.aggregated.watch import BOOKMARK_SECONDS, Watch
from berth_operator.apis.list_watch.cache import ReflectedCache
from berth_operator.apis.list_watch.kinds import PODS
from tests.unit.list_watch.test_cache import changed, listed, source

pytestmark = pytest.mark.looptime

SECONDS = 100.0
BOOKMARKS = {"allowWatchBookmarks": "true"}
LIST = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", **BOOKMARKS}


class Client:
    """Reads a watch; `hold` makes it stop reading."""

    def __init__(self, cache: ReflectedCache, **query: str) -> None:
        wanted = options.read(PODS, "", {"watch": "true", **query})
        self.watch = Watch(cache, Form(PODS), wanted, seconds=SECONDS)
        self.frames: list[dict[str, Any]] = []
        self.writes = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.task = asyncio.create_task(self.watch.run(self._take))

    async def _take(self, data: bytes) -> None:
        await self.may_read.wait()
        self.writes += 1
        self.frames += [orjson.loads(line) for line in data.splitlines()]

    async def seen(self, seconds: float = 1.0) -> list[tuple[str, str, str]]:
        """Return type, name and version of the frames after some seconds."""
        await asyncio.sleep(seconds)
        taken, self.frames = self.frames, []
        return [(each["type"], *_named(each["object"])) for each in taken]


def _named(obj: dict[str, Any]) -> tuple[str, str]:
    metadata = obj["metadata"]
    return metadata.get("name", ""), metadata.get("resourceVersion", str(obj.get("code")))


@pytest.fixture
def cache() -> ReflectedCache:
    return listed(ReflectedCache(PODS), 10, source("a", 3), source("b", 7))


STATE = [("ADDED", "a", "3"), ("ADDED", "b", "7")]


@pytest.mark.parametrize("version", ["", "0"])
async def test_the_state_comes_first_and_then_the_changes(cache: ReflectedCache, version: str) -> None:
    client = Client(cache, resourceVersion=version)
    assert await client.seen() == STATE
    changed(cache, ("ADDED", "c", 11), ("MODIFIED", "a", 13))
    changed(cache, ("DELETED", "b", 16))
    assert await client.seen() == [("ADDED", "c", "11"), ("MODIFIED", "a", "13"), ("DELETED", "b", "16")]


async def test_a_watch_continues_after_its_version_on_any_replica(cache: ReflectedCache) -> None:
    changes: list[Any] = [("ADDED", "c", 11), ("MODIFIED", "a", 13), ("DELETED", "b", 16)]
    other = changed(listed(ReflectedCache(PODS), 11, source("a", 3), source("b", 7), source("c", 11)), *changes[1:])
    changed(cache, *changes)
    for each in (cache, other):
        assert await Client(each, resourceVersion="11").seen() == [("MODIFIED", "a", "13"), ("DELETED", "b", "16")]


async def test_nothing_comes_twice_from_a_replica_that_is_behind(cache: ReflectedCache) -> None:
    client = Client(cache, resourceVersion="13")
    changed(cache, ("ADDED", "c", 11), ("MODIFIED", "a", 13), ("DELETED", "b", 16))
    assert await client.seen() == [("DELETED", "b", "16")]


async def test_an_old_version_is_refused_at_once(cache: ReflectedCache) -> None:
    with pytest.raises(StatusError, match="too old resource version: 9"):
        Client(cache, resourceVersion="9")


async def test_a_selection_is_watched(cache: ReflectedCache) -> None:
    client = Client(cache, fieldSelector="metadata.name=a")
    changed(cache, ("MODIFIED", "b", 12), ("MODIFIED", "a", 13))
    assert await client.seen() == [("ADDED", "a", "3"), ("MODIFIED", "a", "13")]


async def test_bookmarks_come_with_versions_that_are_new_to_the_client(cache: ReflectedCache) -> None:
    client, plain = Client(cache, resourceVersion="10", **BOOKMARKS), Client(cache, resourceVersion="10")
    assert await client.seen(BOOKMARK_SECONDS + 1) == []
    cache.advance(20)
    assert await client.seen(BOOKMARK_SECONDS) == [("BOOKMARK", "", "20")]
    changed(cache, ("MODIFIED", "a", 23))
    assert await client.seen() == [("MODIFIED", "a", "23")]
    cache.advance(24)
    # The last is written when the watch ends.
    assert await client.seen(SECONDS) == [("BOOKMARK", "", "24")]
    assert client.task.done()
    assert await plain.seen() == [("MODIFIED", "a", "23")]


async def test_the_end_of_the_state_is_marked_for_clients_that_list_by_a_watch(cache: ReflectedCache) -> None:
    client = Client(cache, **LIST)
    await asyncio.sleep(1)
    assert client.frames[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert await client.seen() == [*STATE, ("BOOKMARK", "", "10")]
    no_state = Client(cache, **{**LIST, "sendInitialEvents": "false"})
    changed(cache, ("MODIFIED", "a", 13))
    assert await no_state.seen() == [("MODIFIED", "a", "13")]


async def test_a_watch_ends_when_its_time_is_over(cache: ReflectedCache, looptime: float) -> None:
    await Client(cache).task
    assert looptime == SECONDS


@pytest.mark.parametrize("lists_again", [False, True])
async def test_who_does_not_keep_up_has_expired(*, lists_again: bool) -> None:
    size = len(PODS.entry(source("a", 100)).body)
    cache = listed(ReflectedCache(PODS, history_bytes=10 * size), 100, source("a", 99))
    client = Client(cache)
    client.may_read.clear()
    await asyncio.sleep(1)
    for version in range(101, 201):
        cache.apply("MODIFIED", source("a", version))
    if lists_again:
        listed(cache, 300)
    client.may_read.set()
    assert await client.seen() == [("ADDED", "a", "99"), ("ERROR", "", "410")]
    assert client.task.done()


async def test_a_new_list_ends_watches_that_have_seen_everything(cache: ReflectedCache) -> None:
    client = Client(cache, resourceVersion="10")
    assert await client.seen() == []
    listed(cache, 20, source("a", 3))
    assert await client.seen() == [("ERROR", "", "410")]


async def test_a_large_state_is_written_in_parts() -> None:
    cache = listed(ReflectedCache(PODS), 9999, *(source(f"p{number}", number + 1) for number in range(2 * BATCH + 1)))
    client = Client(cache)
    assert len(await client.seen()) == 2 * BATCH + 1
    assert client.writes == 3
