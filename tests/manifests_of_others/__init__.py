"""Manifests in the form of other systems' documents, and Berth's answer to each.

Each folder has one system's manifests, one per file. `answers.yaml` has the answers by the file's name:

* `refused`: why the pod is not placed; or
* `gets`: the request in plain amounts, with `model`, `cards`, `topology`, `together` if the pod chooses them, and
  `gang`. `sees` has the numbers of the cards that each container sees, counted from 0;
* `notes`: which fields have no effect, and which have one.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from berth_api import resources

Raw = dict[str, Any]

FOLDER: Final = Path(__file__).parent
ANSWERS: Final = "answers.yaml"
_WITH_TEMPLATE: Final = ("Deployment", "Job", "StatefulSet", "DaemonSet")


def files() -> list[Path]:
    """Return the manifests in the order of their names."""
    return sorted(file for file in FOLDER.glob("*/*.yaml") if file.name != ANSWERS)


def name(file: Path) -> str:
    """Return the name of a manifest in tests: `system/file`."""
    return f"{file.parent.name}/{file.stem}"


def answer(file: Path) -> Raw:
    """Return what Berth answers to a manifest."""
    return answers(file.parent)[file.stem]


@cache
def answers(folder: Path) -> Mapping[str, Raw]:
    """Return the answers to the manifests of a folder."""
    read: Mapping[str, Raw] = yaml.safe_load((folder / ANSWERS).read_text())
    return read


def documents(file: Path) -> list[Raw]:
    """Return the objects of a manifest."""
    return list(yaml.safe_load_all(file.read_text()))


def pod(file: Path) -> Raw:
    """Return the pod of a manifest, or that of its template, as the API server completes it."""
    [pod] = (each for each in map(_pod, documents(file)) if each is not None)
    return pod


def parts(file: Path) -> tuple[Raw, Mapping[str, str], Mapping[str, str]]:
    """Return spec, annotations and labels of that pod."""
    made = pod(file)
    return made["spec"], made["metadata"].get("annotations", {}), made["metadata"].get("labels", {})


def _pod(document: Raw) -> Raw | None:
    template = document["spec"]["template"] if document["kind"] in _WITH_TEMPLATE else document
    if document["kind"] not in ("Pod", *_WITH_TEMPLATE):
        return None
    metadata = {"namespace": "default", "name": document["metadata"]["name"], "uid": "", **template.get("metadata", {})}
    return {"metadata": metadata, "spec": resources.from_limits(template["spec"])}
