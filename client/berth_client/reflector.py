"""Keep a consumer's copy of one selection of objects equal to the API server's, as client-go's Reflector does.

A reflector lists objects, passes them to its sink, and then watches. It lists at quorum, because a new leader must not
decide on old state. There are two ways to list:

* Streamed: the watch begins with an event for each object, and a bookmark ends the list. One object is in memory at a
  time. The server waits until its cache is as new as the request. It shows this state, and no other event before the
  bookmark. So an object never looks older than the sink has seen it.
* In pages, if the server does not stream lists of the kind, or two streams in a row ended before their bookmark.

Three things can happen to a watch:

* The watch ends or breaks. The reflector continues from the last version seen. Nothing is lost, and nothing is listed.
  A silent connection counts as broken: bookmarks arrive about once a minute, so 90 s without a byte may be a stall.
  (The server sometimes skips a bookmark. Opening a working watch again costs one request.)
* The server no longer has the version (410), or sends something that cannot be parsed. The reflector lists again. The
  sink then gets all objects, and at the end removes those that are gone.
* The server is busy or does not answer. Lists and watches are retried forever, because nothing else can be done. The
  intervals grow up to half a minute, or less for programs with few instances. `last_event_age` is the time since the
  last answer, for liveness probes.

The sink is called in the order of the server's versions. Between a list's request and its end, it gets nothing older. A
list is never held in memory as a whole, and other tasks run between two pages, or after some milliseconds of a stream.
"""

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol

import orjson
import structlog

from berth_api.values import decoding
from berth_api.values.backoff import ExponentialBackoff
from berth_client.client import IDLE_SECONDS
from berth_client.errors import ApiError, CallError, Unreachable
from berth_client.lists import PageLimit, StreamedLists, pages
from berth_client.objects import READING_ERRORS, Object, without_managed_fields
from berth_client.versions import Requested, Versions

WATCH_SECONDS: Final = (300, 600)
"""Range of a watch's duration, drawn at random for each watch so that watches do not all end at once."""

BACKOFF_SECONDS: Final = (0.5, 30.0)
"""Range of the pause before another attempt. The agents of thousands of nodes must not come back all at once."""
FEW_CLIENTS_BACKOFF: Final = 2.0
"""Longest pause, in seconds, of a program with a replica or two: pods wait until it sees an outage end."""
VERY_SHORT_WATCH_SECONDS: Final = 1.0
"""A watch that ends sooner than this and without a line counts as failed."""

MISSING_KIND_RETRY_SECONDS: Final = 15.0
"""Seconds between two lists of a kind that the server does not serve."""

RETRIABLE: Final = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
    }
)
"""Errors that do not concern our version: listing again would only add to the load."""

STREAMS: Final = 2
"""Streamed lists in a row that may end before their bookmark; the next list is in pages."""

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends a streamed list."""

NOT_REFUSALS: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.NOT_FOUND, HTTPStatus.GONE, HTTPStatus.TOO_MANY_REQUESTS}
)
"""Errors (4xx) that do not say that the server streams no lists of a kind; without the feature it answers 422."""

TURN_SECONDS: Final = 0.005
"""Seconds for which events may block the event loop. A hundred pods, of 0.2 ms each, can arrive at once."""

EventType = Literal["ADDED", "MODIFIED", "DELETED"]

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


class Listing(Protocol):
    """Takes one list; the list may break off, and another one begin."""

    def put(self, objects: list[Object]) -> None:
        """Take a page."""

    def end(self, version: str, /) -> None:
        """End the list at this version: objects that were on no page are gone."""


class Sink(Protocol):
    """Consumes what a reflector reads."""

    def listing(self, *, requested_at: float) -> Listing:
        """Begin a list of all objects, as of a moment after `requested_at` (monotonic seconds)."""

    def apply(self, event_type: EventType, obj: Object) -> None:
        """Take one change."""


class ListWatchApi(Protocol):
    """The subset of `ApiClient` that a reflector uses."""

    versions: Versions
    streamed_lists: StreamedLists

    async def request(self, method: str, path: str, *, params: Mapping[str, str] | None = None) -> Any:
        """Return the decoded answer."""

    def stream(self, path: str, params: Mapping[str, str], *, idle_timeout: float) -> AsyncGenerator[bytes, None]:
        """Yield an empty line once the watch is accepted, then its lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Which objects: a collection's path, selectors, and how each object is transformed before it is kept."""

    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    """`fieldSelector`, `labelSelector`."""

    transform: Callable[[Object], Object] = without_managed_fields
    """Applied object by object, so that a long list is never held in memory as a whole. It only removes fields."""

    optional: bool = False
    """Whether the server may lack the kind; there are no objects until it serves the kind."""

    may_be_forbidden: bool = False
    """Whether the client may lack the right to list the kind; there are no objects until it has the right."""

    def transformed(self, obj: Object) -> Object:
        """Return an object as the sink gets it.

        If `transform` cannot read the object, the sink gets all fields. The sink reads the object and logs what is
        wrong. An error here would end the watch.
        """
        try:
            return self.transform(obj)
        except READING_ERRORS:
            return obj


GetPage = Callable[[str, Mapping[str, str]], Coroutine[Any, Any, Object]]
"""Returns a page of the list at a path, by these parameters."""


async def list_once(
    get_page: GetPage,
    source: Source,
    sink: Sink,
    *,
    clock: Callable[[], float] = time.monotonic,
    heard: Callable[[int], None] = lambda _: None,
    limit: PageLimit | None = None,
) -> str | None:
    """Pass one list in pages to a sink; return its version, or None if the server does not serve the kind to us.

    `heard` is called after each answer with its number of objects. `limit` is what earlier lists have learned.

    Raises:
        ApiError: the server refused the list.
        Unreachable: the server did not answer.
    """
    listing, version = sink.listing(requested_at=clock()), None
    try:
        fetched = pages(functools.partial(get_page, source.path), source.params, limit)
        async with contextlib.aclosing(fetched):
            async for page in fetched:
                objects = [source.transformed(item) for item in page.get("items") or ()]
                listing.put(objects)
                version = str(page["metadata"]["resourceVersion"])
                heard(len(objects))
                del page, objects  # as in `pages`
    except ApiError as error:
        is_missing = source.optional and error.status == HTTPStatus.NOT_FOUND
        if not is_missing and not (source.may_be_forbidden and error.status == HTTPStatus.FORBIDDEN):
            raise
        heard(0)
    listing.end(version or "")
    return version


class _RelistNeededError(Exception):
    """The watch cannot continue from its version."""


@dataclass(slots=True)
class _InitialEvents:
    """A streamed list whose end has not come."""

    requested_at: float
    requested: Requested | None
    listing: Listing | None = None
    """None until the first event: the server may refuse the stream."""
    objects: int = 0


class Reflector:
    """One list and watch; `run` it as a task."""

    def __init__(
        self,
        *,
        api: ListWatchApi,
        source: Source,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
        on_bookmark: Callable[[str], None] = lambda _: None,
        max_backoff: float = BACKOFF_SECONDS[1],
    ) -> None:
        """Create a reflector.

        `on_bookmark` takes versions that the sink has reached without a change; `max_backoff` is the longest pause
        between two attempts, in seconds.
        """
        self.synced = asyncio.Event()
        """Set once the sink has the first list, and never cleared: see `last_event_age` for staleness."""
        self.listed = 0
        """Number of objects in the last list."""
        self._api = api
        self._source = source
        self._sink = sink
        self._clock = clock
        self._on_bookmark = on_bookmark
        self._backoff = ExponentialBackoff(first=BACKOFF_SECONDS[0], longest=max_backoff)
        self._version: str | None = None
        self._initial: _InitialEvents | None = None
        self._streams = 0
        """Streamed lists that began since the last list that ended."""
        self._limit = PageLimit()
        self._missed = False
        """Whether the server did not serve the kind to us at the last list, which is logged once."""
        self._failures = 0
        self._heard_at = clock()

    @property
    def is_synced(self) -> bool:
        """Return whether the sink has had the first list."""
        return self.synced.is_set()

    @property
    def is_served(self) -> bool:
        """Return whether the sink has had the first list, and the server served the kind to us at the last one."""
        return self.is_synced and not self._missed

    def last_event_age(self) -> float:
        """Return the seconds since the last list, accepted watch, event or bookmark."""
        return self._clock() - self._heard_at

    async def run(self) -> None:
        """Reflect until cancelled."""
        while True:
            try:
                await self._list_and_watch()
                self._failures = 0
            except (CallError, _RelistNeededError) as error:
                stale = isinstance(error, _RelistNeededError) or (
                    isinstance(error, ApiError) and error.status not in RETRIABLE
                )
                if stale:
                    self._version = None
                # One interruption is normal; repeated ones, and those that cost a list, are not.
                log = _log.warning if stale or self._failures else _log.info
                log("watch interrupted", path=self._source.path, lists_again=stale, error=str(error))
                self._failures += 1
                await asyncio.sleep(self._backoff.after(self._failures) * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, no secret

    async def _list_and_watch(self) -> None:
        if self._version is None and self._may_stream and await self._stream():
            return
        if self._version is None:
            self._version = await self._list()
        if self._version is None:
            await asyncio.sleep(MISSING_KIND_RETRY_SECONDS)
            return
        await self._watch({"resourceVersion": self._version})

    @property
    def _may_stream(self) -> bool:
        """Return whether to list by a stream; a kind that was not served is looked for by one request."""
        return self._streams < STREAMS and not self._missed and self._api.streamed_lists.may(self._source.path)

    async def _stream(self) -> bool:
        """List and watch by one stream until it ends; return False if the server does not stream the kind."""
        self._streams += 1
        requested = self._api.versions.request("GET", self._source.path, self._source.params)
        self._initial = _InitialEvents(self._clock(), requested)
        try:
            await self._watch({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
        except ApiError as error:
            if self._initial is None or not error.is_refused:
                raise
            if error.status not in NOT_REFUSALS:
                self._api.streamed_lists.refuse(self._source.path)
            elif error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        finally:
            is_listed, self._initial = self._initial is None, None
        if not is_listed:
            raise Unreachable("the streamed list ended before its last object")
        return True

    async def _list(self) -> str | None:
        """Pass a list to the sink; return its version, or None if the server does not serve the kind to us."""
        listed = 0

        def heard(objects: int) -> None:
            nonlocal listed
            listed += objects
            self._heard_at = self._clock()

        version = await list_once(
            self._get_page, self._source, self._sink, clock=self._clock, heard=heard, limit=self._limit
        )
        if version is None and not self._missed:
            _log.info("kind not served, looking for it from time to time", path=self._source.path)
        self._missed = version is None
        self._list_ended(listed)
        return version

    def _list_ended(self, objects: int) -> None:
        self.listed, self._streams = objects, 0
        self.synced.set()

    async def _get_page(self, path: str, params: Mapping[str, str]) -> Object:
        page: Object = await self._api.request("GET", path, params=params)
        return page

    async def _watch(self, start: Mapping[str, str]) -> None:
        """Pass events to the sink until the watch ends; `start` are the parameters for where it begins."""
        params = {
            **self._source.params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            **start,
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 - no secret
        }
        count = 0
        started = turn = self._clock()
        async with contextlib.aclosing(self._api.stream(self._source.path, params, idle_timeout=IDLE_SECONDS)) as lines:
            async for line in lines:
                self._heard_at = self._clock()
                if line:
                    self._handle_event(line)
                    count += 1
                del line  # as in `lines`
                if self._clock() - turn > TURN_SECONDS:
                    await asyncio.sleep(0)
                    turn = self._clock()
        if count == 0 and self._clock() - started < VERY_SHORT_WATCH_SECONDS:
            raise Unreachable("the watch ended as soon as it began")

    def _handle_event(self, line: bytes) -> None:
        event_type, obj, version = _parse(line)
        if self._initial is not None:
            self._handle_initial_event(self._initial, event_type, obj)
            return
        if event_type == "BOOKMARK":
            self._on_bookmark(version)
        else:
            self._sink.apply(event_type, self._source.transformed(obj))
        # After the sink: if it fails, this version counts as not seen.
        self._version = version
        self._failures = 0

    def _handle_initial_event(self, initial: _InitialEvents, event_type: str, obj: Object) -> None:
        listing = initial.listing = initial.listing or self._sink.listing(requested_at=initial.requested_at)
        if event_type == "ADDED":
            listing.put([self._source.transformed(obj)])
            initial.objects += 1
            return
        if event_type != "BOOKMARK" or (obj["metadata"].get("annotations") or {}).get(INITIAL_EVENTS_END) != "true":
            # It has ignored our parameters, as an aggregated API server may.
            self._api.streamed_lists.refuse(self._source.path)
            raise _RelistNeededError(f"a streamed list has an event of type {event_type} before its end")
        version = str(obj["metadata"]["resourceVersion"])
        listing.end(version)
        if initial.requested is not None:
            self._api.versions.compare(initial.requested, obj)
        self._version, self._initial, self._failures = version, None, 0
        self._list_ended(initial.objects)


def _parse(line: bytes) -> tuple[EventType | Literal["BOOKMARK"], Object, str]:
    """Return an event's type, object and version; raise a `_RelistNeededError` for anything else."""
    try:
        event = decoding.loads(line)
        event_type, obj = event["type"], event["object"]
        if event_type == "ERROR":
            raise _RelistNeededError(str(ApiError.of_status(obj)))
        version = str(obj["metadata"]["resourceVersion"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise _RelistNeededError(f"not a watch event: {line[:200]!r}") from error
    # Not a set: another type may not be hashable.
    if event_type not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
        raise _RelistNeededError(f"unknown event type {event_type!r}")
    return event_type, obj, version
