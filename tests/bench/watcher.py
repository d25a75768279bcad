"""A separate pair of eyes: when pods were bound and when their Events came, whoever did it.

It watches metadata only, with selectors that an object enters at the moment in question, so that each new object in
the stream is one bind or one Event.
"""

import asyncio
import ssl
import threading
import time
from types import TracebackType
from typing import Final, Self

import aiohttp
import orjson

from devcluster import Cluster, waiting

BOUND: Final = "/api/v1/namespaces/{}/pods?fieldSelector=spec.nodeName!="
TOLD: Final = "/api/v1/namespaces/{}/events?fieldSelector=reason=Scheduled"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_OK: Final = 200


class Watcher:
    """Counts in a thread of its own while it is open; the namespace must be empty when it opens."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.bound: list[float] = []
        """When each bind was seen, by the monotonic clock."""
        self.told: list[float] = []
        """The same of Scheduled Events."""
        self._cluster, self._namespace = cluster, namespace
        self._open: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="watcher")
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        waiting.until(lambda: self._error or len(self._open) == 2, deadline=10, what="the watches")
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
        """Raise what ended a watch: from then on the counts mean nothing."""
        if self._error is not None:
            raise RuntimeError("a watch of the benchmark ended") from self._error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._watch_all())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the other thread
            self._error = error

    async def _watch_all(self) -> None:
        tls = ssl.create_default_context(cafile=str(self._cluster.ca_file))
        headers = {"Authorization": f"Bearer {self._cluster.token}", "Accept": METADATA}
        connector = aiohttp.TCPConnector(ssl=tls)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            await asyncio.gather(self._watch(session, BOUND, self.bound), self._watch(session, TOLD, self.told))

    async def _watch(self, session: aiohttp.ClientSession, path: str, seen: list[float]) -> None:
        """Note every new object; a watch that the server ends, for it found it slow, is taken up where it was."""
        url = self._cluster.server + path.format(self._namespace)
        async with session.get(url, params={"limit": "1"}, headers={"Accept": "application/json"}) as listed:
            version = (await listed.json())["metadata"]["resourceVersion"]
        while True:
            params = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
            async with session.get(url, params=params) as response:
                if response.status != _OK:
                    raise RuntimeError(f"{url}: {response.status} {await response.text()}")
                self._open.add(path)
                async for line in response.content:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"{url}: {event['object']}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "ADDED":
                        seen.append(time.monotonic())
