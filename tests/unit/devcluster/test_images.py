"""The images contain what their programs need, and are built again when one of their files has changed."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest

from devcluster.building import images

ROOT = Path(__file__).parents[3]
LOCK = """\
aiohttp==3.1 \\
    --hash=sha256:01
    # via
    #   berth-operator (pyproject.toml)
    #   kopf
cffi==2.1 ; platform_python_implementation != 'PyPy' \\
    --hash=sha256:02 \\
    --hash=sha256:03
    # via cryptography
cryptography==45.0 \\
    --hash=sha256:04
    # via berth-operator (pyproject.toml)
grpcio==1.85 \\
    --hash=sha256:05
    # via berth-operator (pyproject.toml)
hatchling==1.27 \\
    --hash=sha256:06
    # via berth-operator (pyproject.toml)
idna==3.2 \\
    --hash=sha256:07
    # via yarl
pyyaml==6.0 \\
    --hash=sha256:08
    # via berth-operator (pyproject.toml)
yarl==1.25 \\
    --hash=sha256:09
    # via aiohttp
"""
PROJECT = {
    "build-system": {"requires": ["hatchling>=1.27"]},
    "project": {
        "dependencies": ["PyYAML>=6.0"],
        "optional-dependencies": {"operator": ["aiohttp>=3", "cryptography>=45"], "agent": ["grpcio[x]>=1.8"]},
    },
}
SELECTED = {
    "build": ["hatchling==1.27"],
    "operator": ["aiohttp==3.1", "cffi==2.1", "cryptography==45.0", "idna==3.2", "pyyaml==6.0", "yarl==1.25"],
    "agent": ["grpcio==1.85", "pyyaml==6.0"],
}


@pytest.mark.parametrize(("extra", "expected"), SELECTED.items())
def test_packages_of_an_extra(extra: str, expected: list[str]) -> None:
    requirements = runpy.run_path(str(ROOT / "images/requirements.py"))

    text = requirements["selected"](PROJECT, LOCK, extra)

    assert re.findall(r"^\S+==\S+", text, re.MULTILINE) == expected
    assert text.count("--hash") == sum(LOCK.partition(pin)[2].partition("#")[0].count("--hash") for pin in expected)


@pytest.mark.parametrize(("image", "side"), images.IMAGES.items())
def test_image_is_made_of_the_packages_of_its_side(image: str, side: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {Path(package).parts[0] for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    others = {*images.IMAGES.values(), "kubectl"} - {side}
    dockerfile = (ROOT / f"images/{side}.Dockerfile").read_text()

    copied = set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.MULTILINE))

    assert copied == packages - others
    assert {path.relative_to(ROOT).parts[0] for path in images.inputs(image)} >= copied
    assert f'ENTRYPOINT ["{image}"]' in dockerfile
