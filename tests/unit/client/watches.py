"""A scripted API server for reflectors: pages to list and watches to play, in virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from berth_client import reflector
from berth_client.errors import ApiError, Unreachable
from berth_client.lists import StreamedLists
from berth_client.objects import Object
from berth_client.versions import Versions

Step = bytes | float | Exception
"""Of a watch: a line, seconds of silence, or a failure."""


def item(name: str, version: int = 1) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def page(*names: str, version: int, more: str = "") -> Object:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": [item(n) for n in names]}


def line(event_type: str, name: str, version: int) -> bytes:
    return orjson.dumps({"type": event_type, "object": item(name, version)})


def end_line(version: int) -> bytes:
    """Return the bookmark that ends a streamed list."""
    metadata = {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"}}
    return orjson.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}})


def error_line(code: int) -> bytes:
    return orjson.dumps({"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": "Expired"}})


@dataclass
class ScriptedApi:
    """Plays its lists and watches in order, then an endless silent watch; streams no list without `streams`."""

    lists: list[Object | Exception] = field(default_factory=list)
    watches: list[list[Step]] = field(default_factory=list)
    list_params: list[dict[str, str]] = field(default_factory=list)
    watch_params: list[dict[str, str]] = field(default_factory=list)
    watched_at: list[float] = field(default_factory=list)
    list_seconds: float = 0.0
    streams: list[list[Step]] | None = None
    """Streamed lists, with the watches that follow."""
    stream_params: list[dict[str, str]] = field(default_factory=list)
    versions: Versions = field(default_factory=Versions)
    streamed_lists: StreamedLists = field(default_factory=StreamedLists)

    async def request(self, _method: str, _path: str, *, params: Mapping[str, str] | None = None) -> Any:
        self.list_params.append(dict(params or {}))
        await asyncio.sleep(self.list_seconds)
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stream(
        self, _path: str, params: Mapping[str, str], *, idle_timeout: float
    ) -> AsyncGenerator[bytes, None]:
        steps: list[Step]
        if "sendInitialEvents" in params:
            self.stream_params.append(dict(params))
            steps = self.streams.pop(0) if self.streams else [ApiError(422, "Invalid", "sendInitialEvents: Forbidden")]
        else:
            self.watch_params.append(dict(params))
            self.watched_at.append(asyncio.get_running_loop().time())
            steps = self.watches.pop(0) if self.watches else [float("inf")]
        if not (steps and isinstance(steps[0], Exception)):
            yield b""
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, bytes):
                yield step
                continue
            await asyncio.sleep(min(step, idle_timeout))
            if step > idle_timeout:
                raise Unreachable("idle")


@dataclass
class Recorder:
    """A sink that records its calls."""

    calls: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    requested: list[float] = field(default_factory=list)
    bookmarks: list[str] = field(default_factory=list)
    failure: Exception | None = None
    on_put: Callable[[], None] = lambda: None

    def listing(self, *, requested_at: float) -> "RecordedListing":
        self.requested.append(requested_at)
        return RecordedListing(self)

    def apply(self, event_type: reflector.EventType, obj: Object) -> None:
        if self.failure is not None:
            raise self.failure
        self.note(f"{event_type} {obj['metadata']['name']}")

    def note(self, words: str) -> None:
        self.calls.append(words.strip())
        self.times.append(asyncio.get_running_loop().time())


@dataclass
class RecordedListing:
    """One list, written down page by page."""

    recorder: Recorder

    def put(self, objects: list[Object]) -> None:
        self.recorder.on_put()
        self.recorder.note("put " + ",".join(obj["metadata"]["name"] for obj in objects))

    def end(self, _version: str, /) -> None:
        self.recorder.note("end")
