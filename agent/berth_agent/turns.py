"""The agents of one node take turns: during an upgrade, a new one starts while the old one still serves.

Locks of files decide, which the kernel releases when a process ends in any way. Only one agent reads and writes the
checkpoints, publishes, and serves the device plugin.

The order of a change:

1. The new agent waits as the next one.
2. The old agent begins to leave. The new one registers its driver of claims with kubelet; its calls wait.
3. kubelet has registered the new driver. The old agent removes its sockets, finishes its calls and ends.
4. It is the new agent's turn.

An agent with the driver waits without a limit. Next to an earlier agent that is only slow, it could give a card twice.
"""

import asyncio
import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import structlog

from berth_agent import files

FOLDER_MODE: Final = 0o700
MODE: Final = 0o600
POLL: Final = 0.1
"""Seconds between two looks at a lock."""
KEEP_SECONDS: Final = 1.0
"""Seconds between two looks whether the files of the locks are still there."""
ALONE_SECONDS: Final = 60.0
"""Seconds for which an agent without a driver of claims waits for an earlier one. In an upgrade that one has ended
before. A process that hangs in the GPU driver cannot end, even if it is killed, and keeps its locks."""
LATE_SECONDS: Final = 60.0
"""Seconds after which an agent with the driver logs that it still waits."""
REMINDER_SECONDS: Final = 600.0
"""Seconds until it logs that again."""
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
        self.is_held = False

    def take(self) -> bool:
        """Return whether this process has it now.

        If another program has removed the file, a process that starts makes a new one. So the process with the lock
        takes that one, too. A process that waits goes on with the file that it knows, until the lock is released.

        Raises:
            OSError: the file cannot be opened.
        """
        if self.is_held and self._file is not None and not _is_removed(self._file):
            return True
        file = self._opened() if self._file is None or self.is_held else self._file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if self.is_held:
                os.close(file)
            else:
                self._file = file
            return False
        if file != self._file:
            self.release()
        self._file, self.is_held = file, not _is_removed(file)
        if not self.is_held:
            self.release()
        return self.is_held

    def _opened(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, MODE)

    async def taken(self) -> None:
        """Wait until this process has it.

        Raises:
            OSError: the file cannot be opened.
        """
        while not self.take():  # noqa: ASYNC110 - another process holds it
            await asyncio.sleep(POLL)

    def release(self) -> None:
        """Release it, if this process has it, and wait for it no more."""
        if self._file is not None:
            os.close(self._file)
        self._file, self.is_held = None, False


def _is_removed(file: int) -> bool:
    return os.fstat(file).st_nlink == 0


class Turn:
    """The turn of this process; a context manager."""

    def __init__(self, folder: Path) -> None:
        """Set the folder of the locks, which all agents of the node have."""
        self._folder = folder
        self._next, self._stays, self._serves = (
            ProcessLock(folder / f"{name}.lock") for name in ("next", "stays", "serves")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for lock in (self._stays, self._serves, self._next):
            lock.release()

    async def come(self, driver: NextDriver | None, tasks: asyncio.TaskGroup) -> None:
        """Wait for this agent's turn, and serve its driver in one of the tasks from when it may register."""
        is_upgrade = False
        waiting = tasks.create_task(self._log_wait()) if driver else None
        try:
            files.make_folder(self._folder, mode=FOLDER_MODE, parents=True)
            async with asyncio.timeout(None if driver else ALONE_SECONDS):
                await self._next.taken()
                is_upgrade = not self._stays.take()
                if is_upgrade:
                    _log.info("another agent serves this node; waiting until it leaves", folder=str(self._folder))
                    await self._stays.taken()
                if not driver:
                    await self._serves.taken()
        except TimeoutError:
            _log.error(
                "an earlier agent of this node has not ended; serving at the same time", folder=str(self._folder)
            )
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
        self._next.release()
        if waiting:
            with contextlib.suppress(OSError):
                await self._serves.taken()
            waiting.cancel()

    async def keep(self) -> None:
        """Hold the locks until cancelled, also if another program removes their files."""
        failure = ""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            try:
                files.make_folder(self._folder, mode=FOLDER_MODE, parents=True)
                # Each is tried, also if another one is lost.
                held = [lock.take() for lock in (self._stays, self._serves) if lock.is_held]
                problem = "" if all(held) else "another process has it"
            except OSError as error:
                problem = str(error)
            if problem and problem != failure:
                _log.error("a lock of this agent is lost, so a second agent could serve this node", reason=problem)
            failure = problem

    async def _log_wait(self) -> None:
        await asyncio.sleep(LATE_SECONDS)
        while True:
            _log.error(
                "the process of an earlier agent of this node has not ended, and this agent waits for it; "
                "if it hangs in the GPU driver, drain and reboot the node",
                folder=str(self._folder),
            )
            await asyncio.sleep(REMINDER_SECONDS)

    async def leave(self) -> None:
        """Allow the next agent, if there is one, to register its driver, and wait up to `REPLACED_SECONDS` for that."""
        self._stays.release()
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(REPLACED_SECONDS):
                await self._next.taken()
        self._next.release()
