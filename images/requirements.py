"""Print the part of requirements.lock that one image needs: `python requirements.py operator`.

The argument is an extra of pyproject.toml, or `build` for what builds the package itself. It runs while an image is
built, so it needs nothing but the standard library.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

BUILD: Final = "build"
ENTRY: Final = re.compile(
    r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[.*\])?==.*\n(?:[ ]+--hash=.*\n)*(?P<via>(?:[ ]+#.*\n)*)", re.MULTILINE
)
"""One package of the lock: its pin and hashes, then as comments the packages that need it."""
VIA: Final = re.compile(r"#\s+(?:via\s+)?([\w.-]+)$", re.MULTILINE)


def selected(project: Mapping[str, Any], lock: str, extra: str) -> str:
    """Return the entries of the lock that an extra needs; raise KeyError if the project has no such extra."""
    wanted = {_name(requirement) for requirement in _direct(project, extra)}
    entries = list(ENTRY.finditer(lock))
    size = -1
    while size != len(wanted):
        size = len(wanted)
        wanted |= {entry["name"] for entry in entries if wanted.intersection(VIA.findall(entry["via"]))}
    return "".join(entry[0] for entry in entries if entry["name"] in wanted)


def _direct(project: Mapping[str, Any], extra: str) -> Iterable[str]:
    if extra == BUILD:
        return list(project["build-system"]["requires"])
    return [*project["project"]["dependencies"], *project["project"]["optional-dependencies"][extra]]


def _name(requirement: str) -> str:
    """Return the name in a requirement such as `pyyaml>=6.0`, written as in the lock."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def of_image(root: Path, extra: str) -> str:
    """Return the entries that an extra needs, of the lock in the repository at `root`."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    return selected(project, (root / "requirements.lock").read_text(), extra)


if __name__ == "__main__":
    sys.stdout.write(of_image(Path(__file__).parents[1], sys.argv[1]))
