"""Lists and watches of objects, and when they are retried, in virtual time."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from berth_agent.cluster import GONE, CallError
from berth_agent.following import Object, follow

pytestmark = pytest.mark.looptime

T = TypeVar("T")

AWAY = CallError("away")
Step = Object | float | CallError
"""Of a watch: an event, seconds of silence, or a failure."""


def event(kind: str, version: int) -> Object:
    return {"type": kind, "object": {"metadata": {"name": "a", "resourceVersion": str(version)}}}


@dataclass
class Server:
    """Plays its lists and watches in their order, and the last of each for ever."""

    lists: list[int | CallError]
    """Versions of lists with one object."""
    watches: list[list[Step]]
    asked: list[tuple[float, str]] = field(default_factory=list)
    """When a list was asked for, or a watch from a version."""

    async def list(self, path: str, *, field: str) -> tuple[list[Object], str]:
        self._ask(path, field, "list")
        found = following(self.lists)
        if isinstance(found, CallError):
            raise found
        return [event("", found)["object"]], str(found)

    async def watch(self, path: str, *, field: str, version: str) -> AsyncGenerator[Object, None]:
        self._ask(path, field, version)
        for step in following(self.watches):
            if isinstance(step, CallError):
                raise step
            if isinstance(step, dict):
                yield step
            else:
                await asyncio.sleep(step)

    def _ask(self, path: str, only: str, what: str) -> None:
        assert (path, only) == ("/things", "x=y")
        self.asked.append((asyncio.get_running_loop().time(), what))


def following(script: list[T]) -> T:
    return script.pop(0) if len(script) > 1 else script[0]


async def events_within(server: Server, seconds: float) -> list[str]:
    """Return the events within so many seconds."""
    heard: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await follow(
                server,
                "/things",
                field="x=y",
                listed=lambda found, version: heard.append(f"{len(found)} at {version}"),
                changed=lambda kind, found: heard.append(f"{kind} {found['metadata']['resourceVersion']}"),
            )
    return heard


async def test_changes_follow_the_list_and_a_watch_that_ends_goes_on_where_it_was() -> None:
    server = Server([7], [[event("MODIFIED", 8), event("BOOKMARK", 9), 300.0], [event("DELETED", 10), 9e9]])
    assert await events_within(server, 600) == ["1 at 7", "MODIFIED 8", "DELETED 10"]
    assert server.asked == [(0, "list"), (0, "7"), (300, "9")]


async def test_an_expired_version_is_listed_again_at_once() -> None:
    server = Server([7, 20], [[60.0, CallError("too old", status=GONE)], [9e9]])
    assert await events_within(server, 600) == ["1 at 7", "1 at 20"]
    assert server.asked == [(0, "list"), (0, "7"), (60, "list"), (60, "20")]


@pytest.mark.parametrize(
    ("lists", "watches"), [([AWAY], [[]]), ([7], [[CallError("forbidden", status=403)]])], ids=["list", "watch"]
)
async def test_who_is_refused_asks_less_and_less_often(lists: list[int | CallError], watches: list[list[Step]]) -> None:
    server = Server(lists, watches)
    await events_within(server, 200)
    times = [time for time, what in server.asked if what == "list"]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps == [0.5, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30]


async def test_a_watch_that_lasted_is_soon_taken_up_again() -> None:
    server = Server([AWAY, AWAY, 7], [[100.0, AWAY], [9e9]])
    await events_within(server, 600)
    assert [time for time, what in server.asked if what == "list"] == [0, 0.5, 1.5, 102]
