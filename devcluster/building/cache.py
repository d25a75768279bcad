"""The per-user cache of built programs and fetched toolchains. Several processes may use it at once."""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


def root() -> Path:
    """Return the cache folder of this user."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "berth"


def fingerprint(files: Iterable[Path]) -> str:
    """Return a short hash over the files' contents, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def once(target: Path, make: Callable[[Path], None]) -> Path:
    """Return `target`; where it is missing, let one process make it while the others wait.

    `make` writes under a temporary name, so that an interrupted run leaves nothing that looks complete.
    """
    if target.exists():
        return target
    with locked(target):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
                draft = Path(scratch) / target.name
                make(draft)
                draft.rename(target)
    return target


@contextlib.contextmanager
def locked(target: Path) -> Iterator[None]:
    """Lock `target` for one process; the others wait."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
