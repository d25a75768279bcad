"""The shipped pods before the Pod Security admission of a real API server, in namespaces with the shipped labels."""

import re
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import Arena
from devcluster.control_plane.api import ApiError, Manifest
from tests.attacks.accounts import MANIFESTS
from tests.programs.policies import built

LABEL = "pod-security.kubernetes.io/enforce"
COMPONENTS = ("device-plugin", "mps", "hami-core-library", "webhook", "list-watch-api", "debug-api", "extender")
DOCUMENTS = [
    document
    for file in ("base", "cleanup")
    for path in (MANIFESTS / file).glob("*.yaml")
    for document in yaml.safe_load_all(path.read_text())
    if "metadata" in document
]


def levels() -> dict[str, str]:
    """Return {namespace: level} as shipped."""
    spaces = [each["metadata"] for each in DOCUMENTS if each["kind"] == "Namespace"]
    return {each["name"]: each["labels"][LABEL] for each in spaces}


@pytest.fixture(scope="module")
def workloads(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """Return every workload of the base and all components that have or change one, and the Job of the cleanup."""
    documents = [*built(tmp_path_factory.mktemp("built"), *COMPONENTS), *DOCUMENTS]
    shipped = {f"{each['kind']}/{each['metadata']['name']}": each for each in reversed(documents)}
    return [each for each in shipped.values() if "template" in each.get("spec", {})]


@pytest.fixture(scope="module")
def enforced(arena: Arena) -> Iterator[dict[str, str]]:
    """Create a namespace for each level and return them by level."""
    spaces = {level: f"{level}-{arena.id}" for level in ("privileged", "baseline", "restricted")}
    for level, name in spaces.items():
        metadata = {"name": name, "labels": {LABEL: level}}
        arena.cluster.api.post("/api/v1/namespaces", {"metadata": metadata})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        arena.wait(partial(arena.cluster.api.exists, account), what="its ServiceAccount")
    yield spaces
    for name in spaces.values():
        arena.cluster.api.delete(f"/api/v1/namespaces/{name}")


def admit(arena: Arena, workload: Manifest, namespace: str) -> str:
    """Return why the API server would refuse a pod of a workload; empty if it would not."""
    spec = {**workload["spec"]["template"]["spec"], "serviceAccountName": "default"}
    pod = {"metadata": {"name": "any"}, "spec": spec}
    try:
        arena.cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body=pod, query={"dryRun": "All"})
    except ApiError as error:
        if error.status == HTTPStatus.FORBIDDEN and "violates PodSecurity" in str(error):
            return str(error)
        raise
    return ""


def test_every_pod_passes_the_level_of_its_namespace(
    arena: Arena, workloads: list[Manifest], enforced: dict[str, str]
) -> None:
    assert levels() == {
        "berth-system": "restricted",
        "berth-agent-system": "privileged",
        "berth-node-lease": "restricted",
    }
    answers = {
        each["metadata"]["name"]: admit(arena, each, enforced[levels()[each["metadata"]["namespace"]]])
        for each in workloads
    }
    expected = {"berth-operator", "berth-webhook", "berth-api", "berth-agent", "berth-mps", "berth-cleanup"}
    assert answers == dict.fromkeys(expected, "")


PRIVILEGES = {
    "host namespaces": "`hostPID`",
    "runAsNonRoot != true": "root",
    "runAsUser=0": "root",
    "restricted volume types": "`hostPath`",
}
"""What the admission names -> how docs/agent.md calls it."""


def test_each_privilege_of_the_agent_has_a_written_reason(
    arena: Arena, workloads: list[Manifest], enforced: dict[str, str]
) -> None:
    [agent] = [each for each in workloads if each["metadata"]["name"] == "berth-agent"]
    refusal = admit(arena, agent, enforced["restricted"])
    violations = re.findall(r"(?:: |, )([a-zA-Z][\w !=]*?) \(", refusal.partition("violates PodSecurity")[2])
    assert set(violations) == PRIVILEGES.keys()
    page = Path(MANIFESTS.parent / "docs/agent.md").read_text()
    table = page.partition("## Privileges")[2].partition("\n## ")[0]
    reasons: dict[str, Any] = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, re.MULTILINE))
    assert [name for name in PRIVILEGES.values() if not any(name in row for row in reasons)] == []
    volumes = [each["hostPath"]["path"] for each in agent["spec"]["template"]["spec"]["volumes"] if "hostPath" in each]
    assert [path for path in volumes if not any(f"`{path}`" in row for row in reasons)] == []
