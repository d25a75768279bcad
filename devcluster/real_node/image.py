"""The one image of a real node: an OCI archive around the static program `box`, made here and never pulled."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path
from typing import Any, Final

NAME: Final = "berth.dev/devcluster/box:1"
PROGRAM: Final = "box"
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
OCI: Final = "application/vnd.oci.image"


def write(archive: Path, *, program: Path) -> None:
    """Write the image's archive, of which `ctr images import` takes the name and all."""
    layer = _tar({PROGRAM: program.read_bytes()})
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
    index = {"schemaVersion": 2, "manifests": [{**described, "platform": system, "annotations": _named()}]}
    blobs = {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (layer, config, manifest)}
    layout = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    archive.write_bytes(_tar({**layout, **blobs}))


def _named() -> dict[str, str]:
    return {"io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": NAME}


def _described(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
