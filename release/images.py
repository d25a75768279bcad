"""The images of a release: one OCI archive for all platforms, and what is installed in an image."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Any, Final

from release import archives

INDEX: Final = "application/vnd.oci.image.index.v1+json"
TAG: Final = "org.opencontainers.image.ref.name"
NAME: Final = "io.containerd.image.name"
"""The annotation by which containerd names an image that it imports."""
LAYOUT: Final = {"imageLayoutVersion": "1.0.0"}
STATUS: Final = PurePosixPath("var/lib/dpkg/status.d")
"""Where images/base.sh keeps what Debian's packages say about themselves."""
DISTRIBUTION: Final = ".dist-info"

Descriptor = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image of one platform.

    Attributes:
        manifest: the descriptor of its manifest, with the platform.
        blobs: manifest, configuration and layers by digest.
        layers: digests of the layers, the lowest first.
    """

    manifest: Descriptor
    blobs: Mapping[str, bytes]
    layers: Sequence[str]


@dataclass(frozen=True, slots=True, order=True)
class Installed:
    """A package in an image; `architecture` is empty for a Python distribution."""

    name: str
    version: str
    architecture: str = ""


def read(archive: Path) -> Image:
    """Return the image of an OCI archive, as `make images` writes it."""
    with tarfile.open(archive) as tar:
        files = {entry.name: tar.extractfile(entry) for entry in tar if entry.isfile()}
        contents = {name: file.read() for name, file in files.items() if file}
    [described] = json.loads(contents["index.json"])["manifests"]
    blobs = {name.removeprefix("blobs/").replace("/", ":"): body for name, body in contents.items() if "blobs/" in name}
    manifest = json.loads(blobs[described["digest"]])
    configuration = json.loads(blobs[manifest["config"]["digest"]])
    platform = {key: configuration[key] for key in ("architecture", "os")}
    own = {key: described[key] for key in ("mediaType", "digest", "size")}
    return Image(
        manifest={**own, "platform": platform}, blobs=blobs, layers=[layer["digest"] for layer in manifest["layers"]]
    )


def write(target: Path, images: Sequence[Image], name: str) -> str:
    """Write the images of all platforms as one OCI archive; return the digest of their index.

    Containerd imports it under two names: `name`, which ends with a tag, and the name with the digest.
    """
    manifests = sorted((image.manifest for image in images), key=lambda manifest: str(manifest["platform"]))
    index = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
    described = {"mediaType": INDEX, "digest": digest, "size": len(index)}
    by_digest = f"{name.rpartition(':')[0]}@{digest}"
    names: list[Descriptor] = [{TAG: name, NAME: name}, {NAME: by_digest}]
    blobs = {digest: index} | {key: body for image in images for key, body in image.blobs.items()}
    archives.write_tar(
        target,
        {
            "oci-layout": _json(LAYOUT),
            "index.json": _json(
                {"schemaVersion": 2, "manifests": [{**described, "annotations": named} for named in names]}
            ),
            **{f"blobs/{key.replace(':', '/')}": body for key, body in blobs.items()},
        },
    )
    return digest


def installed(image: Image) -> Iterator[Installed]:
    """Yield the Python distributions and Debian's packages in an image.

    Raises:
        ValueError: a layer deletes files of another layer, so that its files are not those of the image.
    """
    for layer in image.layers:
        with tarfile.open(fileobj=io.BytesIO(image.blobs[layer])) as files:
            for entry in files:
                path = PurePosixPath(entry.name)
                if path.name.startswith(".wh."):
                    raise ValueError(f"the layer {layer} deletes files: {path}")
                is_debian = path.parent == STATUS and entry.isfile()
                if is_debian or (path.name == "METADATA" and path.parent.suffix == DISTRIBUTION):
                    file: Any = files.extractfile(entry)
                    fields = HeaderParser().parsestr(file.read().decode())
                    name = "Package" if is_debian else "Name"
                    yield Installed(fields[name], fields["Version"], fields["Architecture"] if is_debian else "")


def _json(body: object) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
