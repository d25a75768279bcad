"""An independent observer of any scheduler. It records when pods were bound and when their Events were created.

It watches only metadata, with selectors that an object begins to match at the moment in question. So each new object in
the stream is one bind or one Event.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import orjson

from devcluster import Cluster
from tests.bench.cluster import aside
from tests.bench.cluster.aside import Aside

BOUND: Final = "/api/v1/namespaces/{}/pods?fieldSelector=spec.nodeName!="
SCHEDULED_EVENTS: Final = "/api/v1/namespaces/{}/events?fieldSelector=reason=Scheduled"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
OPEN_SECONDS: Final = 10.0

Raw = dict[str, Any]
Signals = Callable[[Raw], list[str]]
"""Returns the state of an object, if the benchmark needs to know when it first had it."""
NO_SIGNALS: Final[Mapping[str, Signals]] = {}


class Watcher(Aside):
    """Records binds and Events while it is open, starting from what is there when it opens."""

    def __init__(self, cluster: Cluster, namespace: str, signals: Mapping[str, Signals] = NO_SIGNALS) -> None:
        """Create a watcher that also watches the whole objects under some paths, and the state that each reports."""
        super().__init__("watcher", deadline=OPEN_SECONDS)
        self.bound: dict[str, float] = {}
        """Pod -> when its bind was seen, by the monotonic clock in seconds."""
        self.gone: dict[str, float] = {}
        """The same for the ends of bound pods."""
        self.events: dict[str, float] = {}
        """The same for Scheduled Events, by their own names."""
        self.heard_at = 0.0
        """When the last of all these was seen."""
        self.signaled: dict[str, float] = {}
        """State of an object under one of the paths -> when it was first seen."""
        self._signals = signals
        self._cluster, self._namespace = cluster, namespace
        self._open: set[str] = set()

    @property
    def is_ready(self) -> bool:
        """Whether every watch is open."""
        return len(self._open) == 2 + len(self._signals)

    async def work(self) -> None:
        """Watch."""
        bound, events = {"ADDED": self.bound, "DELETED": self.gone}, {"ADDED": self.events}
        async with aside.session(self._cluster) as session:
            await asyncio.gather(
                self._watch(session, BOUND, lambda event: self._record(event, bound)),
                self._watch(session, SCHEDULED_EVENTS, lambda event: self._record(event, events)),
                *(self._watch_signals(session, path, signals) for path, signals in self._signals.items()),
            )

    async def _watch_signals(self, session: aiohttp.ClientSession, path: str, signals: Signals) -> None:
        def note(event: Raw) -> None:
            for text in signals(event["object"]) if event["type"] in ("ADDED", "MODIFIED") else ():
                self.signaled.setdefault(text, time.monotonic())

        await self._watch(session, path, note, accept="application/json")

    async def _watch(
        self, session: aiohttp.ClientSession, path: str, note: Callable[[Raw], None], accept: str = METADATA
    ) -> None:
        """Record every event.

        A watch that the server ends because it was slow continues where it stopped.
        """
        url = self._cluster.server + path.format(self._namespace)
        async with session.get(url, params={"limit": "1"}, headers={"Accept": "application/json"}) as listed:
            version = (await listed.json())["metadata"]["resourceVersion"]
        while True:
            params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
            async with aside.watch(session, url, params, accept) as response:
                self._open.add(path)
                async for line in response.content:
                    version = _version(event := orjson.loads(line))
                    note(event)

    def _record(self, event: Raw, times: Mapping[str, dict[str, float]]) -> None:
        """Record an object that appears or disappears."""
        if event["type"] in times:
            self.heard_at = times[event["type"]][event["object"]["metadata"]["name"]] = time.monotonic()


def _version(event: Raw) -> str:
    if event["type"] == "ERROR":
        raise RuntimeError(f"a watch ended: {event['object']}")
    return str(event["object"]["metadata"]["resourceVersion"])
