"""Read and write the agent's own files on the node. No link is followed, and a file is either complete or absent."""

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 64 << 20
"""Bytes of a file that is read. A thousand pods with all devices of a node take less than a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileIdentity:
    """Identifies the file at a path and its content: a file that was written or created again is another one."""

    inode: int
    changed: int
    """Nanoseconds since the epoch."""

    @property
    def age(self) -> float:
        """Seconds since it was made, by the wall clock: negative if that was set back."""
        return time.time() - self.changed / 1e9


def identity(path: Path) -> FileIdentity | None:
    """Return the identity of the file at a path; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    # An inode's number may be given again at once.
    return FileIdentity(inode=status.st_ino, changed=status.st_ctime_ns)


def read(path: Path, *, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read; it is a link, no regular file, or larger than `limit` bytes.
    """
    with _opened(path.parent) as folder:
        file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        with os.fdopen(file, "rb") as opened:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(f"{path} is no regular file")
            if status.st_size > limit:
                raise OSError(f"{path} has {status.st_size} bytes; allowed are {limit}")
            return opened.read(limit)


def write(path: Path, content: bytes, *, mode: int, draft: str, sync: bool = False) -> FileIdentity | None:
    """Write a file in one step: under another name in its folder, then renamed. With `sync`, it is on the disk then.

    Return its identity, by which a change of another program is found; None if it is gone already.

    Raises:
        OSError: it cannot be written.
    """
    with _opened(path.parent) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)  # of a process that ended while it wrote
        file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
        try:
            with os.fdopen(file, "wb") as opened:
                os.fchmod(file, mode)  # whatever the umask
                opened.write(content)
                if sync:
                    opened.flush()
                    os.fsync(file)
            os.rename(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            # On a full disk, the draft would keep what is left of it.
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise
        if sync:
            os.fsync(folder)
        return identity(path)


def make_folder(path: Path, *, mode: int, parents: bool = False) -> None:
    """Create a folder with a mode, or give it to an existing one of ours; with `parents` also the folders above it.

    Raises:
        OSError: it cannot be created, or is a link.
    """
    path.mkdir(mode=mode, parents=parents, exist_ok=True)
    with _opened(path) as folder:
        if stat.S_IMODE(os.fstat(folder).st_mode) != mode:
            os.fchmod(folder, mode)


def is_own_folder(path: Path, names: Collection[str]) -> bool:
    """Return whether a folder does not exist, or contains no other files than these."""
    with contextlib.suppress(FileNotFoundError):
        return set(os.listdir(path)) <= set(names)  # noqa: PTH208 - names, not paths
    return True


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
