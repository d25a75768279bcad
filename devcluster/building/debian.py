"""Packages of Debian: programs that are installed on this machine, and root filesystems for images.

The mirrors come from this machine's apt configuration.
"""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from devcluster.building.commands import run
from devcluster.errors import DevclusterError

RELEASE: Final = "bookworm"
"""Debian 12, of which the images are made."""
SUITES: Final = (RELEASE, f"{RELEASE}-updates", f"{RELEASE}-security")
NETWORK: Final = ("Acquire::http", "Acquire::https", "Acquire::Check-")
"""The settings of apt by which this machine reaches its mirrors."""


def is_here() -> bool:
    """Return whether this machine runs the release."""
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME") == RELEASE
    except OSError:
        return False


def install(packages: Sequence[str]) -> None:
    """Install packages whose program of the same name is missing; raise DevclusterError where that is impossible."""
    missing = [package for package in packages if shutil.which(package) is None]
    if missing:
        _install(missing)


def ensure_library(name: str) -> bool:
    """Return whether a C library can be linked; where it is missing, root installs its package `<name>-dev`."""
    if shutil.which("apt-get") and os.geteuid() == 0 and not _has_library(name):
        _install([f"{name}-dev", "pkg-config"])
    return _has_library(name)


def _has_library(name: str) -> bool:
    pkg_config = shutil.which("pkg-config")
    return pkg_config is not None and subprocess.run([pkg_config, "--exists", name], check=False).returncode == 0


def _install(packages: Sequence[str]) -> None:
    names = " and ".join(packages)
    if shutil.which("apt-get") is None:
        raise DevclusterError(f"{names} of Debian 12 cannot be installed: this machine has no apt-get")
    if os.geteuid() != 0:
        raise DevclusterError(f"{names} must be installed by root: `apt-get install {' '.join(packages)}`")
    run(["apt-get", "update"])
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "install", "--yes", "--no-install-recommends", *packages], environment=environment)


def extract(packages: Sequence[str], *, hook: Path, epoch: int, target: Path) -> None:
    """Write a tar archive of packages and what they depend on; none of their scripts runs.

    The program `hook` is given the folder of their files, with the packages in apt's cache there. The same packages
    give the same archive: no file is younger than `epoch`, in seconds.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as options:
        options.write("\n".join(line for line in run(["apt-config", "dump"]).splitlines() if line.startswith(NETWORK)))
        options.flush()
        command = [
            *("mmdebstrap", "--mode=root", "--variant=extract", f"--aptopt={options.name}", "--format=tar"),
            *("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--extract-hook={hook}"),
            # The hook removes what this would empty.
            *("--skip=cleanup", "--skip=output/dev"),
            *(f"--include={','.join(packages)}", RELEASE, str(target), "-"),
        ]
        run(command, input=_sources(), environment={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})


def _sources() -> str:
    """Return apt's sources of the release, as lines of a sources.list."""
    command = ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI) $(COMPONENT)"]
    targets = [line.split() for line in run([*command, "Created-By: Packages"]).splitlines()]
    lines = [f"deb {uri} {suite} {component}" for suite, uri, component in targets if suite in SUITES]
    if not lines:
        raise DevclusterError(f"apt has no source of Debian 12 ({RELEASE}) in /etc/apt; the images are made of it")
    return "\n".join(dict.fromkeys(lines))
