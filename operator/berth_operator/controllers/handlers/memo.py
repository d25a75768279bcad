"""State that handlers share: a bridge between kopf's thread and the scheduler's."""

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from berth_operator.clients.bucket import Bucket
from berth_operator.clients.kube import KubeClient
from berth_operator.controllers.handlers.marks import Marked, Marks
from berth_operator.controllers.reconcile.writer import Writer
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.cache.views import StatusKind, View

STOP_SECONDS: Final = 1.0
"""Seconds that the end of a term waits for a write."""

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Memo:
    """One instance for all objects; kopf copies its memo for each object, so a copy is the same instance."""

    settings: Settings
    problem: Callable[[], str]
    """Returns the process's problem, for the liveness probe; empty if there is none."""
    busy: Callable[[], bool]
    """Returns whether binds are in flight; safe in any thread."""
    cluster: Cluster
    """Used only in `loop`; handlers call `view` instead."""
    marks: Marks
    """The objects that the scheduler's thread marks for the writer."""
    loop: asyncio.AbstractEventLoop
    """The scheduler's event loop."""
    leads: bool = field(default=False, init=False)
    """Whether this replica leads, so that statuses are written; set once, in `loop`."""
    own: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    """kopf's event loop while kopf runs; the fields below are used only in it."""
    failed: Callable[[BaseException], None] = field(init=False)
    """Ends this run of kopf."""
    client: KubeClient = field(init=False)
    writer: Writer | None = field(default=None, init=False)
    writing: asyncio.Task[None] | None = field(default=None, init=False)

    def __copy__(self) -> Self:
        return self

    # --- from the scheduler's thread --------------------------------------------------------------------------

    def lead(self) -> None:
        """Begin to write statuses, now or when kopf has started."""
        self.leads = True
        self.marks.open(lambda marked: self._tell(functools.partial(self._mark_all, marked)))
        self._tell(self._write)

    async def stop_writing(self) -> None:
        """Stop writing statuses, for the next leader writes them."""
        self.leads = False
        if (own := self.own) is not None:
            with suppress(TimeoutError, RuntimeError):  # kopf's loop is ending
                async with asyncio.timeout(STOP_SECONDS):
                    await _in(own, self._stop_writing())

    def _tell(self, call: Callable[[], None]) -> None:
        """Call a function in kopf's loop; without kopf do nothing, since everything is marked when it starts again."""
        if (own := self.own) is not None:
            with suppress(RuntimeError):  # kopf's loop has just ended
                own.call_soon_threadsafe(call)

    def _mark_all(self, marked: Collection[Marked]) -> None:
        for kind, name in marked:
            self.mark(kind, name)

    # --- from kopf's thread -----------------------------------------------------------------------------------

    def start(self, client: KubeClient) -> None:
        """Set kopf's client, and write statuses if this replica leads; called in kopf's loop."""
        self.client = client
        self.own = asyncio.get_running_loop()
        if self.leads:
            self._write()

    def mark(self, kind: StatusKind, name: str) -> None:
        """Mark an object for the writer; does nothing in a replica that does not lead."""
        if self.writer is not None:
            self.writer.mark(kind, name)

    async def view(self, kind: StatusKind, name: str) -> View | None:
        """Return the view from which an object's status is computed; None if Berth has no such object."""
        return await self._call_scheduler(lambda: self.cluster.view(kind, name))

    async def stop(self) -> None:
        """Stop writing and close the connection."""
        self.own = None
        await self._stop_writing()
        self.client.close()

    async def _stop_writing(self) -> None:
        if self.writing is not None:
            self.writing.cancel()
            with suppress(asyncio.CancelledError):
                await self.writing
        self.writer = self.writing = None

    def _write(self) -> None:
        """Start the writer, unless it runs."""
        if self.writing is None:
            self.writing = asyncio.get_running_loop().create_task(self._write_until_cancelled())
            self.writing.add_done_callback(self._ended)

    async def _write_until_cancelled(self) -> None:
        """Write, first every object once, because any may have changed before this term or run of kopf."""
        self.writer = Writer(
            api=self.client,
            view=self.view,
            node_bucket=Bucket(rate=self.settings.node_rate, clock=time.monotonic),
            bucket=Bucket(rate=self.settings.status_rate, clock=time.monotonic),
            busy=self.busy,
            instance=self.settings.identity,
        )
        for kind in StatusKind:
            for name in await self._call_scheduler(functools.partial(self.cluster.names, kind)):
                self.writer.mark(kind, name)
        await self.writer.run()

    def _ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self.failed(error)

    async def _call_scheduler(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        try:
            return await _in(self.loop, answer())
        except RuntimeError:
            if self.loop.is_closed():  # the process did not wait for kopf any longer: nothing is to be written
                raise asyncio.CancelledError from None
            raise


async def _in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread's loop, and wait for its result in this one.

    Raises:
        RuntimeError: that loop has ended.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise
    return await asyncio.wrap_future(future)
