"""Read OCI archives: tar files of an image layout with one image."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any


def digest(archive: Path) -> str:
    """Return the digest of the archive's image."""
    with tarfile.open(archive) as layout:
        return _digest(layout)


def unpacked_bytes(archive: Path) -> int:
    """Return the size of the image's files on its first platform, in bytes."""
    with tarfile.open(archive) as layout:
        manifest = json.loads(_blob(layout, _digest(layout)))
        if "manifests" in manifest:  # an index of several platforms
            manifest = json.loads(_blob(layout, manifest["manifests"][0]["digest"]))
        return sum(_files_bytes(_blob(layout, layer["digest"])) for layer in manifest["layers"])


def _digest(layout: tarfile.TarFile) -> str:
    [digest] = {str(manifest["digest"]) for manifest in json.loads(_content(layout, "index.json"))["manifests"]}
    return digest


def _blob(layout: tarfile.TarFile, described: str) -> bytes:
    return _content(layout, f"blobs/{described.replace(':', '/')}")


def _content(layout: tarfile.TarFile, member: str) -> bytes:
    file: Any = layout.extractfile(member)
    content: bytes = file.read()
    return content


def _files_bytes(layer: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        return sum(entry.size for entry in files)
