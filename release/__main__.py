"""Write a release: `python -m release check|parts|files VERSION`, as `make release` runs it.

`check` only compares the version with pyproject.toml, before anything is built. `parts` writes what depends on the
platform, once on each platform. `files` writes the release from the parts of all platforms.
"""

import argparse
import hashlib
import shutil
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster.building import images as built
from release import console, images, installation, notes, sbom

ROOT: Final = Path(__file__).parents[1]
SUMS: Final = "SHA256SUMS"
ADDRESS: Final = "https://berth.dev/releases"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["check", "parts", "files"])
    parser.add_argument("version", help="that of pyproject.toml: 0.1.0")
    parser.add_argument("--images", type=Path, default=Path(".build/images"), help="what `make images` wrote")
    parser.add_argument("--krew", type=Path, default=Path(".build/krew"), help="what `make krew` wrote")
    parser.add_argument("--parts", type=Path, default=Path(".build/release-parts"), help="where the parts are")
    parser.add_argument("--target", type=Path, default=Path(".build/release"), help="where to write the release")
    parser.add_argument("--registry", default=built.PREFIX, help="registry and folder of the images")
    parser.add_argument("--address", default=ADDRESS, help="address below which the release's files will be")
    parser.add_argument("--source", default="", help="address of the repository's files at this version")
    options = parser.parse_args(arguments)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if options.version != version:
        sys.stderr.write(
            f"release: VERSION is {options.version!r}, and pyproject.toml has {version}; leave VERSION out, or change"
            " the version in pyproject.toml and commit it\n"
        )
        return 1
    if options.command == "check":
        return 0
    folder = options.parts if options.command == "parts" else options.target
    if folder.exists():
        if folder.resolve().parent != (ROOT / ".build").resolve():
            sys.stderr.write(f"release: {folder} exists; remove it, or name another folder\n")
            return 1
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    if options.command == "parts":
        write_parts(options.parts, version, built_images=options.images, krew=options.krew)
    else:
        write_files(options.target, version, options)
    sys.stdout.writelines(f"{path}\n" for path in sorted(folder.iterdir()))
    return 0


def write_parts(target: Path, version: str, *, built_images: Path, krew: Path) -> None:
    """Write what depends on this platform."""
    lock = (ROOT / "requirements.lock").read_text()
    for name in built.IMAGES:
        archive = built_images / f"{name}.tar"
        image = images.read(archive)
        platform = image.manifest["platform"]["architecture"]
        shutil.copyfile(archive, target / f"{name}-{version}-{platform}.tar")
        listed = sbom.text(name, version, image.manifest["digest"], images.installed(image), lock)
        (target / f"{name}-{version}-{platform}.cdx.json").write_text(listed)
    [packed] = krew.glob("*.tar.gz")
    shutil.copy(packed, target)
    plugin = packed.name.removesuffix(".tar.gz")
    shutil.copyfile(krew / "berth.yaml", target / f"{plugin}.yaml")
    console.write(target / f"{plugin}.pyz", version)


def write_files(target: Path, version: str, options: argparse.Namespace) -> None:
    """Write the release from the parts of all platforms."""
    parts, registry = options.parts, options.registry
    digests = {}
    for name in built.IMAGES:
        found = [images.read(path) for path in sorted(parts.glob(f"{name}-{version}-*.tar"))]
        digests[name] = images.write(target / f"{name}-{version}.tar", found, f"{registry}/{name}:{version}")
    for pattern in ("*.cdx.json", "*.tar.gz", "*.pyz"):
        for path in parts.glob(pattern):
            shutil.copy(path, target)
    installation.write_chart(target / f"berth-{version}.tgz", registry, digests)
    (target / f"berth-{version}.yaml").write_text(installation.manifest(registry, digests))
    (target / f"berth-crds-{version}.yaml").write_text(installation.definitions())
    plugins = [yaml.safe_load(path.read_text()) for path in sorted(parts.glob("kubectl-berth_*.yaml"))]
    (target / "krew.yaml").write_text(yaml.safe_dump(merged(plugins, options.address), sort_keys=False))
    (target / "NOTES").write_text(notes.text(version, registry, digests, options.source))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(target.iterdir())]
    (target / SUMS).write_text("".join(sums))


def merged(plugins: Iterable[dict[str, Any]], address: str) -> dict[str, Any]:
    """Return krew's manifest for the platforms of all manifests, whose archives are below an address."""
    first, *others = plugins
    platforms = [platform for plugin in (first, *others) for platform in plugin["spec"]["platforms"]]
    for platform in platforms:
        platform["uri"] = f"{address}/{platform['uri'].rpartition('/')[2]}"
    return {**first, "spec": {**first["spec"], "platforms": platforms}}


if __name__ == "__main__":
    sys.exit(main())
