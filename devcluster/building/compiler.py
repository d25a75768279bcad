"""A C compiler: the system's, or else the one in the `ziglang` wheel."""

import shutil
from pathlib import Path
from typing import Final

from devcluster.building import wheels

LOCK: Final = Path(__file__).parents[1] / "binaries" / "requirements-cc.lock"


def command() -> list[str]:
    """Return the command that starts a C compiler; arguments as for `cc` follow it."""
    system = of_system()
    return [system] if system else [str(wheels.install(LOCK) / "ziglang" / "zig"), "cc"]


def of_system() -> str | None:
    """Return the system's C compiler, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
