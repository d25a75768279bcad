"""An independent observer: records when pods were bound and when their Events were created, by any scheduler.

It watches metadata only, with selectors that an object enters at the moment in question, so that each new object in the
stream is one bind or one Event.
"""

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import orjson

from devcluster import Cluster, waiting

BOUND: Final = "/api/v1/namespaces/{}/pods?fieldSelector=spec.nodeName!="
SCHEDULED_EVENTS: Final = "/api/v1/namespaces/{}/events?fieldSelector=reason=Scheduled"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_OK: Final = 200

Raw = dict[str, Any]
Signals = Callable[[Raw], list[str]]
"""Returns the state of an object, if the benchmark needs to know when it first had it."""
NO_SIGNALS: Final[Mapping[str, Signals]] = {}


class Watcher:
    """Records binds and Events in a thread of its own while it is open, starting from what is there when it opens."""

    def __init__(self, cluster: Cluster, namespace: str, signals: Mapping[str, Signals] = NO_SIGNALS) -> None:
        """Create a watcher that also watches the whole objects under some paths, and the state that each reports."""
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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="watcher")
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        waiting.until(lambda: self._error or len(self._open) == 2 + len(self._signals), deadline=10, what="the watches")
        self.check()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for task in asyncio.all_tasks(self._loop):
            self._loop.call_soon_threadsafe(task.cancel)
        self._thread.join()
        self._loop.close()

    def check(self) -> None:
        """Raise the error that ended a watch: after it the counts are incomplete."""
        if self._error is not None:
            raise RuntimeError("a watch of the benchmark ended") from self._error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._watch_all())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the other thread
            self._error = error
        finally:
            self._loop.run_until_complete(asyncio.sleep(0.01))  # a few iterations of the loop, so that sockets close

    async def _watch_all(self) -> None:
        tls = ssl.create_default_context(cafile=str(self._cluster.ca_file))
        headers = {"Authorization": f"Bearer {self._cluster.token}", "Accept": METADATA}
        connector = aiohttp.TCPConnector(ssl=tls)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            bound, events = {"ADDED": self.bound, "DELETED": self.gone}, {"ADDED": self.events}
            try:
                await asyncio.gather(
                    self._watch(session, BOUND, lambda event: self._record(event, bound)),
                    self._watch(session, SCHEDULED_EVENTS, lambda event: self._record(event, events)),
                    *(self._watch_signals(session, path, signals) for path, signals in self._signals.items()),
                )
            finally:
                # Close idle connections without TLS shutdown, which would outlive the event loop.
                await connector.close(abort_ssl=True)

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
            async with session.get(url, params=params, headers={"Accept": accept}) as response:
                if response.status != _OK:
                    raise RuntimeError(f"{url}: {response.status} {await response.text()}")
                self._open.add(path)
                try:
                    async for line in response.content:
                        version = _version(event := orjson.loads(line))
                        note(event)
                finally:
                    _close(response)

    def _record(self, event: Raw, times: Mapping[str, dict[str, float]]) -> None:
        """Record an object that appears or disappears."""
        if event["type"] in times:
            self.heard_at = times[event["type"]][event["object"]["metadata"]["name"]] = time.monotonic()


def _version(event: Raw) -> str:
    if event["type"] == "ERROR":
        raise RuntimeError(f"a watch ended: {event['object']}")
    return str(event["object"]["metadata"]["resourceVersion"])


def _close(response: aiohttp.ClientResponse) -> None:
    """Close a connection without TLS shutdown, which would outlive the event loop."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
