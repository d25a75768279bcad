"""What handlers share: a bridge between kopf's thread and the scheduler's."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from berth_operator.clients.kube import KubeClient
from berth_operator.reconcile.writer import Writer
from berth_operator.settings import Settings
from berth_operator.state.cluster import Cluster, NodeView

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class Memo:
    """One for all objects: kopf copies it for each, so copying gives the same one."""

    settings: Settings
    problem: Callable[[], str]
    """What is wrong with the process, for the liveness probe; empty if nothing is."""
    cluster: Cluster
    """Belongs to the scheduler's loop: handlers ask `view` and `nodes` instead."""
    loop: asyncio.AbstractEventLoop
    """The scheduler's."""
    failed: Callable[[BaseException], None]
    """Ends the process; to be called in `loop`."""
    client: KubeClient = field(init=False)
    """Lives in kopf's loop, like what follows."""
    writer: Writer = field(init=False)
    writing: asyncio.Task[None] = field(init=False)
    _own: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    def __copy__(self) -> Self:
        return self

    async def view(self, name: str) -> NodeView:
        """Read a node's state from kopf's thread."""
        return await self._ask(lambda: self.cluster.view(name))

    async def nodes(self) -> list[str]:
        """Read the names of all Nodes and Devices, from kopf's thread."""
        return await self._ask(lambda: sorted({*self.cluster.nodes, *self.cluster.devices}))

    async def _ask(self, question: Callable[[], T]) -> T:
        async def answer() -> T:
            return question()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), self.loop))

    def open(self, writer: Writer) -> None:
        """Take a writer into use, in the running loop."""
        self.writer, self._own = writer, asyncio.get_running_loop()
        self.writing = self._own.create_task(writer.run())
        self.writing.add_done_callback(self._ended)

    def _ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and (error := writing.exception()) is not None:
            self.loop.call_soon_threadsafe(self.failed, error)

    def mark(self, name: str) -> None:
        """Mark a node as to be written, from any thread; one that opens later looks at every node by itself."""
        if self._own is not None and not self._own.is_closed():
            self._own.call_soon_threadsafe(self.writer.mark, name)
