"""Old versions of HAMi-core's library on the node, and when they may be removed.

A pod uses the version that it was given first for all its starts. kubelet keeps this version in its checkpoint.
Processes keep a library that they have mapped, even if its file is removed.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from berth_agent.kubelet import allocations

GRACE: Final = 3600.0
"""Seconds after a change for which nothing is removed. The checkpoint does not have the latest allocations yet."""


def old(current: Path, library: str, *, before: float) -> Iterator[Path]:
    """Yield the versions next to the link `current` that it leads away from since a time in seconds since 1970.

    Raises:
        OSError: the folder cannot be read.
    """
    if current.lstat().st_mtime >= before:
        return
    for version in sorted(current.parent.iterdir()):
        is_version = not version.is_symlink() and (version / library).is_file()
        if is_version and version.name != current.readlink().name and version.stat().st_mtime < before:
            yield version


def unused(versions: Iterable[Path], checkpoint: bytes) -> list[Path]:
    """Return the versions that no pod has, by kubelet's checkpoint.

    Raises:
        ValueError: the checkpoint has another form than this program knows.
    """
    given = allocations.answers(checkpoint)
    return [version for version in versions if not any(f"{version}/".encode() in answer for answer in given)]
