"""The shipped admission policies under other names, for the pods and accounts of one arena."""

from pathlib import Path
from typing import Any

import yaml

from devcluster import Arena

BASE = Path(__file__).parent.parent / "manifests/base"


def policies(file: str, arena: Arena) -> list[dict[str, Any]]:
    """Return the objects of a file of manifests/base, confined to the arena's scheduler name and namespace."""
    text = (BASE / file).read_text()
    for shipped, own in (
        ("system:serviceaccount:berth-system:", f"system:serviceaccount:{arena.namespace}:"),
        ('"berth-scheduler"', f'"{arena.scheduler_name}"'),
        ("berth-node-lease", arena.namespace),
    ):
        text = text.replace(shipped, own)
    return [_renamed(each, arena.id) for each in yaml.safe_load_all(text)]


def _renamed(document: dict[str, Any], suffix: str) -> dict[str, Any]:
    document["metadata"]["name"] += f"-{suffix}"
    if "policyName" in document["spec"]:
        document["spec"]["policyName"] += f"-{suffix}"
    return document
