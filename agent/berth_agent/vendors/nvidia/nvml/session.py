"""The owner of NVML: one thread makes all calls, in one session that stays open.

Opening a session, or requesting handles from several threads at once, can take a driver many seconds. One thread with
one session pays this only once. The thread is a daemon, so a call that hangs in the driver cannot keep the process from
ending.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from berth_agent.vendors.nvidia.nvml import library
from berth_agent.vendors.nvidia.nvml.library import NvmlError

T = TypeVar("T")


class Session:
    """Runs functions in the owner's thread, with NVML open."""

    def __init__(self, *, path: Path | None, before_closing: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._before_closing = before_closing
        self._open = False
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="nvml", daemon=True).start()

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in the owner's thread. It may use `library`.

        Raises:
            NvmlError: the session cannot be opened, or the function raised it.
        """
        future: Future[T] = Future()
        self._work.put((work, future))
        return await asyncio.wrap_future(future)

    @property
    def is_open(self) -> bool:
        """Return whether the session is open; for use in the owner's thread."""
        return self._open

    def ensure_open(self) -> None:
        """Open the session if it is closed; for use in the owner's thread."""
        if not self._open:
            if self._path:
                library.load(self._path)
            library.open_session()
            self._open = True

    def reset(self) -> None:
        """End the session, so that the next use enumerates the cards again; for use in the owner's thread."""
        if self._open:
            self._open = False
            self._before_closing()
            library.close_session()

    def close(self) -> None:
        """Stop the thread after its current call."""
        self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            work, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except NvmlError as error:
                self._open = self._open and not error.lost_session
                future.set_exception(error)
            except Exception as error:  # noqa: BLE001 -- the caller of `run` gets it
                future.set_exception(error)
        self.reset()
