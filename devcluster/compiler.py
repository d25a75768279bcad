"""A C compiler: the system's, else the one in the `ziglang` wheel."""

import shutil
from pathlib import Path
from typing import Final

from devcluster import wheels

LOCK: Final = Path(__file__).parent / "binaries" / "requirements-cc.lock"


def command() -> list[str]:
    """Return the command that starts a C compiler; arguments as for `cc` follow it."""
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return [path]
    return [str(wheels.install(LOCK) / "ziglang" / "zig"), "cc"]
