"""A tenant who may write its ResourceClaims cannot change which account seems to have allocated them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth_operator.core.claims.objects import status
from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.programs import policies

POLICY: Final = Path(__file__).parents[2] / "manifests/components/claims/writers.yaml"
OURS: Final = "berth-operator/7"
THEIRS: Final = "kube-scheduler"
MERGE: Final = "application/merge-patch+json"
RESULT: Final = {"driver": "gpu.example.com", "pool": "p", "device": "d", "request": "gpu"}
SPEC: Final = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]}}
FORGED: Final = {
    "manager": THEIRS,
    "operation": "Update",
    "apiVersion": "resource.k8s.io/v1",
    "time": "2099-01-01T00:00:00Z",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:status": {"f:allocation": {"f:none": {}}}},
}
KEPT_MANAGERS: Final = 10
"""So many managers of updates the API server keeps apart."""


@pytest.fixture(scope="module")
def path(arena: Arena) -> str:
    """Return the path of an arena's claims."""
    return f"/apis/resource.k8s.io/v1/namespaces/{arena.namespace}/resourceclaims"


@pytest.fixture(scope="module")
def tenant(arena: Arena, path: str) -> Iterator[Api]:
    """Return a client that may write claims and not their status, with the policy in force."""
    name = f"claims-{arena.id}"
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": arena.labels},
        "rules": [
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create", "update", "patch"]}
        ],
    }
    applied = arena.apply([role, *policies.confined(yaml.safe_load_all(POLICY.read_text()), arena)])
    user = yaml.safe_load(arena.service_account("tenant", name).read_text())["users"][0]["user"]
    client = Api(server=arena.cluster.server, token=user["token"], ca=arena.cluster.ca_file.read_text())
    probe = allocated(arena, path, "probe")
    arena.wait(lambda: "must not change" in refusal(client, path, "probe", [entry(probe, THEIRS)]), what="the policy")
    yield client
    client.close()
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


def allocated(arena: Arena, path: str, name: str) -> Manifest:
    """Return a claim that the operator allocated."""
    api = arena.cluster.api
    pod = arena.create([arena.pod(f"of-{name}")])[0]["metadata"]
    claim = api.post(path, {"metadata": {"name": name}, "spec": SPEC})
    reserved = [{"resource": "pods", "name": pod["name"], "uid": pod["uid"]}]
    shown = {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": reserved}
    body = {**claim, "status": shown}
    return api.request("PUT", f"{path}/{name}/status", body=body, query={"fieldManager": OURS})


def entry(claim: Manifest, manager: str) -> Manifest:
    """Return the entry of the allocation with another manager."""
    [own] = [each for each in claim["metadata"]["managedFields"] if each.get("subresource") == "status"]
    return {**own, "manager": manager}


def refusal(client: Api, path: str, name: str, entries: object) -> str:
    """Return why other managedFields are refused; empty if a dry run accepts them."""
    body = {"metadata": {"managedFields": entries}}
    try:
        client.request("PATCH", f"{path}/{name}", body=body, query={"dryRun": "All"}, content_type=MERGE)
    except ApiError as error:
        return str(error)
    return ""


def writers(claim: Mapping[str, Any]) -> frozenset[str]:
    """Return who wrote the allocation, as the operator reads it."""
    return status.read(status.with_writers({**claim, "metadata": dict(claim["metadata"])})).writers


def test_managed_fields_of_an_allocation_are_not_changed_by_writes_of_the_claim(
    arena: Arena, tenant: Api, path: str
) -> None:
    claim = allocated(arena, path, "c")
    own, entries = entry(claim, OURS), claim["metadata"]["managedFields"]
    sentence = f"who wrote status.allocation (before: {OURS}; after: {THEIRS})"
    assert sentence in refusal(tenant, path, "c", [entry(claim, THEIRS)])
    assert "(before: berth-operator/7; after: )" in refusal(tenant, path, "c", [{}])
    assert "must not change" in refusal(tenant, path, "c", [*entries, FORGED])
    assert "must not change" in refusal(tenant, path, "c", [each for each in entries if each != own])
    replaced = {**claim, "metadata": {**claim["metadata"], "managedFields": [entry(claim, THEIRS)]}}
    with pytest.raises(ApiError, match="must not change"):
        tenant.request("PUT", f"{path}/c", body=replaced)


def test_a_forged_entry_is_not_written_before_an_allocation(tenant: Api, arena: Arena, path: str) -> None:
    arena.cluster.api.post(path, {"metadata": {"name": "free"}, "spec": SPEC})
    assert "must not change" in refusal(tenant, path, "free", [FORGED])
    body = {"metadata": {"name": "new", "managedFields": [FORGED]}, "spec": SPEC}
    with pytest.raises(ApiError, match="must not change"):
        tenant.request("POST", path, body=body, query={"dryRun": "All"})


def test_other_writes_of_an_allocated_claim_pass_until_its_writer_would_be_forgotten(
    arena: Arena, tenant: Api, path: str
) -> None:
    claim = allocated(arena, path, "plain")
    metadata = {"name": "plain", "annotations": {"a": "b"}}
    assert writers(tenant.request("PUT", f"{path}/plain", body={**claim, "metadata": metadata})) == {OURS}

    def annotate(number: int) -> Manifest:
        body = {"metadata": {"annotations": {f"a{number}": "b"}}}
        query = {"fieldManager": f"tool-{number}"}
        written: Manifest = tenant.request("PATCH", f"{path}/plain", body=body, query=query, content_type=MERGE)
        return written

    for number in range(KEPT_MANAGERS - 2):
        assert writers(annotate(number)) == {OURS}
    # The API server counts the oldest managers as one, and so would forget who wrote the allocation.
    with pytest.raises(ApiError, match="must not change"):
        [annotate(KEPT_MANAGERS + number) for number in range(3)]
