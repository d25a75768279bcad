"""What handlers share: a bridge between kopf's thread and the scheduler's."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from berth_operator.clients.bucket import Bucket
from berth_operator.clients.kube import KubeClient
from berth_operator.reconcile.writer import Writer
from berth_operator.settings import Settings
from berth_operator.state.cluster import Cluster, GpuPodView, GroupView, NodeView

GATHER: Final = 0.05
"""Seconds."""

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Memo:
    """One for all objects: kopf copies it for each, so copying gives the same one."""

    settings: Settings
    problem: Callable[[], str]
    """What is wrong with the process, for the liveness probe; empty if nothing is."""
    busy: Callable[[], bool]
    """Whether binds are under way; may be asked by any thread."""
    failed: Callable[[BaseException], None]
    """Ends the process; to be called in `loop`."""
    cluster: Cluster
    """Belongs to `loop`: handlers ask `view` and `nodes` instead."""
    loop: asyncio.AbstractEventLoop
    """The scheduler's."""
    outside: dict[tuple[Callable[[str], None], str], None] = field(default_factory=dict, init=False)
    """What was marked in the scheduler's thread; each hand-over stops it for a moment, so they gather first."""
    own: Future[asyncio.AbstractEventLoop] = field(default_factory=Future, init=False)
    """kopf's, once it has started; what follows lives in it."""
    client: KubeClient = field(init=False)
    writer: Writer | None = field(default=None, init=False)
    writing: asyncio.Task[None] | None = field(default=None, init=False)

    def __copy__(self) -> Self:
        return self

    # --- from the scheduler's thread --------------------------------------------------------------------------

    async def lead(self) -> None:
        """Begin to write what Devices and Nodes should show."""
        # Shielded: a term that ends meanwhile must not cancel what kopf is about to set.
        own = await asyncio.shield(asyncio.wrap_future(self.own))
        await _in(own, self._write())

    def mark_from_outside(self, name: str) -> None:
        """Mark a node as to be written, soon."""
        self._mark_soon(self.mark, name)

    def mark_group_from_outside(self, name: str) -> None:
        """Mark a PodGroup as to be written, soon."""
        self._mark_soon(self.mark_group, name)

    def mark_gpu_pod_from_outside(self, name: str) -> None:
        """Mark a GpuPod as to be written, soon."""
        self._mark_soon(self.mark_gpu_pod, name)

    def _mark_soon(self, mark: Callable[[str], None], name: str) -> None:
        if not self.outside:
            self.loop.call_later(GATHER, self._hand_over)
        self.outside[mark, name] = None

    def _hand_over(self) -> None:
        gathered, self.outside = self.outside, {}
        if self.own.done():
            with suppress(RuntimeError):  # kopf's loop has ended, and the process is about to
                self.own.result().call_soon_threadsafe(self._mark_all, gathered)

    def _mark_all(self, marked: Iterable[tuple[Callable[[str], None], str]]) -> None:
        for mark, name in marked:
            mark(name)

    # --- from kopf's thread -----------------------------------------------------------------------------------

    def start(self, client: KubeClient) -> None:
        """Take kopf's connection, in kopf's loop."""
        self.client = client
        self.own.set_result(asyncio.get_running_loop())

    def mark(self, name: str) -> None:
        """Mark a node as to be written; one who does not lead writes nothing."""
        if self.writer is not None:
            self.writer.mark(name)

    def mark_group(self, name: str) -> None:
        """Mark a PodGroup as to be written; one who does not lead writes nothing."""
        if self.writer is not None:
            self.writer.mark_group(name)

    def mark_gpu_pod(self, name: str) -> None:
        """Mark a GpuPod as to be written; one who does not lead writes nothing."""
        if self.writer is not None:
            self.writer.mark_gpu_pod(name)

    async def view(self, name: str) -> NodeView:
        """Read a node's state."""
        return await self._ask(lambda: self.cluster.view(name))

    async def group_view(self, name: str) -> GroupView | None:
        """Read a PodGroup's state."""
        return await self._ask(lambda: self.cluster.group_view(name))

    async def gpu_pod_view(self, name: str) -> GpuPodView | None:
        """Read what is to be said of a GpuPod."""
        return await self._ask(lambda: self.cluster.gpu_pod_view(name))

    async def stop(self) -> None:
        """Stop writing and close the connection."""
        if self.writing is not None:
            self.writing.cancel()
            with suppress(asyncio.CancelledError):
                await self.writing
        await self.client.close()

    async def _write(self) -> None:
        """Open the writer, and let it look at every node once: much may have happened before this term."""
        bucket = Bucket(rate=self.settings.status_rate, clock=time.monotonic)
        self.writer = Writer(
            api=self.client,
            view=self.view,
            group_view=self.group_view,
            gpu_pod_view=self.gpu_pod_view,
            bucket=bucket,
            busy=self.busy,
        )
        self.writing = asyncio.get_running_loop().create_task(self.writer.run())
        self.writing.add_done_callback(self._ended)
        for name in await self._ask(lambda: sorted({*self.cluster.nodes, *self.cluster.devices})):
            self.writer.mark(name)
        for name in await self._ask(lambda: sorted(self.cluster.groups)):
            self.writer.mark_group(name)
        for name in await self._ask(lambda: sorted(self.cluster.ledger.gpu_pods)):
            self.writer.mark_gpu_pod(name)

    def _ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self.loop.call_soon_threadsafe(self.failed, error)

    async def _ask(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        return await _in(self.loop, answer())


async def _in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run something in another thread's loop, and wait for it in this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
