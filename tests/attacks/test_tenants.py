"""A tenant with the role `edit` gains nothing by alternative spellings under the shipped policies."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest

from devcluster import Arena, waiting
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.attacks.accounts import ACTIVE_SECONDS
from tests.programs import policies

FILES: Final = (
    "injection.yaml",
    "words.yaml",
    "../components/isolation/policy.yaml",
    "../components/isolation/validation.yaml",
    "../components/kueue/policy.yaml",
)
GPU, CORES, MEMORY = "nvidia.com/gpu", "nvidia.com/gpucores", "nvidia.com/gpumem"
DENY: Final = "berth.dev/unlimited-shares"
KUEUE: Final = "kueue-managed"
ISOLATED: Final = {"annotations": {"berth.dev/isolation": "mps"}}
"""So that nothing but a quota refuses a share."""


@pytest.fixture(scope="module")
def tenant(arena: Arena) -> Iterator[Api]:
    """Apply the policies, a quota, and the label of the namespace; return the client of a tenant."""
    applied = arena.apply([each for file in FILES for each in policies.policies(file, arena)])
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "tenant"}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-edit"}
    account = {"kind": "ServiceAccount", "name": "tenant", "namespace": arena.namespace}
    hard = {f"requests.{name}": "1000" for name in (GPU, MEMORY)}
    arena.apply(
        [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tenant"}},
            {**binding, "subjects": [account], "roleRef": role},
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "cards"}, "spec": {"hard": hard}},
        ]
    )
    waiting.until(
        lambda: arena.get("resourcequotas", "cards").get("status", {}).get("hard"),
        deadline=ACTIVE_SECONDS,
        what="the quota",
    )
    label(arena, DENY, "deny")
    token = arena.cluster.api.post(f"/api/v1/namespaces/{arena.namespace}/serviceaccounts/tenant/token", {"spec": {}})[
        "status"
    ]["token"]
    client = Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())
    # Each by its own words: the API server loads the policies one by one, and another may refuse the pod before.
    for row in ROWS.values():
        waiting.until(partial(is_refused, arena, client, row), deadline=ACTIVE_SECONDS, what=f"the policies: {row[-1]}")
    yield client
    client.close()
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


def label(arena: Arena, name: str, value: str | None) -> None:
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {name: value}}})


Row = tuple[dict[str, str], dict[str, Any], str]
"""Limits of a container, more fields of the pod, and what the refusal says."""
ROWS: Final[dict[str, Row]] = {
    "the units of a node": ({"berth.dev/mps": "400"}, {"scheduler_name": "other"}, "Berth does not place the pod"),
    "the units of a node, without a scheduler": (
        {"berth.dev/hami-core": "400"},
        {"scheduler_name": "other", "nodeName": "node"},
        "Berth does not place the pod",
    ),
    "two cards of which a quota counts none": (
        {GPU: "2", CORES: "100"},
        ISOLATED,
        "counts nvidia.com/gpu, but Berth reads it as",
    ),
    "memory of which a quota counts half": (
        {GPU: "2", MEMORY: "400"},
        ISOLATED,
        "ResourceQuota cards counts",
    ),
    "memory by Berth's name of two cards": (
        {"kubernetes.io/gpu.shared": "2", MEMORY: "400"},
        ISOLATED,
        "ResourceQuota cards counts",
    ),
    "all memory as none": ({MEMORY: "0"}, ISOLATED, "counts nvidia.com/gpumem: 0 as nothing"),
    "a share without a limit": ({"kubernetes.io/gpu": "50"}, {}, "is refused in this namespace"),
    "a share of the device plugin": ({"nvidia.com/gpu.shared": "1"}, {}, "is refused in this namespace"),
    "a share of another scheduler": (
        {"nvidia.com/gpu.shared": "1"},
        {"scheduler_name": "other"},
        "is refused in this namespace",
    ),
}


def refusal(arena: Arena, client: Api, row: Row) -> str:
    limits, fields, _ = row
    main = {"name": "main", "image": "none", "resources": {"limits": limits}}
    pod = arena.pod(containers=[main], automountServiceAccountToken=False, **fields)
    try:
        client.request("POST", f"/api/v1/namespaces/{arena.namespace}/pods", body=pod, query={"dryRun": "All"})
    except ApiError as error:
        return str(error)
    return ""


def is_refused(arena: Arena, client: Api, row: Row) -> bool:
    return row[-1] in refusal(arena, client, row)


@pytest.mark.parametrize("what", ROWS)
def test_another_spelling_takes_nothing(arena: Arena, tenant: Api, what: str) -> None:
    assert is_refused(arena, tenant, ROWS[what])


def test_what_is_counted_and_limited_is_accepted(arena: Arena, tenant: Api) -> None:
    for limits in ({GPU: "2"}, {MEMORY: "400"}, {"kubernetes.io/gpu": "100"}):
        assert refusal(arena, tenant, (limits, ISOLATED, "")) == ""


def test_the_pods_of_a_replication_controller_do_not_pass_by_kueue(arena: Arena, tenant: Api) -> None:
    label(arena, KUEUE, "true")
    template = {"metadata": {"labels": {"app": "rc"}}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    head: Manifest = {"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "rc"}}
    body = {**head, "spec": {"replicas": 1, "selector": {"app": "rc"}, "template": template}}
    try:
        waiting.until(
            lambda: "Kueue does not hold this pod" in refusal(arena, tenant, ({}, {}, "")),
            deadline=ACTIVE_SECONDS,
            what="the namespace to be Kueue's",
        )
        tenant.post(f"/api/v1/namespaces/{arena.namespace}/replicationcontrollers", body)
        [condition] = waiting.until(
            lambda: arena.get("replicationcontrollers", "rc").get("status", {}).get("conditions"),
            deadline=ACTIVE_SECONDS,
            what="the refusal of its pod",
        )
        assert "Kueue does not hold this pod" in condition["message"]
    finally:
        arena.delete("replicationcontrollers", "rc")
        label(arena, KUEUE, None)
