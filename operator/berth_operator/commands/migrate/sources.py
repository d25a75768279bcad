"""The sources of manifests: files, folders, standard input."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STANDARD_INPUT: Final = "-"
SUFFIXES: Final = (".yaml", ".yml", ".json")
"""Suffixes of files that are read in folders. A file named on the command line may have any suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file."""

    name: str
    path: Path | None = None
    """None for standard input, which can be read once and is kept."""
    content: bytes = b""

    def read(self) -> bytes:
        """Return the content.

        Raises:
            OSError: it cannot be read.
        """
        return self.content if self.path is None else self.path.read_bytes()


def found(named: Sequence[str]) -> list[Source]:
    """Return the files of a command line. Files of folders are sorted by their names."""
    return [source for name in named for source in _of(name)]


def _of(name: str) -> Iterator[Source]:
    if name == STANDARD_INPUT:
        yield Source(name="standard input", content=sys.stdin.buffer.read())
        return
    path = Path(name)
    if not path.is_dir():
        yield Source(name=name, path=path)
        return
    for file in sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}")):
        if file.is_file():
            yield Source(name=str(file), path=file)
