"""Chromium for the tests of the page, as installed here. `python -m tests.programs.chromium` installs a missing one.

The variable BERTH_CHROMIUM names another Chromium than the one on PATH. Only root on Debian can install one.
"""

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Final

from devcluster.building import cache, debian

VARIABLE: Final = "BERTH_CHROMIUM"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES: Final = ("chromium", "fonts-dejavu-core")
"""A machine without any font would show no text."""


def find() -> Path | None:
    """Return where Chromium is; None if this machine has none."""
    named = os.environ.get(VARIABLE)
    paths = (shutil.which(name) for name in ([named] if named else NAMES))
    return next((Path(path) for path in paths if path), None)


def obstacle() -> str | None:
    """Return why there can be no Chromium; None if there is one, or it can be installed."""
    if find() is not None or (not os.environ.get(VARIABLE) and _is_root_on_debian()):
        return None
    return f"no Chromium was found: set {VARIABLE}, or install one on PATH ({', '.join(NAMES)})"


def ensure() -> Path | None:
    """Return where Chromium is, and install Debian's package where that is possible; None elsewhere."""
    if find() is None and obstacle() is None:
        with cache.locked(cache.root() / "chromium"):  # the workers of a session begin at the same time
            if find() is None:
                debian.install(PACKAGES)
    return find()


def _is_root_on_debian() -> bool:
    try:
        return os.geteuid() == 0 and platform.freedesktop_os_release().get("ID") == "debian"
    except OSError:
        return False


if __name__ == "__main__":
    sys.stdout.write(f"{ensure() or obstacle()}\n")
