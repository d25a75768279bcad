"""The files of a release, which `make release` has written to the folder that BERTH_RELEASE names."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from devcluster.building import images, oci

FOLDER: Final = os.environ.get("BERTH_RELEASE", "")
CHART: Final = "berth-[0-9]*.tgz"
MANIFEST: Final = "berth-[0-9]*.yaml"
DEFINITIONS: Final = "berth-crds-*.yaml"
PACKAGES: Final = "opt/berth/lib/python{}.{}/site-packages".format(*images.PYTHON)
"""Where an image has its Python packages."""


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


def environment(name: str, target: Path) -> Mapping[str, str]:
    """Return the variables with which Python runs the program and the packages of an image, unpacked to a folder."""
    oci.unpack(file(f"{name}-*.tar"), target, below=PACKAGES)
    assert (target / name.replace("-", "_")).is_dir()  # otherwise, Python would run this tree's program
    return {"PYTHONPATH": str(target), "PYTHONSAFEPATH": "1"}


def fence(target: Path) -> Path:
    """Write the fence in the release's manifest to a file; return the file."""
    objects = yaml.safe_load_all(file(MANIFEST).read_text())
    target.write_text(yaml.safe_dump_all(obj for obj in objects if obj["metadata"]["name"].startswith("berth-fence-")))
    return target
