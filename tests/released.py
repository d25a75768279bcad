"""The files of a release, which `make release` has written to the folder that BERTH_RELEASE names."""

import os
import re
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = os.environ.get("BERTH_RELEASE", "")
CHART: Final = "berth-[0-9]*.tgz"
MANIFEST: Final = "berth-[0-9]*.yaml"
DEFINITIONS: Final = "berth-crds-*.yaml"


def folder() -> Path:
    """Return the folder; skip the test if there is none."""
    if not FOLDER:
        pytest.skip("a release takes minutes: run `make install-e2e`, `make upgrade-e2e` or `make release-check`")
    return Path(FOLDER).resolve()


def file(pattern: str) -> Path:
    """Return the one file with such a name."""
    [path] = folder().glob(pattern)
    return path


def image(name: str) -> str:
    """Return the reference of an image of the release, by its digest."""
    [reference] = set(re.findall(rf"image: (\S+/{name}@\S+)", file(MANIFEST).read_text()))
    return str(reference)
