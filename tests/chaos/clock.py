"""The wall clock of one process. Tests can step it (see `clock.c`)."""

import hashlib
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from devcluster.building import compiler

SOURCE: Final = Path(__file__).with_name("clock.c")
OUTPUT: Final = Path(__file__).parents[2] / ".build" / "clock"
FLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared")


class Clock:
    """The clock of the processes that are started with its `environment`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.write_bytes(struct.pack("=q", 0))

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables of a process."""
        return {"LD_PRELOAD": str(library()), "BERTH_CHAOS_CLOCK": str(self._file)}

    def step(self, seconds: int) -> None:
        """Set how far the clock is ahead of the machine's."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


def library() -> Path:
    """Return the library, built once for each version of its source."""
    version = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    path = OUTPUT / f"{version}.so"
    if not path.exists():
        OUTPUT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OUTPUT) as folder:
            built = Path(folder) / path.name
            subprocess.run([*compiler.command(), *FLAGS, "-o", str(built), str(SOURCE)], check=True)
            built.replace(path)
    return path
