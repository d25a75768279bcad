"""The agents of one node take turns: during an upgrade, a new one starts while the old one still serves.

Locks of files decide, which the kernel releases when a process ends in any way. Only one agent reads and writes the
checkpoints, publishes, and serves the device plugin.

The order of a change:

1. The new agent waits as the next one.
2. The old agent begins to leave. The new one registers its driver of claims with kubelet; its calls wait.
3. kubelet has registered the new driver. The old agent removes its sockets, finishes its calls and ends.
4. It is the new agent's turn.

A process that hangs in the GPU driver cannot end, even if it is killed, and keeps its locks. So the agent whose turn it
is renews a file's time. If it stops doing so, the next agent waits for it no longer.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import structlog

from berth_agent import files

FOLDER_MODE: Final = 0o700
MODE: Final = 0o600
POLL: Final = 0.1
"""Seconds between two looks at a lock."""
ALONE_SECONDS: Final = 60.0
"""Seconds for which an agent without a driver of claims waits for an earlier one, which an upgrade ends before."""
BEAT: Final = 5.0
"""Seconds between two signs of life."""
HUNG_SECONDS: Final = 60.0
"""Seconds without a sign of life after which an agent counts as hung. kubelet kills an agent that ends after 30 s."""
REPLACED_SECONDS: Final = 5.0
"""Seconds for which an agent that leaves waits until kubelet has registered the next one."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class NextDriver(Protocol):
    """The agent's driver of claims, which kubelet knows before it is the agent's turn."""

    async def run(self) -> None:
        """Serve the sockets by which kubelet finds the driver, until cancelled."""
        ...

    async def until_registered(self) -> None:
        """Wait until kubelet has registered the driver."""
        ...


class ProcessLock:
    """A lock among processes. The kernel releases it when its process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Return whether this process has it now.

        Raises:
            OSError: the file cannot be opened.
        """
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, MODE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    async def taken(self, *, beat: Path | None = None, seconds: float = HUNG_SECONDS) -> None:
        """Wait until this process has it.

        Args:
            beat: the file whose time the holder renews.
            seconds: how long to wait after this time changed last.

        Raises:
            OSError: the file cannot be opened.
            TimeoutError: the holder hangs.
        """
        clock = asyncio.get_running_loop().time
        known, since = 0, clock()
        while not self.take():
            # Compared with itself, because clocks jump.
            if beat and (renewed := _renewed(beat)) != known:
                known, since = renewed, clock()
            elif beat and clock() > since + seconds:
                raise TimeoutError
            await asyncio.sleep(POLL)

    def take_over(self) -> int | None:
        """Take the lock although another process has it; return the file that this process has locked, if it hangs.

        The file is replaced, so that later agents wait for this process also when the other one ends after all.

        Raises:
            OSError: the file cannot be replaced.
        """
        if self.take():
            return None
        draft, before = self._path.with_suffix(".draft"), self._file
        self._file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, MODE)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(self._path)
        return before

    def release(self) -> None:
        """Release it, if this process has it, and wait for it no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Turn:
    """The turn of this process; a context manager."""

    def __init__(self, folder: Path) -> None:
        """Set the folder of the locks, which all agents of the node have."""
        self._folder = folder
        self._next, self._stays, self._serves = (
            ProcessLock(folder / f"{name}.lock") for name in ("next", "stays", "serves")
        )
        self._beat = folder / "stays.lock"
        self._life: asyncio.Task[None] | None = None
        self.is_beside_hung = False
        """Whether it is this agent's turn although an earlier agent has not ended."""
        self._hung: list[int] = []
        """The files that the earlier agent has locked."""
        # If all threads for readings hang, this one still shows life.
        self._beats = ThreadPoolExecutor(max_workers=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._life:
            self._life.cancel()
        for lock in (self._stays, self._serves, self._next):
            lock.release()
        for file in self._hung:
            os.close(file)
        self._beats.shutdown(wait=False)

    async def come(self, driver: NextDriver | None, tasks: asyncio.TaskGroup) -> None:
        """Wait for this agent's turn, and serve its driver in one of the tasks from when it may register."""
        is_upgrade = False
        try:
            files.make_folder(self._folder, mode=FOLDER_MODE, parents=True)
            if not self._beat.exists():
                self._beat.touch(mode=MODE)
            async with asyncio.timeout(None if driver else ALONE_SECONDS):
                # If two wait, the first of them goes on, and renews the time for the other.
                await self._next.taken(beat=self._beat, seconds=2 * HUNG_SECONDS)
                is_upgrade = not self._stays.take()
                if is_upgrade:
                    _log.info("another agent serves this node; waiting until it leaves", folder=str(self._folder))
                    await self._stays.taken(beat=self._beat)
                if not driver:
                    await self._serves.taken(beat=self._beat)
        except TimeoutError:
            self._take_over(self._next, self._stays, self._serves)
        except OSError as error:
            # Without its folder, the agent has no checkpoint either. It serves as well as it can.
            _log.warning("other agents of this node are not excluded", error=str(error))
            is_upgrade = False
        if driver:
            tasks.create_task(driver.run())
            if is_upgrade:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REPLACED_SECONDS):
                        await driver.until_registered()
        self._life = asyncio.create_task(self._show_life())
        self._next.release()
        if driver and not self.is_beside_hung:
            try:
                async with asyncio.timeout(HUNG_SECONDS):
                    await self._serves.taken()
            except TimeoutError:
                self._take_over(self._serves)
            except OSError:
                pass

    def _take_over(self, *locks: ProcessLock) -> None:
        _log.error(
            "an earlier agent of this node shows no life and has not ended; serving without it",
            folder=str(self._folder),
        )
        self.is_beside_hung = True
        with contextlib.suppress(OSError):
            locked = [lock.take_over() for lock in locks]
            self._hung += [file for file in locked if file is not None]

    def _has_ended(self) -> bool:
        """Return whether the earlier agent has ended after all."""
        try:
            for file in self._hung:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    async def _show_life(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                now = time.time_ns()
                await loop.run_in_executor(self._beats, functools.partial(os.utime, self._beat, ns=(now, now)))
            if self.is_beside_hung:
                self.is_beside_hung = not self._has_ended()
            await asyncio.sleep(BEAT)

    async def leave(self) -> None:
        """Allow the next agent, if there is one, to register its driver, and wait up to `REPLACED_SECONDS` for that.

        This agent shows no life any more: the next one waits up to `HUNG_SECONDS` until it has ended.
        """
        if self._life:
            self._life.cancel()
        self._stays.release()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(REPLACED_SECONDS):
                await self._next.taken()
        self._next.release()


def _renewed(beat: Path) -> int:
    return beat.stat().st_mtime_ns
