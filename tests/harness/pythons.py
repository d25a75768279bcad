"""Choose the Python for the first layer of tests in CI: `python -m tests.harness.pythons` prints arguments of make.

README names several versions, and a run has time for one of them. The commit chooses, so that a failure repeats.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
OWN: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
HAS_PIP: Final = "import ensurepip, venv"
"""What fails in a Python of Debian without `python3-venv`."""


def main() -> None:
    """Print the arguments, and to stderr what they mean."""
    known = supported()
    found = {version: path for version in known if (path := _find(version))}
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    version = drawn([*found], commit)
    missing = ", ".join(version for version in known if version not in found)
    print(
        f"ci: make test runs on Python {version}, chosen by the commit from {', '.join(found)}"
        + (f"; not on this machine: {missing}" if missing else ""),
        file=sys.stderr,
    )
    venv = ".venv" if version == OWN else f".build/python{version}"
    print(f"PYTHON={found[version]} VENV={venv}")


def supported() -> list[str]:
    """Return the versions that pyproject.toml lists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [version for text in project["classifiers"] if (version := re.sub(r".* :: (3\.\d+)$|.*", r"\1", text))]


def drawn(versions: Sequence[str], commit: str) -> str:
    """Return the version for a commit, which is a number in hexadecimal."""
    return versions[int(commit, 16) % len(versions)]


def _find(version: str) -> str:
    """Return the path of a Python with pip; empty if this machine has none. One of pyenv may be on no path."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    for folder in (*folders, *sorted(pyenv.glob(f"versions/{version}.*/bin"))):
        path = folder / f"python{version}"
        if path.exists() and subprocess.run([path, "-c", HAS_PIP], check=False, capture_output=True).returncode == 0:
            return str(path)
    return ""


if __name__ == "__main__":
    main()
