"""The previous version: a commit of this repository, whose programs run next to ours and read what ours write.

Its files are unpacked once into `.build`. It runs in this version's virtual environment, so its dependencies must be
installed there.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from devcluster.building import images

COMMIT: Final = "a3ab4027a902f74b05267eaf24d02e0bcfc12938"
"""The last commit of the version before. With a new version, change it here and run `make upgrade-e2e RECORD=1`."""
REQUIRED: Final = "BERTH_REQUIRE_HISTORY"
"""Set where a clone without history is a mistake."""

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("api", "base", "client", "operator", "agent")
PARTS: Final = (*PACKAGES, "crds", "manifests")
TAG: Final = f"before-{COMMIT[:12]}"
"""Tag of that version's images."""


def environment(commit: str = COMMIT) -> Mapping[str, str]:
    """Return the variables with which Python runs the programs of that version, or of another commit."""
    path = os.pathsep.join(str(unpacked(commit) / package) for package in PACKAGES)
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def unpacked(commit: str = COMMIT) -> Path:
    """Return the folder with that version's files; skip the test if this clone does not have the commit."""
    folder = _folder(commit)
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _unpack(commit, folder)
    return folder


def _folder(commit: str) -> Path:
    return ROOT / ".build" / f"previous-{commit[:12]}"


def _unpack(commit: str, folder: Path) -> None:
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        reason = f"this clone has no commit {commit[:12]}, the version before; `git fetch --unshallow` brings it"
        pytest.fail(f"{reason}; {REQUIRED} is set") if os.environ.get(REQUIRED) else pytest.skip(reason)
    archive = subprocess.run(["git", "archive", commit, *PARTS], cwd=ROOT, capture_output=True, check=True)
    draft = folder.with_suffix(".draft")
    draft.mkdir(exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(draft)], input=archive.stdout, check=True)
    draft.rename(folder)


def image_archives() -> list[Path]:
    """Return the OCI archives of that version's images: its programs, in images built as ours are."""
    context = _folder(COMMIT).with_suffix(".images")
    shutil.copytree(unpacked(), context, dirs_exist_ok=True)
    for file in (*images.BUILT_BY, *(f"images/{side}.Dockerfile" for side in images.IMAGES.values())):
        (context / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / file, context / file)
    return [images.archive(image, context=context, tag=TAG) for image in images.IMAGES]
