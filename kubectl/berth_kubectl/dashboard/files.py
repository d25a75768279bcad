"""The files of the page, read once at the start. Requests cannot name a path on the disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "page"
INDEX: Final = "index.html"
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Suffix -> Content-Type; other files are not served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file as it is served."""

    content_type: str
    body: bytes


def read(folder: Path = FOLDER) -> dict[str, File]:
    """Return the files of a folder by their paths below it: `script/main.js`.

    Raises:
        FileNotFoundError: the folder has no index.html, so the package is incomplete.
    """
    files = {
        path.relative_to(folder).as_posix(): File(content_type=TYPES[path.suffix], body=path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.suffix in TYPES and path.is_file()
    }
    if INDEX not in files:
        raise FileNotFoundError(folder / INDEX)
    return files
