"""Read OCI archives: tar files of an image layout with one image, on its first platform."""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def digest(archive: Path) -> str:
    """Return the digest of the archive's image."""
    with tarfile.open(archive) as layout:
        return _digest(layout)


def unpacked_bytes(archive: Path) -> int:
    """Return the size of the image's files, in bytes."""
    return sum(entry.size for files in _layers(archive) for entry in files)


def unpack(archive: Path, target: Path, *, below: str) -> None:
    """Write the image's files below a folder into another folder; `below` is a path without a slash at its ends."""
    for files in _layers(archive):
        for entry in files:
            if entry.isfile() and entry.name.startswith(f"{below}/"):
                path = target / entry.name.removeprefix(f"{below}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_content(files, entry))


def _layers(archive: Path) -> Iterator[tarfile.TarFile]:
    """Yield the files of each layer, the lowest first."""
    with tarfile.open(archive) as layout:
        manifest = json.loads(_blob(layout, _digest(layout)))
        if "manifests" in manifest:  # an index of several platforms
            manifest = json.loads(_blob(layout, manifest["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(_blob(layout, layer["digest"]))) as files:
                yield files


def _digest(layout: tarfile.TarFile) -> str:
    [digest] = {str(manifest["digest"]) for manifest in json.loads(_content(layout, "index.json"))["manifests"]}
    return digest


def _blob(layout: tarfile.TarFile, described: str) -> bytes:
    return _content(layout, f"blobs/{described.replace(':', '/')}")


def _content(layout: tarfile.TarFile, member: str | tarfile.TarInfo) -> bytes:
    file: Any = layout.extractfile(member)
    content: bytes = file.read()
    return content
