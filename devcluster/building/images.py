"""The images of operator and agent: OCI archives, built without Docker and kept in the user's cache.

mmdebstrap creates two bases from Debian's packages: one with Python only, and one that also has what the other stages
of `images/*.Dockerfile` run. buildah runs these stages in a chroot. Python packages are fetched before. The same tools,
packages and files produce an image with the same digest.
"""

import functools
import hashlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from devcluster.building import cache, debian, steps
from devcluster.building.commands import run
from devcluster.errors import DevclusterError

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = {"berth-operator": "operator", "berth-agent": "agent"}
"""Each image, and the folder of what it alone contains; its Dockerfile and the extra of its packages have that name."""
COMMON: Final = ("api", "base", "client")
"""The folders of what both contain."""
PREFIX: Final = "berth.dev"
"""Names of our images begin with it, in the manifests too, so that no runtime adds a registry. Nothing serves them."""
BUILT_BY: Final = ("pyproject.toml", "requirements.lock", ".dockerignore", "images/base.sh", "images/requirements.py")
"""What builds both images, besides their Dockerfiles and what this module does."""
TOOLS: Final = ("buildah", "mmdebstrap")
PYTHON: Final = (3, 11)
"""The version in Debian 12."""
BASE: Final = ("python3", "libstdc++6")
"""Python, and the library of C++ that wheels expect of every system."""
BUILDER: Final = (*BASE, "python3-venv", "dash", "coreutils", "findutils")
EPOCH: Final = 1_767_225_600
"""The time of all files in an image, in seconds since 1970: the first day of 2026."""
WHEELS: Final = "/wheels"
KEPT: Final = 4
"""Archives of an image that the cache keeps."""


def obstacle() -> str | None:
    """Return why the images cannot be built here, or None."""
    if os.geteuid() != 0:
        return "only root can build images without Docker"
    if not debian.is_here():
        return "images are built without Docker on Debian 12 alone, of its packages"
    if sys.version_info[:2] != PYTHON:
        wanted, found = (".".join(map(str, version)) for version in (PYTHON, sys.version_info[:2]))
        return f"images are built with Python {wanted}, for which packages are fetched, and not with {found}"
    return None


def archive(image: str, *, context: Path = ROOT, tag: str = "") -> Path:
    """Return the OCI archive of an image; build it if the cache has none of these files.

    Args:
        image: one of IMAGES.
        context: a folder with the files of another version, and those of BUILT_BY; by default this checkout.
        tag: another tag than the version.
    """
    own = f"{_fingerprint(inputs(image, context), context)}{tag and '-'}{tag}"
    make = functools.partial(_build, image, context, name(image, tag))
    return cache.once(_folder() / f"{image}-{own}.tar", make)


def inputs(image: str, context: Path = ROOT) -> list[Path]:
    """Return all files of a context that an image is made of, or by."""
    side = IMAGES[image]
    sources = [path for folder in (*COMMON, side) for path in (context / folder).rglob("*")]
    files = [path for path in sources if path.is_file() and "__pycache__" not in path.parts]
    own = (*BUILT_BY, f"images/{side}.Dockerfile")
    return sorted([*files, *(context / file for file in own)])


def name(image: str, tag: str = "") -> str:
    """Return the name of an image in the manifests and in the archive; the tag is that of this version by default."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return f"{PREFIX}/{image}:{tag or version}"


def _folder() -> Path:
    return cache.root() / "images"


def _fingerprint(files: Iterable[Path], context: Path) -> str:
    """Return a short hash over the files' places in their context, their contents, and what builds images."""
    digest = hashlib.sha256(Path(__file__).read_bytes() + Path(debian.__file__).read_bytes())
    for file in files:
        digest.update(f"{file.relative_to(context)}\0{file.stat().st_size}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _build(image: str, context: Path, reference: str, target: Path) -> None:
    """Write the archive of an image; one process at a time uses buildah's storage."""
    reason = obstacle()
    if reason:
        raise DevclusterError(f"{reason}; elsewhere use `docker build`, as images/README.md has it")
    with (
        cache.locked(_folder() / "storage"),
        steps.shown(f"building the image {image}: minutes the first time") as step,
    ):
        with step("bases"):
            debian.install(TOOLS)
            bases = {"BASE": _base("base", BASE), "BUILDER": _base("builder", BUILDER)}
        with step("packages of Python"):
            # The packages that the image needs, and those that build ours.
            extra = IMAGES[image]
            locks = "".join(
                run([sys.executable, ROOT / "images" / "requirements.py", part]) for part in ("build", extra)
            )
            key = hashlib.sha256(locks.encode()).hexdigest()[:12]
            wheels = cache.once(_folder() / f"wheels-{extra}-{key}", functools.partial(_fetch, locks))
        with step(image):
            arguments = {**bases, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS}
            options = [f"--build-arg={key}={value}" for key, value in arguments.items()]
            file = context / "images" / f"{IMAGES[image]}.Dockerfile"
            common = [*options, f"--volume={wheels}:{WHEELS}:ro", f"--file={file}"]
            # By its name the slow stage stays in the storage when the other layers are removed.
            stage = "dependencies"
            _buildah("build", *_options(f"{image}-{stage}"), *common, f"--target={stage}", str(context))
            _buildah("build", *_options(image), *common, str(context))
            _buildah("push", "--quiet", image, f"oci-archive:{target}:{reference}")
            _buildah("rmi", "--prune")
            archives = sorted(_folder().glob(f"{image}-*.tar"), key=lambda path: path.stat().st_mtime)
            for path in archives[:-KEPT]:
                path.unlink(missing_ok=True)


def _base(base: str, packages: Sequence[str]) -> str:
    """Return the name of a base in buildah's storage; make it if the cache has none."""
    hook = ROOT / "images" / "base.sh"
    target = _folder() / f"{base}-{_fingerprint([hook], ROOT)}.tar"
    make = functools.partial(_extract, packages, hook)
    with tempfile.TemporaryDirectory() as context:
        (Path(context) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        shutil.copyfile(cache.once(target, make), Path(context) / "base.tar")
        _buildah("build", *_options(base), context)
    return f"localhost/{base}"


def _extract(packages: Sequence[str], hook: Path, target: Path) -> None:
    debian.extract(packages, hook=hook, epoch=EPOCH, target=target)


def _fetch(locks: str, target: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        # A package that both need is listed twice.
        file.write(locks)
        file.flush()
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", target, "-r", file.name])


def _options(tag: str) -> Iterator[str]:
    yield from ("--quiet", "--isolation=chroot", "--pull=never", "--layers", "--format=oci", "--identity-label=false")
    yield from (f"--timestamp={EPOCH}", f"--tag={tag}")


def _buildah(command: str, *arguments: str) -> None:
    storage = _folder() / "storage"
    run(["buildah", f"--root={storage}", f"--runroot={storage}/run", command, *arguments])
