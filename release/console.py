"""`kubectl berth` as a zip application: one file with all its packages, for machines that have Python."""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from devcluster.building.commands import run
from release import application, archives

ROOT: Final = Path(__file__).parents[1]
OWN: Final = (
    "api/berth_api",
    "base/berth_base",
    "client/berth_client",
    "kubectl/berth_kubectl",
    "operator/berth_operator",
)
LEFT_OUT: Final = frozenset({"__pycache__", "tests", "RECORD", "INSTALLER", "REQUESTED"})


def write(target: Path, version: str) -> None:
    """Write the application for this machine's platform and Python."""
    own = f"Metadata-Version: 2.1\nName: berth-operator\nVersion: {version}\n"
    files: dict[str, archives.Content] = {
        **{f"{application.MODULES}/{name}": path for name, path in _modules()},
        f"{application.MODULES}/berth_operator-{version}.dist-info/METADATA": own.encode(),
        "LICENSE": ROOT / "LICENSE",
    }
    content = hashlib.sha256()
    for name, body in sorted(files.items()):
        content.update(name.encode() + (body if isinstance(body, bytes) else body.read_bytes()))
    needs = {**application.needs(), "content": content.hexdigest()[:12]}
    start: dict[str, archives.Content] = {
        "__main__.py": Path(application.__file__),
        application.NEEDS: json.dumps(needs).encode(),
    }
    archives.write_application(target, {**files, **start})


def _modules() -> Iterator[tuple[str, Path]]:
    """Yield the files of our packages, and of those that requirements.lock has for the extra `kubectl`."""
    for package in map(ROOT.joinpath, OWN):
        for path in package.rglob("*"):
            if path.is_file() and not LEFT_OUT.intersection(path.parts):
                yield str(path.relative_to(package.parent)), path
    pins = run([sys.executable, ROOT / "images" / "requirements.py", "kubectl"])
    for name in re.findall(r"^([\w.-]+)==", pins, re.MULTILINE):
        try:
            files = metadata.distribution(name).files or ()
        except metadata.PackageNotFoundError:
            continue  # the lock has it for another platform
        for file in files:
            if ".." not in file.parts and not LEFT_OUT.intersection(file.parts):
                yield str(file), Path(str(file.locate()))
