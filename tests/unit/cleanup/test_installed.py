"""A cleanup removes what the manifests install, and its Job has rights for exactly that."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from berth_operator.apis.visibility.kinds import API_SERVICE
from berth_operator.commands.cleanup import installed
from berth_operator.commands.cleanup.installed import Item

ROOT = Path(__file__).parents[3]
NAMESPACE = "berth-system"
AGENTS = "berth-agent-system"
CALLERS = {"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
PROGRAMS = {"Deployment", "DaemonSet"}
ADMISSION = "admissionregistration.k8s.io/v1"


def shipped(*folders: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of the manifests, without patches and what is for other programs."""
    for folder in folders:
        for file in (ROOT / folder).rglob("*.yaml"):
            if file.name != "kustomization.yaml":
                yield from filter(None, yaml.safe_load_all(file.read_text()))


def named(items: tuple[Item, ...]) -> set[tuple[str, str]]:
    return {(item.kind, item.name) for item in items}


def of_kinds(kinds: set[str], *folders: str) -> set[tuple[str, str]]:
    return {(obj["kind"], obj["metadata"]["name"]) for obj in shipped(*folders) if obj.get("kind") in kinds}


def test_every_object_that_has_to_go_is_known_and_no_other() -> None:
    folders = ("manifests/base", "manifests/components")
    policies = {obj["kind"] for obj in shipped(*folders) if obj.get("apiVersion") == ADMISSION} - CALLERS
    assert named(installed.callers()) == of_kinds(CALLERS, *folders) | {("APIService", API_SERVICE)}
    assert named(installed.policies()) == of_kinds(policies, *folders)
    assert named(installed.programs(NAMESPACE, AGENTS)) == of_kinds(PROGRAMS, *folders)
    assert named(installed.definitions()) == of_kinds({"CustomResourceDefinition"}, "crds")


def test_no_pod_of_the_cleanup_is_one_that_it_waits_for() -> None:
    programs = {*installed.DEPLOYMENTS, *installed.DAEMON_SETS}
    labels = {
        obj["metadata"]["name"]: obj["spec"]["template"]["metadata"]["labels"][installed.PROGRAM_LABEL]
        for obj in shipped("manifests/base", "manifests/components", "manifests/cleanup")
        if obj.get("kind") in {*PROGRAMS, "Job"}
    }
    assert labels == {"berth-cleanup": "berth-cleanup", **{name: name for name in programs}}


def test_bindings_go_before_policies() -> None:
    kinds = [item.kind for item in installed.policies()]
    for mode in ("Mutating", "Validating"):
        last = max(place for place, kind in enumerate(kinds) if kind == f"{mode}AdmissionPolicyBinding")
        assert last < kinds.index(f"{mode}AdmissionPolicy")


def test_the_job_may_delete_these_objects_and_no_others() -> None:
    allowed: set[str] = set()
    for role in shipped("manifests/cleanup"):
        scope = f"/namespaces/{role['metadata']['namespace']}" if role["kind"] == "Role" else ""
        for rule in role.get("rules", ()):
            if "delete" in rule["verbs"]:
                [group] = rule["apiGroups"]
                allowed |= {
                    f"{group}{scope}/{plural}/{name}" for plural in rule["resources"] for name in rule["resourceNames"]
                }
    items = (
        *installed.callers(),
        *installed.programs(NAMESPACE, AGENTS),
        *installed.policies(),
        *installed.written(NAMESPACE),
    )
    needed = {_without_version(item.path) for item in items}
    assert needed <= allowed
    # A rule for policies names those of bindings, too; no other right is unused.
    assert {right for right in allowed - needed if "admissionpolic" not in right} == set()


def _without_version(path: str) -> str:
    """Return `group/…` of a path `/apis/group/version/…` or `/api/v1/…`."""
    root, *rest = path.strip("/").split("/")
    group, rest = ("", rest[1:]) if root == "api" else (rest[0], rest[2:])
    return "/".join([group, *rest])
