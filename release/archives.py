"""Archives that depend only on what they contain: entries in order, one time, no owner."""

import contextlib
import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

COMPRESSED: Final = ".tgz"
ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip archive can have."""
START: Final = b"#!/usr/bin/env python3\n"
"""What a shell reads of a zip application."""

Content = bytes | Path
"""The content of a file, or where to read it."""


def epoch() -> int:
    """Return the time of all files, in seconds since 1970: `make release` sets it to the commit's time."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def write_tar(target: Path, files: Mapping[str, Content]) -> None:
    """Write a tar archive of files by their paths; it is compressed if its name ends with `.tgz`."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(target.open("wb"))
        packed = gzip.GzipFile("", "wb", fileobj=file, mtime=epoch()) if target.suffix == COMPRESSED else file
        tar = stack.enter_context(tarfile.open(fileobj=stack.enter_context(packed), mode="w"))
        for name, content in sorted(files.items()):
            body = _read(content)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(body), epoch()
            tar.addfile(entry, io.BytesIO(body))


def write_application(target: Path, files: Mapping[str, Content]) -> None:
    """Write a zip application: a program that Python runs by its file `__main__.py`."""
    with target.open("wb") as file:
        file.write(START)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(files.items()):
                archive.writestr(_entry(name), _read(content))
    target.chmod(0o755)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, ZIP_TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _read(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()
