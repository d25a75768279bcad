"""A coroutine that runs during a benchmark, in its own thread and event loop."""

import abc
import asyncio
import contextlib
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

import aiohttp

from devcluster import Cluster, waiting


class Aside(abc.ABC):
    """Runs `work` while it is open, until it is closed."""

    def __init__(self, name: str, *, deadline: float) -> None:
        """Create it; `deadline` are the seconds until it `is_ready`."""
        self._deadline = deadline
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None]
        self._thread = threading.Thread(target=self._run, name=name)
        self._error: BaseException | None = None

    @abc.abstractmethod
    async def work(self) -> None:
        """Work until it is cancelled."""

    @property
    @abc.abstractmethod
    def is_ready(self) -> bool:
        """Whether the benchmark may begin."""

    def __enter__(self) -> Self:
        self._task = self._loop.create_task(self.work())
        self._thread.start()
        with contextlib.ExitStack() as ended:
            ended.callback(self._end)
            waiting.until(
                lambda: self._error or self.is_ready, deadline=self._deadline, what=f"{self._thread.name} to be ready"
            )
            self.check()
            ended.pop_all()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        # No other task of the loop: work may have ended by itself, and sockets may be closing.
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._loop.close()

    def check(self) -> None:
        """Raise the error that ended the work: after it the counts are incomplete."""
        if self._error is not None:
            raise RuntimeError(f"{self._thread.name} of the benchmark ended") from self._error

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the other thread
            self._error = error
        finally:
            self._loop.run_until_complete(asyncio.sleep(0.01))  # a few iterations of the loop, so that sockets close


@contextlib.asynccontextmanager
async def session(cluster: Cluster, *, limit: int = 0) -> AsyncIterator[aiohttp.ClientSession]:
    """Return a session of the cluster's administrator, with at most so many connections, or any number, that last."""
    tls = ssl.create_default_context(cafile=str(cluster.ca_file))
    connector = aiohttp.TCPConnector(ssl=tls, limit=limit)
    headers = {"Authorization": f"Bearer {cluster.token}"}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as opened:
        try:
            yield opened
        finally:
            # Close idle connections without TLS shutdown, which would outlive the event loop.
            await connector.close(abort_ssl=True)


@contextlib.asynccontextmanager
async def watch(
    session: aiohttp.ClientSession, url: str, params: Mapping[str, str], accept: str = "application/json"
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Open a watch, and close its connection at the end without TLS shutdown: the session no longer knows it then."""
    async with session.get(url, params=params, headers={"Accept": accept}) as response:
        try:
            response.raise_for_status()
            yield response
        finally:
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
