"""Write the archive and the manifest with which krew installs `kubectl berth`: `python archive.py FOLDER [--uri URI]`.

PyInstaller freezes the plug-in as a folder. A folder starts faster than a single file, because nothing is unpacked at
each start. The archive has the licences of everything in it. Links become files, because krew unpacks no links.
"""

import argparse
import gzip
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).parents[2]
PROGRAM: Final = "kubectl-berth"
PACKAGE: Final = "berth-operator"
LEFT_OUT: Final = (
    *(
        "aiohttp",
        "berth_agent",
        "charts",
        "cryptography",
        "demo",
        "devcluster",
        "grpc",
        "hypothesis",
        "IPython",
        "kopf",
    ),
    *(
        "kubernetes_asyncio",
        "matplotlib",
        "mypy",
        "numpy.f2py",
        "PIL",
        "prometheus_client",
        "pytest",
        "tests",
        "tkinter",
    ),
    *("uvloop", "setuptools"),
)
"""Modules of the environment that the plug-in does not use."""
OF_MACHINE: Final = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""What pip has written about the environment, with its folder."""
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
ADDRESS: Final = "https://berth.dev/releases/{}"


def main() -> None:
    """Build, and print what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--uri", default="", help="where the archive will be; by default below berth.dev")
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    frozen = freeze(options.folder / "build")
    add_licences(frozen)
    archive = options.folder / f"{PROGRAM}_v{metadata.version(PACKAGE)}_{system()}_{machine()}.tar.gz"
    pack(frozen, archive)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest = options.folder / "berth.yaml"
    manifest.write_text(yaml.safe_dump(plugin(digest, options.uri or ADDRESS.format(archive.name)), sort_keys=False))
    Path(f"{archive}.sha256").write_text(f"{digest}  {archive.name}\n")
    shutil.rmtree(options.folder / "build")
    sys.stdout.write(f"{archive}\n{manifest}\n")


def system() -> str:
    """Return this platform's operating system, as Go names it."""
    return platform.system().lower()


def machine() -> str:
    """Return this platform's architecture, as Go names it."""
    return MACHINES.get(platform.machine(), platform.machine())


def freeze(folder: Path) -> Path:
    """Freeze the plug-in; return the folder with the program."""
    folder.mkdir()
    entry = folder / "entry.py"
    entry.write_text("from berth_kubectl.__main__ import main\n\nmain()\n")
    command = [
        *(sys.executable, "-m", "PyInstaller", "--onedir", "--noconfirm", "--clean", "--log-level=ERROR"),
        *("--name", PROGRAM, "--distpath", str(folder / "dist"), "--workpath", str(folder / "work")),
        *("--specpath", str(folder), "--collect-submodules", "berth_kubectl", "--copy-metadata", PACKAGE),
        *("--collect-data", "berth_kubectl"),  # the page of the dashboard
        *(f"--exclude-module={name}" for name in LEFT_OUT),
        str(entry),
    ]
    # PyInstaller writes what a set has in the set's order.
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    frozen = folder / "dist" / PROGRAM
    for path in frozen.rglob("*.dist-info/*"):
        if path.name in OF_MACHINE:
            path.unlink()
    [own] = frozen.rglob("berth_operator-*.dist-info/METADATA")
    # Without the text of README.md, which is that of the day on which the environment was created.
    own.write_text(own.read_text().partition("\n\n")[0] + "\n")
    return frozen


def add_licences(frozen: Path) -> None:
    """Add the licence of this project, and those of the packages that are frozen with it."""
    shutil.copy(ROOT / "LICENSE", frozen / "LICENSE")
    for name in packages():
        try:
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            continue  # the lock has it for another platform
        for file in files:
            if ".dist-info" in str(file) and file.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE", "COPYING")):
                target = frozen / "licences" / f"{name}-{file.name}"
                target.parent.mkdir(exist_ok=True)
                shutil.copy(str(file.locate()), target)


def packages() -> Iterable[str]:
    """Return the packages of the extra `kubectl`, with all that they need."""
    # The folder of images is no package, so its module is loaded by its path.
    spec = importlib.util.spec_from_file_location("requirements", ROOT / "images" / "requirements.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError("images/requirements.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lock = module.of_image(ROOT, "kubectl")
    return sorted({line.partition("==")[0] for line in lock.splitlines() if "==" in line and line[0].isalnum()})


def pack(frozen: Path, archive: Path) -> None:
    """Write a folder's files to an archive, in order and without times and owners."""
    with (
        gzip.GzipFile(archive, "wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", dereference=True) as tar,
    ):
        for path in sorted(frozen.rglob("*")):
            if not path.is_dir():
                tar.add(path, str(path.relative_to(frozen)), filter=_anonymous)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


def plugin(digest: str, uri: str) -> dict[str, object]:
    """Return krew's manifest."""
    platform_entry = {
        "selector": {"matchLabels": {"os": system(), "arch": machine()}},
        "uri": uri,
        "sha256": digest,
        "bin": PROGRAM,
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "berth"},
        "spec": {
            "version": f"v{metadata.version(PACKAGE)}",
            "homepage": "https://berth.dev",
            "shortDescription": "Why pods wait for GPUs, and who holds them",
            "description": "Shows why a pod waits, the queue, who holds devices, what is free and what is idle, and\n"
            "what is wrong with an installation of Berth, as tables or live in the browser. It sends GET requests\n"
            "alone, through kubectl.\n",
            "caveats": "`kubectl berth completion install` installs completion of verbs, flags and names.\n",
            "platforms": [platform_entry],
        },
    }


if __name__ == "__main__":
    main()
