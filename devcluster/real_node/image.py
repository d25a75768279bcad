"""Images of a real node: OCI archives around one program (the static `box` is one), built here and never pulled."""

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

NAME: Final = "berth.dev/devcluster/box:1"
PROGRAM: Final = "box"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
OCI: Final = "application/vnd.oci.image"


def write(archive: Path, *, program: Path, name: str = NAME, libraries: Mapping[str, bytes] | None = None) -> None:
    """Write an image's archive, of which `ctr images import` takes the name and all.

    `libraries` are further files by their paths, without the slash at the beginning.
    """
    layer = _tar({PROGRAM: program.read_bytes(), **(libraries or {})})
    system = {"architecture": ARCHITECTURES[platform.machine()], "os": "linux"}
    config = _json(
        {
            **system,
            "config": {"Entrypoint": [f"/{PROGRAM}"], "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": _described(f"{OCI}.config.v1+json", config),
            "layers": [_described(f"{OCI}.layer.v1.tar", layer)],
        }
    )
    described = _described(f"{OCI}.manifest.v1+json", manifest)
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                **described,
                "platform": system,
                "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
            }
        ],
    }
    blobs = {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (layer, config, manifest)}
    layout = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    archive.write_bytes(_tar({**layout, **blobs}))


def _described(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _tar(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
