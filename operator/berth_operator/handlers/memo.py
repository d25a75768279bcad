"""What handlers share: a bridge between kopf's thread and the scheduler's."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from berth_operator.clients.kube import KubeClient
from berth_operator.reconcile.writer import Writer
from berth_operator.settings import Settings
from berth_operator.state.cluster import NodeView


@dataclass(slots=True, kw_only=True, eq=False)
class Memo:
    """One for all objects: kopf copies it for each, so copying gives the same one."""

    settings: Settings
    problem: Callable[[], str]
    """What is wrong with the process, for the liveness probe; empty if nothing is."""
    read: Callable[[str], NodeView]
    """Reads the cluster's state; only for the scheduler's loop, so handlers use `view`."""
    loop: asyncio.AbstractEventLoop
    """The scheduler's."""
    client: KubeClient = field(init=False)
    """Lives in kopf's loop, like what follows."""
    writer: Writer = field(init=False)
    writing: asyncio.Task[None] = field(init=False)
    _own: asyncio.AbstractEventLoop | None = field(default=None, init=False)

    def __copy__(self) -> Self:
        return self

    async def view(self, name: str) -> NodeView:
        """Read a node's state from kopf's thread."""

        async def read() -> NodeView:
            return self.read(name)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(read(), self.loop))

    def open(self, writer: Writer) -> None:
        """Take a writer into use, in the running loop."""
        self.writer, self._own = writer, asyncio.get_running_loop()
        self.writing = self._own.create_task(writer.run())

    def mark(self, name: str) -> None:
        """Mark a node as to be written, from any thread; before the writer is open nothing is lost, see `leading`."""
        if self._own is not None and not self._own.is_closed():
            self._own.call_soon_threadsafe(self.writer.mark, name)
