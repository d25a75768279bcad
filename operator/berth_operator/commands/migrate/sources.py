"""The sources of manifests: files, folders, standard input."""

import sys
from collections.abc import Sequence
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
    sources: list[Source] = []
    for name in named:
        path = Path(name)
        if name == STANDARD_INPUT:
            sources.append(Source(name="standard input", content=sys.stdin.buffer.read()))
        elif path.is_dir():
            files = sorted(file for suffix in SUFFIXES for file in path.rglob(f"*{suffix}"))
            sources += (Source(name=str(file), path=file) for file in files if file.is_file())
        else:
            sources.append(Source(name=name, path=path))
    return sources
