"""Keeps a consumer's picture of one selection of objects the same as the API server's.

A reflector lists (in pages, at quorum: a new leader must not decide on an old picture), hands page after page
to its sink, and watches from there. Three things can happen to a watch:

* it ends or breaks: it is taken up again from the last version seen; nothing is lost, nothing is listed.
  A silent connection counts as broken: bookmarks come about once a minute, so 90 s without a byte may be a
  stall. (The server skips one now and then; taking a sound watch up again costs one request);
* the server no longer has that version (410), or says anything that we do not understand: list again.
  The sink then gets the whole truth, deletions at its end;
* the server is busy or away: both are tried for ever, since there is nothing else to do, at growing
  intervals up to half a minute. `last_event_age` tells liveness probes how long ago that was.

The sink is called in the order of the server's versions and never between a list's request and its end with
anything older. No list ever stands in memory whole, and between two pages others have their turn.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import orjson
import structlog

from berth_operator.clients import kube

PAGE: Final = 250
"""Objects per page: two pages of each kind stand in memory at a time, and one of pods is decoded in some 10 ms."""

IDLE_SECONDS: Final = 90.0
WATCH_SECONDS: Final = (300, 600)
"""Range of a watch's life, drawn anew each time so that watches do not all end together."""

BACKOFF_SECONDS: Final = (0.5, 30.0)
SHORT_SECONDS: Final = 1.0
"""A watch that ends sooner than this and without a line counts as failed."""

ABSENT_SECONDS: Final = 15.0
"""How often a kind that is unknown to the server is asked for again."""
NOT_FOUND: Final = 404

BUSY: Final = frozenset({429, 500, 502, 503})
"""Refusals that say nothing about our version: listing now would only add to the load."""

Object = dict[str, Any]
Kind = Literal["ADDED", "MODIFIED", "DELETED"]

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Listing(Protocol):
    """Who takes one list; it may break off before its end, and another begin."""

    def put(self, objects: list[Object]) -> None:
        """Take a page."""

    def end(self) -> None:
        """Know that it was the last: what stood on none is gone."""


class Sink(Protocol):
    """Who wants to know."""

    def listing(self, *, requested_at: float) -> Listing:
        """Begin to take the whole truth, as of some moment after `requested_at` (monotonic seconds)."""

    def apply(self, kind: Kind, obj: Object) -> None:
        """Take one change."""


class Api(Protocol):
    """What a reflector needs of a `kube.KubeClient`."""

    async def request(self, method: str, path: str, *, params: Mapping[str, str] | None = None) -> Any:
        """Return the decoded answer."""

    def stream(self, path: str, params: Mapping[str, str], *, idle_timeout: float) -> AsyncGenerator[bytes, None]:
        """Yield an empty line once the watch is accepted, then its lines."""


def without_managed_fields(obj: Object) -> Object:
    """Drop what nobody reads and is often half of an object."""
    obj["metadata"].pop("managedFields", None)
    return obj


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Which objects: a collection's path, selectors, and what to keep of each object."""

    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    """`fieldSelector`, `labelSelector`."""

    keep: Callable[[Object], Object] = without_managed_fields
    """Applied page by page, so that a long list never stands in memory whole."""

    optional: bool = False
    """Whether the kind may be unknown to the server: there are none then, until it is known."""


class _RelistError(Exception):
    """The watch cannot go on from its version."""


class Reflector:
    """One list and watch; `run` it as a task."""

    def __init__(
        self,
        *,
        api: Api,
        source: Source,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.synced = asyncio.Event()
        """Set once the sink has the first list, and never cleared: see `last_event_age` for staleness."""
        self._api = api
        self._source = source
        self._sink = sink
        self._clock = clock
        self._version: str | None = None
        self._failures = 0
        self._heard_at = clock()

    @property
    def is_synced(self) -> bool:
        """Whether the sink has had the first list."""
        return self.synced.is_set()

    def last_event_age(self) -> float:
        """Return the seconds since the server last spoke: a list, an accepted watch, an event, a bookmark."""
        return self._clock() - self._heard_at

    async def read(self) -> None:
        """Hand one list to the sink, and watch nothing.

        Raises:
            ApiError: the server refused it.
            Unreachable: it did not answer.
        """
        await self._list()

    async def run(self) -> None:
        """Reflect until cancelled."""
        while True:
            try:
                await self._follow()
                self._failures = 0
            except (kube.ApiError, kube.Unreachable, _RelistError) as error:
                self._note(error)
                await asyncio.sleep(self._backoff())

    async def _follow(self) -> None:
        if self._version is None:
            self._version = await self._list()
        if self._version is None:
            await asyncio.sleep(ABSENT_SECONDS)
            return
        started = self._clock()
        lines = await self._watch(self._version)
        if lines == 0 and self._clock() - started < SHORT_SECONDS:
            raise kube.Unreachable("the watch ended as soon as it began")

    async def _list(self) -> str | None:
        """Hand a list to the sink; return its version, or None if the kind is unknown to the server."""
        listing = self._sink.listing(requested_at=self._clock())
        version = None
        try:
            async with contextlib.aclosing(self._pages()) as pages:
                async for page in pages:
                    self._heard_at = self._clock()
                    listing.put([self._source.keep(item) for item in page.get("items") or ()])
                    version = str(page["metadata"]["resourceVersion"])
        except kube.ApiError as error:
            if not (self._source.optional and error.status == NOT_FOUND):
                raise
            self._heard_at = self._clock()
        listing.end()
        self.synced.set()
        return version

    async def _pages(self) -> AsyncGenerator[Object, None]:
        """Yield the pages of a list; the server prepares the next one while the last is read."""
        more, asked = "first", self._ask("")
        try:
            while more:
                page = await asked
                if more := page["metadata"].get("continue") or "":
                    asked = self._ask(more)
                    await asyncio.sleep(0)  # now it is sent; reading the page gives nobody else a turn
                yield page
        finally:
            asked.cancel()

    def _ask(self, more: str) -> asyncio.Task[Object]:
        params = {**self._source.params, "limit": str(PAGE), **({"continue": more} if more else {})}
        return asyncio.ensure_future(self._api.request("GET", self._source.path, params=params))

    async def _watch(self, version: str) -> int:
        """Pass on what happens until the watch ends; return how many lines came."""
        params = {
            **self._source.params,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 - no secret
        }
        count = 0
        async with contextlib.aclosing(self._api.stream(self._source.path, params, idle_timeout=IDLE_SECONDS)) as lines:
            async for line in lines:
                self._heard_at = self._clock()
                if line:
                    self._take(line)
                    count += 1
        return count

    def _take(self, line: bytes) -> None:
        kind, obj, version = _parse(line)
        if kind != "BOOKMARK":
            self._sink.apply(kind, self._source.keep(obj))
        # After the sink: should it fail, this version has not been seen.
        self._version = version
        self._failures = 0

    def _note(self, error: Exception) -> None:
        stale = isinstance(error, _RelistError) or (isinstance(error, kube.ApiError) and error.status not in BUSY)
        if stale:
            self._version = None
        # A single break is daily life; one that repeats, or costs a list, is not.
        tell = log.warning if stale or self._failures else log.info
        tell("watch interrupted", path=self._source.path, lists_again=stale, error=str(error))

    def _backoff(self) -> float:
        first, last = BACKOFF_SECONDS
        # The exponent is bounded: a float overflows after a thousand failures.
        delay = min(last, first * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, no secret


def _parse(line: bytes) -> tuple[Kind | Literal["BOOKMARK"], Object, str]:
    """Return an event's kind, object and version; anything else is a reason to list again."""
    try:
        event = orjson.loads(line)
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise _RelistError(str(kube.ApiError.of_status(obj)))
        version = str(obj["metadata"]["resourceVersion"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise _RelistError(f"not a watch event: {line[:200]!r}") from error
    if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
        raise _RelistError(f"unknown event type {kind!r}")
    return kind, obj, version
