"""The shipped admission policies under other names, for the pods and accounts of one arena."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from devcluster import Arena
from devcluster.building import programs
from devcluster.control_plane.manifests import documents

MANIFESTS = Path(__file__).parents[2] / "manifests"
BASE = MANIFESTS / "base"
ABOUT_PODS = r"(MutatingAdmissionPolicy|ValidatingAdmissionPolicy(Binding)?/berth-(unscheduled|injection))"
ALSO_CONFINED = ("berth-injection",)
"""Parameters of policies that are policies, too."""
AGENTS = "berth-agents"
"""The policy that limits agents, and its binding."""


def built(
    folder: Path,
    *components: str,
    patches: Sequence[Any] = (),
    images: Sequence[Any] = (),
    manifests: Path = MANIFESTS,
    base: Path | None = None,
) -> list[dict[str, Any]]:
    """Return what kubectl makes of the base of some manifests, components, patches and names of images.

    The file `base` is used in place of the base. It writes to the folder.
    """
    # kustomize accepts no absolute path, and no file of another folder.
    resource = os.path.relpath(manifests / "base", folder)
    if base is not None:
        resource = "base.yaml"
        shutil.copyfile(base, folder / resource)
    body = {
        "resources": [resource],
        "components": [os.path.relpath(manifests / "components" / each, folder) for each in components],
        "patches": list(patches),
        "images": list(images),
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(body))
    command: list[str | Path] = [programs.ensure(["kubectl"])["kubectl"], "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return documents(done.stdout)


def about_pods(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the policies that change or refuse new pods for the sake of a scheduler, with their bindings."""
    return [each for each in documents if re.match(ABOUT_PODS, f"{each['kind']}/{each['metadata']['name']}")]


def policies(file: str, arena: Arena, variables: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Return the objects of a file of manifests/base, limited to the arena's scheduler name and namespace.

    This does not limit Nodes, Devices and other objects without a namespace. `variables` replace expressions by name.
    """
    objects = confined(yaml.safe_load_all((BASE / file).read_text()), arena)
    for variable in (variable for each in objects for variable in each["spec"].get("variables", ())):
        variable["expression"] = (variables or {}).get(variable["name"], variable["expression"])
    return objects


@contextmanager
def enforced(file: str, arena: Arena) -> Iterator[None]:
    """Apply a file of policies for the duration of the context, without waiting for them."""
    applied = arena.apply(policies(file, arena))
    try:
        yield
    finally:
        for document in applied:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))


def confined(
    policies: Iterable[dict[str, Any]], arena: Arena, default_scheduler: str = "default-scheduler"
) -> list[dict[str, Any]]:
    """Return shipped policies and their bindings, limited to the arena's scheduler name and namespace.

    `default_scheduler` takes the place of the cluster's kube-scheduler.
    """
    text = json.dumps(list(policies))
    for shipped, own in (
        ("system:serviceaccount:berth-system:", f"system:serviceaccount:{arena.namespace}:"),
        ("system:serviceaccount:berth-agent-system:", f"system:serviceaccount:{arena.namespace}:"),
        (r"\"berth-scheduler\"", rf"\"{arena.scheduler_name}\""),
        (r"\"default-scheduler\"", rf"\"{default_scheduler}\""),
        ("berth-node-lease", arena.namespace),
    ):
        text = text.replace(shipped, own)
    return [_confined(each, arena) for each in json.loads(text)]


def _confined(document: dict[str, Any], arena: Arena) -> dict[str, Any]:
    namespaces = [arena.namespace]
    if document["metadata"]["name"] == AGENTS:
        # It limits the arena's agents alone, and Events on Nodes are in this namespace.
        namespaces.append("default")
    document["metadata"]["name"] += f"-{arena.id}"
    if "policyName" in document["spec"]:
        document["spec"]["policyName"] += f"-{arena.id}"
        if (parameter := document["spec"].get("paramRef", {})).get("name", "") in ALSO_CONFINED:
            parameter["name"] += f"-{arena.id}"
        matched = document["spec"].setdefault("matchResources", {}).setdefault("namespaceSelector", {})
        named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}
        matched["matchExpressions"] = [*matched.get("matchExpressions", ()), named]
    return document
