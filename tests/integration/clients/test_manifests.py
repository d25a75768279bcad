"""The shipped manifests: the API server accepts them, and they grant what is needed and no more."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api.words import TABLE
from berth_client.client import APPLY
from berth_client.errors import ApiError
from berth_operator.clients import kube
from devcluster import Arena
from tests.integration.clients.conftest import manifests

BASE = Path(__file__).parents[3] / "manifests/base"
DEBUG_API = "../components/debug-api/rbac.yaml"
LIST_WATCH_API = "../components/list-watch-api/rbac.yaml"
EVICTIONS = ("../components/evictions/rbac.yaml", "../components/defragmentation/rbac.yaml")
FILES: list[str] = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]


def test_every_file_is_listed() -> None:
    assert {path.name for path in BASE.glob("*.yaml")} == {*FILES, "kustomization.yaml"}


async def test_the_api_server_accepts_every_manifest(admin: kube.KubeClient, arena: Arena) -> None:
    api = arena.cluster.api
    arena.apply(manifests("namespace.yaml"))  # the others need them; nothing else is actually created
    for document in [document for name in [*FILES, DEBUG_API] for document in manifests(name)]:
        body = await admin.request(
            "PATCH",
            api.path_of(document),
            params={"fieldManager": "test", "force": "true", "dryRun": "All", "fieldValidation": "Strict"},
            body=document,
            content_type=APPLY,
        )
        assert body["kind"] == document["kind"]


ALLOWED = {
    "operator-rbac.yaml": [
        ("watch", "", "pods", ""),
        ("watch", "", "nodes", ""),
        ("watch", "", "services", ""),
        ("list", "berth.dev", "devices", ""),
        *[("watch", kind.group, "podgroups", "") for kind in TABLE.pod_groups],
        *[
            ("watch", "resource.k8s.io", each, "")
            for each in ("deviceclasses", "resourceclaims", "resourceslices", "devicetaintrules")
        ],
        ("patch", "scheduling.x-k8s.io", "podgroups", "status"),
        ("patch", "scheduling.k8s.io", "podgroups", "status"),
        ("watch", "policy", "poddisruptionbudgets", ""),
        ("watch", "", "limitranges", ""),
        ("watch", "", "resourcequotas", ""),
        ("watch", "scheduling.k8s.io", "priorityclasses", ""),
        ("create", "", "pods", "binding"),
        ("delete", "", "pods", ""),
        ("patch", "", "pods", "status"),
        ("patch", "", "nodes", ""),
        ("patch", "", "nodes", "status"),
        ("patch", "berth.dev", "devices", "status"),
        ("patch", "", "pods", ""),
        ("watch", "berth.dev", "gpupods", ""),
        ("patch", "berth.dev", "gpupods", "status"),
        ("create", "events.k8s.io", "events", ""),
        ("patch", "", "persistentvolumeclaims", ""),
        ("patch", "", "persistentvolumes", ""),
        *[("watch", "", each, "") for each in ("persistentvolumeclaims", "persistentvolumes")],
        *[
            ("watch", "storage.k8s.io", each, "")
            for each in ("storageclasses", "csinodes", "csidrivers", "csistoragecapacities", "volumeattachments")
        ],
    ],
    "agent-rbac.yaml": [
        ("list", "", "nodes", ""),
        ("create", "berth.dev", "devices", ""),
        ("watch", "berth.dev", "devices", ""),
        ("patch", "berth.dev", "devices", "status"),
    ],
    **{file: [("create", "", "pods", "eviction")] for file in EVICTIONS},
    LIST_WATCH_API: [
        ("list", "berth.dev", "devices", ""),
        ("watch", "berth.dev", "devices", ""),
        ("list", "berth.dev", "gpupods", ""),
        ("watch", "berth.dev", "gpupods", ""),
    ],
}
DENIED = [
    ("create", "", "pods", ""),
    ("create", "", "pods", "eviction"),
    ("patch", "", "pods", ""),
    ("patch", "scheduling.x-k8s.io", "podgroups", ""),
    ("deletecollection", "", "pods", ""),
    ("create", "", "bindings", ""),
    ("get", "", "secrets", ""),
    ("delete", "", "nodes", ""),
    ("delete", "", "persistentvolumes", ""),
    ("update", "coordination.k8s.io", "leases", ""),
    ("patch", "apiregistration.k8s.io", "apiservices", ""),
    ("delete", "berth.dev", "devices", ""),
    ("impersonate", "", "users", ""),
]


@pytest.mark.parametrize("file", ALLOWED)
async def test_the_roles_grant_what_is_needed_and_no_more(admin: kube.KubeClient, arena: Arena, file: str) -> None:
    role = next(document for document in manifests(file) if document["kind"] == "ClusterRole")
    role["metadata"] = {"name": f"{arena.id}-role"}
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    await admin.request("POST", path, body=role)
    try:
        arena.service_account("reviewed", role["metadata"]["name"])
        denied = [rule for rule in DENIED if rule not in ALLOWED[file]]
        answers = {rule: await may(admin, arena, rule) for rule in [*ALLOWED[file], *denied]}
    finally:
        await admin.request("DELETE", f"{path}/{role['metadata']['name']}")
    assert [rule for rule, allowed in answers.items() if allowed] == ALLOWED[file]


async def may(admin: kube.KubeClient, arena: Arena, rule: tuple[str, str, str, str]) -> bool:
    verb, group, resource, subresource = rule
    review = {
        "spec": {
            "user": f"system:serviceaccount:{arena.namespace}:reviewed",
            "resourceAttributes": {
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
            },
        }
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    answer = await admin.request("POST", path, body=review)
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize(("name", "file"), [("debug-api", "operator.yaml"), ("device-plugin", "agent.yaml")])
def test_what_a_component_patches_is_there(name: str, file: str) -> None:
    component = yaml.safe_load((BASE / f"../components/{name}/kustomization.yaml").read_text())
    [patch] = component["patches"]
    target = patch["target"]
    [patched] = [each for each in manifests(file) if each["kind"] == target["kind"]]
    assert (target["name"], target["namespace"]) == (patched["metadata"]["name"], patched["metadata"]["namespace"])
    for operation in yaml.safe_load(patch["patch"]):
        assert operation["op"] == "add"
        *outer, last = operation["path"].strip("/").split("/")
        element: Any = patched
        for part in outer:
            element = element[int(part)] if part.isdecimal() else element[part]
        # A patch that repeats what the base already has is outdated.
        assert (operation["value"] if last == "-" else last) not in element
        assert isinstance(element, list if last == "-" else dict)


FILES_WITH_PODS = [
    *("operator.yaml", "agent.yaml"),
    *("../components/validation/server.yaml", "../components/list-watch-api/server.yaml"),
]


@pytest.mark.parametrize("file", FILES_WITH_PODS)
def test_a_service_sets_no_variable_of_a_program(file: str) -> None:
    """With links, the Service berth-webhook would set BERTH_WEBHOOK_PORT, a setting, to tcp://10.0.0.1:443."""
    [spec] = [each["spec"]["template"]["spec"] for each in manifests(file) if "template" in each.get("spec", {})]
    assert spec["enableServiceLinks"] is False


def test_the_operator_writes_the_term_of_its_leader_and_no_lease() -> None:
    roles = [each for each in manifests("operator-rbac.yaml") if each["kind"] == "Role"]
    [elects, beats] = [role["rules"] for role in roles]
    assert elects == [
        {"apiGroups": ["berth.dev"], "resources": ["leaderleases"], "verbs": ["create"]},
        {
            "apiGroups": ["berth.dev"],
            "resources": ["leaderleases"],
            "resourceNames": ["berth-operator"],
            "verbs": ["get", "update", "watch"],
        },
    ]
    assert beats == [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["list", "watch"]}]


def test_the_operator_waits_for_the_fence_that_ships_with_it() -> None:
    [deployment] = [each for each in manifests("operator.yaml") if each["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert "--require-fence" in container["args"]


async def test_the_leader_may_write_the_endpoints_of_the_extender_and_no_others(arena: Arena) -> None:
    for document in manifests("../components/extender/rbac.yaml"):
        document["metadata"]["namespace"] = arena.namespace
        for subject in document.get("subjects", ()):
            subject["namespace"] = arena.namespace
        arena.apply(document)
    leader = await kube.KubeClient.connect(arena.service_account("berth-operator", "system:discovery"), "berth-test")
    try:
        for address in ("10.0.0.1", "10.0.0.2"):
            await leader.apply(*endpoints(arena, "berth-extender", address), "berth-operator", force=True)
        [written] = arena.list("endpointslices")
        assert written["endpoints"][0]["addresses"] == ["10.0.0.2"]
        with pytest.raises(ApiError, match=r'endpointslices\.discovery\.k8s\.io "another" is forbidden'):
            await leader.apply(*endpoints(arena, "another", "10.0.0.1"), "berth-operator", force=True)
    finally:
        leader.close()


def endpoints(arena: Arena, name: str, address: str) -> tuple[str, dict[str, Any]]:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{arena.namespace}/endpointslices/{name}"
    return path, {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": arena.namespace, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": 10262}],
        "endpoints": [{"addresses": [address]}],
    }
