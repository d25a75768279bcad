"""The state in the folder of a cluster: whether its supervisor is alive, and what it runs.

While the supervisor is alive, it holds a lock on the file `lock`. So a stale process id is never mistaken for a running
cluster.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from devcluster import waiting
from devcluster.errors import DevclusterError

LOCK: Final = "lock"
STATE: Final = "state.json"
LOCK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a ready cluster consists of."""

    server: str
    started: float
    """Seconds since the epoch."""
    processes: Mapping[str, int]
    """Process ids by name."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder's lock with our process id in it."""
    with (folder / LOCK).open("a") as lock:
        # `supervisor` holds the lock for a moment, too.
        if not waiting.within(lambda: try_lock(lock, fcntl.LOCK_EX), seconds=LOCK_SECONDS):
            raise DevclusterError("this cluster already runs")
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        yield


def supervisor(folder: Path) -> int | None:
    """Return the process id of the folder's supervisor, or None where none lives."""
    try:
        with (folder / LOCK).open() as lock:
            return None if try_lock(lock, fcntl.LOCK_SH) else int(lock.read() or 0)
    except FileNotFoundError:
        return None


def read(folder: Path) -> State | None:
    """Return the state of a cluster that has been ready, else None."""
    try:
        return State(**json.loads((folder / STATE).read_text()))
    except FileNotFoundError:
        return None


def save(folder: Path, state: State) -> None:
    """Write the state."""
    write_private(folder / STATE, json.dumps(asdict(state)))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; it is complete from the moment it is there."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.rename(path)


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # The name before it is in parentheses and may hold any character.
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def try_lock(file: TextIO, kind: int) -> bool:
    """Lock a file shared or exclusively, unless another process's lock forbids it; return whether it is locked."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
