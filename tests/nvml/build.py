"""Build the fixture library once for each version of its sources."""

import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from devcluster.building import compiler

HERE: Final = Path(__file__).parent
OUTPUT: Final = HERE.parents[1] / ".build" / "nvml"
NAME: Final = "libnvidia-ml.so.1"
SOURCES: Final = sorted(HERE.glob("*.c"))
HEADERS: Final = sorted(HERE.glob("*.h"))
FLAGS: Final = [
    *("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", "-pthread"),
    # The name under which nvidia-ml-py asks the linker: a library that is already loaded under it is used.
    f"-Wl,-soname,{NAME}",
]


def library() -> Path:
    """Return the built library; its folder can serve as LD_LIBRARY_PATH."""
    path = OUTPUT / _version() / NAME
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(path)
    return path


def _version() -> str:
    texts = [path.read_bytes() for path in (*SOURCES, *HEADERS)]
    return hashlib.sha256(b"\0".join([*texts, " ".join(FLAGS).encode()])).hexdigest()[:16]


def _compile(path: Path) -> None:
    """Compile next to the target and rename, so that test runs in parallel never see half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / NAME
        subprocess.run([*compiler.command(), *FLAGS, "-o", str(built), *map(str, SOURCES)], check=True)
        built.replace(path)
