"""Programs that are downloaded instead of built, from the images in which Kubernetes releases them.

`binaries/downloads.yaml` pins each image by the digest of its index. The index lists a manifest for each platform, and
a manifest lists the image's layers. Each of them is checked by the digest that the one before names. After any failure
the program is built, so a failure is one line for the user and no error.

The variable BERTH_DOWNLOADS names another file of this form. The file of a mirror has the key `registry` with its
address. If the variable is empty, nothing is downloaded. Proxies are those of the usual variables (`https_proxy`,
`no_proxy`).
"""

import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import platform
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, TypeVar
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import yaml

from devcluster.building import cache, steps
from devcluster.errors import DevclusterError

T = TypeVar("T")
Check = Callable[[str, Path], bool]
"""Whether a file runs as the program of that name, and has its version."""

VARIABLE: Final = "BERTH_DOWNLOADS"
KUBERNETES: Final = "k8s.io"
"""Kubernetes serves its images at the host `registry` of its domain."""
PINS: Final = Path(__file__).parents[1] / "binaries" / "downloads.yaml"
OCI, DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution.manifest"
ACCEPTED: Final = f"{OCI}.index.v1+json, {OCI}.manifest.v1+json, {DOCKER}.list.v2+json, {DOCKER}.v2+json"
"""The types of indexes and manifests."""
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
CREDENTIALS: Final = ("Authorization", "Proxy-authorization", "Cookie")
DOCUMENT_BYTES: Final = 4 << 20
"""More than any index or manifest has."""
BLOCK: Final = 1 << 20


class DownloadError(DevclusterError):
    """A download failed or is not what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The image of one program."""

    repository: str
    version: str
    digest: str
    """The digest of the image's index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The layer of an image that contains the program."""

    url: str
    digest: str
    size: int
    """Bytes, compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long the registry is waited for, in seconds."""

    answer: float = 3.0
    """For a first answer; after that there is no network."""
    pause: float = 10.0
    """For the next bytes."""
    total: float = 300.0
    """For all programs; a build takes about as long."""


def image(name: str) -> Image | None:
    """Return the pinned image of a program, or None."""
    return _images().get(name)


def cached(name: str, pinned: Image) -> Path:
    """Return the program's place in the cache of downloads, which nothing but the downloading commands reads."""
    folder = f"{pinned.repository.replace('/', '-')}-{pinned.version}-{pinned.digest.removeprefix('sha256:')[:12]}"
    return cache.root() / "downloads" / folder / name


def fetch(images: Mapping[str, Image], check: Check, limits: Limits | None = None) -> None:
    """Download programs into the cache, and say in one line what is downloaded, and in one line what fails."""
    limits = limits or Limits()
    registry = _registry()
    first = _together({"": functools.partial(_answers, registry, limits)}, limits.answer)[""]
    if isinstance(first, Exception):
        steps.say(f"{registry} does not answer ({first}): the programs are built instead of downloaded")
        return
    layers: dict[str, Layer] = {}
    lookups = {name: functools.partial(_layer, registry, pinned, limits) for name, pinned in images.items()}
    for name, layer in _together(lookups, limits.total).items():
        if isinstance(layer, Layer):
            layers[name] = layer
        else:
            _say_failed(name, layer)
    if not layers:
        return
    what = ", ".join(f"{name} {images[name].version}" for name in layers)
    megabytes = sum(layer.size for layer in layers.values()) / 1e6
    tasks = {}
    for name, layer in layers.items():
        make = functools.partial(_write, name, layer, check, limits)
        tasks[name] = functools.partial(cache.once, cached(name, images[name]), make)
    with steps.shown(f"downloading {what} from {registry}: {megabytes:.0f} MB") as step, step("download"):
        results = _together(tasks, limits.total)
    for name, result in results.items():
        if isinstance(result, Exception):
            _say_failed(name, result)


def pin(name: str, *, repository: str, tag: str, check: Check) -> Image:
    """Write the digest that a tag has now into the file of pins, after the program was downloaded and has run.

    Raises:
        DownloadError: the registry has no such image, or its program does not run or has another version.
    """
    registry, limits, index = _registry(), Limits(), io.BytesIO()
    try:
        digest = _download(f"{registry}/v2/{repository}/manifests/{tag}", index, most=DOCUMENT_BYTES, limits=limits)
        pinned = Image(repository=repository, version=tag.removeprefix("v"), digest=digest)
        with tempfile.TemporaryDirectory() as folder:
            _write(name, _layer(registry, pinned, limits), check, limits, Path(folder) / name)
    except OSError as error:
        raise DownloadError(f"{repository}:{tag} cannot be read from {registry}: {error}") from error
    comments = itertools.takewhile(lambda line: line.startswith("#"), _file().read_text().splitlines(keepends=True))
    images = {**_images(), name: pinned}
    content = {
        **yaml.safe_load(_file().read_text()),
        "images": {name: asdict(images[name]) for name in sorted(images)},
    }
    _file().write_text("".join(comments) + yaml.safe_dump(content, sort_keys=False))
    return pinned


def _file() -> Path:
    return Path(os.environ.get(VARIABLE, PINS))


def _registry() -> str:
    registry: str = yaml.safe_load(_file().read_text()).get("registry", f"https://registry.{KUBERNETES}")
    return registry


def _images() -> dict[str, Image]:
    if os.environ.get(VARIABLE) == "":
        return {}
    return {name: Image(**fields) for name, fields in yaml.safe_load(_file().read_text())["images"].items()}


def _together(tasks: Mapping[str, Callable[[], T]], seconds: float) -> dict[str, T | Exception]:
    """Run tasks in threads; return what each returned or raised, or a TimeoutError for those that take longer.

    Nothing waits for a thread that takes longer: the resolution of a name, for example, cannot be interrupted.
    """
    results: dict[str, T | Exception] = {name: TimeoutError(f"not within {seconds:g} s") for name in tasks}

    def run(name: str, task: Callable[[], T]) -> None:
        try:
            results[name] = task()
        except Exception as error:  # noqa: BLE001 - whatever it is, the program is built
            results[name] = error

    end = time.monotonic() + seconds
    threads = [threading.Thread(target=run, args=item, daemon=True) for item in tasks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(results)


def _answers(registry: str, limits: Limits) -> None:
    with contextlib.suppress(HTTPError):  # an answer, too
        _open(f"{registry}/v2/", limits).close()


def _layer(registry: str, pinned: Image, limits: Limits) -> Layer:
    """Return the largest layer of an image for this machine: the others belong to its base."""
    base = f"{registry}/v2/{pinned.repository}"

    def document(digest: str) -> Any:
        content = io.BytesIO()
        _verified(f"{base}/manifests/{digest}", digest, content, most=DOCUMENT_BYTES, limits=limits)
        return json.loads(content.getvalue())

    wanted = {"os": "linux", "architecture": ARCHITECTURES.get(platform.machine(), platform.machine())}
    for entry in document(pinned.digest)["manifests"]:
        if wanted.items() <= entry["platform"].items():
            layer = max(document(entry["digest"])["layers"], key=lambda layer: layer["size"])
            return Layer(url=f"{base}/blobs/{layer['digest']}", digest=layer["digest"], size=layer["size"])
    raise DownloadError(f"{base} has no image for {wanted['architecture']}")


def _write(name: str, layer: Layer, check: Check, limits: Limits, draft: Path) -> None:
    """Write the program of a layer to a file. The layer is read only after its digest was checked."""
    with tempfile.TemporaryFile(dir=draft.parent) as archive:
        _verified(layer.url, layer.digest, archive, most=layer.size, limits=limits)
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as files:
            for member in files:
                source = files.extractfile(member) if PurePosixPath(member.name).parts[-2:] == ("bin", name) else None
                if source is not None:
                    with source, draft.open("wb") as target:
                        shutil.copyfileobj(source, target, BLOCK)
                    break
            else:
                raise DownloadError(f"{layer.url} contains no bin/{name}")
    draft.chmod(0o755)
    if not check(name, draft):
        raise DownloadError(f"{layer.url}: {name} does not run, or has another version than go.mod pins")


def _verified(url: str, digest: str, into: IO[bytes], *, most: int, limits: Limits) -> None:
    actual = _download(url, into, most=most, limits=limits)
    if actual != digest:
        raise DownloadError(f"{url} has the digest {actual}")


def _download(url: str, into: IO[bytes], *, most: int, limits: Limits) -> str:
    """Write what a URL serves, and return its digest; raise DownloadError if it has more bytes than `most`."""
    digest = hashlib.sha256()
    with _open(url, limits) as response:
        while block := response.read(BLOCK):
            if (most := most - len(block)) < 0:
                raise DownloadError(f"{url} is longer than expected")
            digest.update(block)
            into.write(block)
    return f"sha256:{digest.hexdigest()}"


class _Redirects(HTTPRedirectHandler):
    """Follows redirects without the credentials of the first request, such as those for a proxy."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> Request | None:
        request = super().redirect_request(*args, **kwargs)
        if request is not None:
            for header in CREDENTIALS:
                request.remove_header(header)
        return request


def _open(url: str, limits: Limits) -> IO[bytes]:
    request = Request(url, headers={"Accept": ACCEPTED})  # noqa: S310 - of the file of pins, and checked by digest
    try:
        response: IO[bytes] = build_opener(_Redirects).open(request, timeout=limits.pause)
    except HTTPError as error:
        error.close()
        raise
    return response


def _say_failed(name: str, error: object) -> None:
    steps.say(f"{name} is built instead of downloaded: {error or type(error).__name__}")
