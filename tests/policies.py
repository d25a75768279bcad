"""The shipped admission policies under other names, for the pods and accounts of one arena."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from devcluster import Arena

BASE = Path(__file__).parent.parent / "manifests/base"


def policies(file: str, arena: Arena, variables: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the objects of a file of manifests/base, limited to the arena's scheduler name and namespace.

    This does not limit Nodes, Devices and other objects without a namespace. `variables` replace expressions by name.
    """
    text = (BASE / file).read_text()
    for shipped, own in (
        ("system:serviceaccount:berth-system:", f"system:serviceaccount:{arena.namespace}:"),
        ('"berth-scheduler"', f'"{arena.scheduler_name}"'),
        ("berth-node-lease", arena.namespace),
    ):
        text = text.replace(shipped, own)
    objects = [_confined(each, arena) for each in yaml.safe_load_all(text)]
    for variable in (variable for each in objects for variable in each["spec"].get("variables", ())):
        variable["expression"] = (variables or {}).get(variable["name"], variable["expression"])
    return objects


def _confined(document: dict[str, Any], arena: Arena) -> dict[str, Any]:
    document["metadata"]["name"] += f"-{arena.id}"
    if "policyName" in document["spec"]:
        document["spec"]["policyName"] += f"-{arena.id}"
        matched = document["spec"].setdefault("matchResources", {}).setdefault("namespaceSelector", {})
        matched["matchLabels"] = {"kubernetes.io/metadata.name": arena.namespace}
    return document
