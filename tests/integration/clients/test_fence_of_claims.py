"""Which writes of ResourceClaims the real API server accepts from the operator's account, and in which term."""

import copy
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from berth_client.errors import ApiError
from berth_operator.binding.prebind import claim_objects
from berth_operator.clients import kube
from berth_operator.core.claims.objects import status
from devcluster import Arena, waiting
from tests.integration.clients.conftest import ACCOUNT, ACTIVE_SECONDS
from tests.integration.clients.test_fence import leases, set_term
from tests.programs import fence

Raw = dict[str, Any]

POLICY = "ValidatingAdmissionPolicy"
ADDED = "example.com/added"
PROTECTED = ("berth.dev/epoch", "scheduling.koordinator.sh/device-allocated")
"""Keys that are listed as added by other admission, and are not accepted."""
RESULT = {"driver": "gpu.example.com", "pool": "p", "device": "d", "request": "gpu"}


@dataclass(kw_only=True)
class Claims:
    """Claims of an arena, and the account whose writes of them are limited."""

    arena: Arena
    client: kube.KubeClient
    made: list[str] = field(default_factory=list)
    documents: list[Raw]
    """The policies and their bindings."""
    allocated: Raw = field(init=False)
    """The status of an allocated claim; Kubernetes deallocates what is reserved for a pod that does not exist."""

    def __post_init__(self) -> None:
        [pod] = self.arena.create([self.arena.pod("p")])
        reference = {"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}
        self.allocated = {"allocation": {"devices": {"results": [RESULT]}}, "reservedFor": [reference]}

    async def create(self, *, protected: bool = True) -> Raw:
        name = f"c{len(self.made)}"
        self.made.append(name)
        exactly = {"deviceClassName": "gpu.example.com"}
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
        collection = claim_objects.path(f"{self.arena.namespace}/{name}").rpartition("/")[0]
        claim = self.arena.cluster.api.post(collection, body)
        own = claim_objects.protected(claim, self.arena.lease_name)
        return await self.put(own, term=0) if own and protected else claim

    async def put(
        self, claim: Raw, *, status: Raw | None = None, term: int, client: kube.KubeClient | None = None
    ) -> Raw:
        """Write a claim, or its status alone."""
        path = claim_objects.path(f"{self.arena.namespace}/{claim['metadata']['name']}")
        params = {"fieldManager": f"{self.arena.lease_name}/{term}"}
        body, end = (claim, "") if status is None else ({**claim, "status": status}, "/status")
        written: Raw = await (client or self.client).request("PUT", path + end, params=params, body=body)
        return written

    async def refusal(
        self, claim: Raw, *, status: Raw | None = None, term: int, client: kube.KubeClient | None = None
    ) -> str:
        """Return why a write is refused; empty if it is accepted."""
        try:
            await self.put(claim, status=status, term=term, client=client)
        except ApiError as error:
            return error.message
        return ""

    async def until_refused(self, why: str, *, term: int, protected: bool = True) -> None:
        """Wait until the API server has loaded a policy, or a term."""

        async def is_refused() -> bool:
            claim = await self.create(protected=protected)
            return why in await self.refusal(claim, status=self.allocated, term=term)

        await waiting.until_async(is_refused, deadline=ACTIVE_SECONDS, what=f"the refusal {why!r}")


@pytest.fixture
async def claims(arena: Arena, admin: kube.KubeClient) -> AsyncIterator[Claims]:
    client = await kube.KubeClient.connect(arena.service_account(ACCOUNT, "cluster-admin"), "berth-test/operator")
    documents = fence.fence(
        namespace=arena.namespace,
        lease=arena.lease_name,
        service_account=ACCOUNT,
        suffix=arena.id,
        file=fence.OF_CLAIMS,
    )
    [limits] = (each for each in documents if each["kind"] == POLICY and "paramKind" not in each["spec"])
    assert limits["spec"]["variables"][0]["name"] == "added"
    limits["spec"]["variables"][0]["expression"] = json.dumps({"resourceclaims": [ADDED, *PROTECTED]})
    own = Claims(arena=arena, client=client, documents=documents)
    try:
        arena.apply(documents)
        await set_term(admin, arena, 7)
        await own.until_refused("is over", term=6)
        await own.until_refused("fenced-by", term=7, protected=False)
        yield own
    finally:
        for document in documents:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))
        client.close()


async def test_only_the_present_term_allocates(claims: Claims, admin: kube.KubeClient) -> None:
    claim = await claims.create()
    ours = claims.arena.lease_name
    expected = f"a write of {ours}/6 is over, the LeaderLease {ours} is in term 7"
    assert expected in await claims.refusal(claim, status=claims.allocated, term=6)
    allocated = await claims.put(claim, status=claims.allocated, term=7)
    await set_term(admin, claims.arena, 8)
    await claims.until_refused("is over", term=7)
    assert "is over" in await claims.refusal(allocated, status={}, term=7)
    deallocated = await claims.put(allocated, status={}, term=8)
    assert "allocation" not in deallocated["status"]


async def test_who_wrote_an_allocation_is_not_changed_by_applying_the_claim_but_by_its_managed_fields(
    claims: Claims, admin: kube.KubeClient
) -> None:
    claim = await claims.put(await claims.create(), status=claims.allocated, term=7)
    ours = frozenset({f"{claims.arena.lease_name}/7"})
    path = claim_objects.path(f"{claims.arena.namespace}/{claim['metadata']['name']}")
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    metadata = {"name": claim["metadata"]["name"], "annotations": {"a": "b"}}
    body = {**kind, "metadata": metadata, "spec": claim["spec"], "status": claims.allocated}
    applied = await admin.apply(path, body, "kube-scheduler", force=True)
    assert status.read(status.with_writers(copy.deepcopy(applied))).writers == ours
    entries = [each for each in applied["metadata"]["managedFields"] if each.get("subresource") == "status"]
    forged = [{**each, "manager": "kube-scheduler"} for each in entries]
    changed = {**applied, "metadata": {**applied["metadata"], "managedFields": forged}}
    written = await admin.request("PUT", path, body=changed)
    # So the operator remembers who wrote an allocation.
    assert status.read(status.with_writers(written)).writers == {"kube-scheduler"}


async def test_no_more_than_allocations_and_reservations_are_written(claims: Claims) -> None:
    claim = await claims.create()
    changes: list[Raw] = [
        {"annotations": {"a": "b"}},
        {"finalizers": ["example.com/f"]},
        {"labels": {"berth.dev/fenced-by": claims.arena.lease_name, "a": "b"}},
        {"labels": {}},
        {"finalizers": []},
    ]
    for metadata in changes:
        other = {**claim, "metadata": {**claim["metadata"], **metadata}}
        assert "the metadata of a ResourceClaim only by" in await claims.refusal(other, term=7), metadata
    allocated = await claims.put(claim, status=claims.allocated, term=7)
    reported = {"devices": [{"driver": "gpu.example.com", "pool": "p", "device": "d", "data": {}}]}
    job = {"apiGroup": "batch", "resource": "jobs", "name": "j", "uid": "uid-j"}
    # The API server itself allows no other allocation in place of one.
    for more in (reported, {"reservedFor": [job]}):
        why = await claims.refusal(allocated, status={**claims.allocated, **more}, term=7)
        assert "a ResourceClaim's status only to" in why
    # As many as the API allows, by one write: their comparison stays within the cost that a policy may have.
    more_pods = [{"resource": "pods", "name": f"q{number}", "uid": f"uid-{number}"} for number in range(255)]
    references = [*claims.allocated["reservedFor"], *more_pods]
    written = await claims.put(allocated, status={**claims.allocated, "reservedFor": references}, term=7)
    assert len(written["status"]["reservedFor"]) == 256


async def test_keys_that_other_admission_adds_are_written_and_not_removed(claims: Claims) -> None:
    claim = await claims.create()
    keys = {ADDED: "1"}
    added = {"labels": {**claim["metadata"]["labels"], **keys}, "annotations": keys}
    written = await claims.put({**claim, "metadata": {**claim["metadata"], **added}}, term=7)
    for key in PROTECTED:
        other = {**written, "metadata": {**written["metadata"], "annotations": {**keys, key: "1"}}}
        why = await claims.refusal(other, term=7)
        assert f"not {key}; if other admission adds them, list them in admission.addedKeys.resourceclaims" in why
    removed = {**written, "metadata": {**written["metadata"], "annotations": {}}}
    assert f"not {ADDED}; " in await claims.refusal(removed, term=7)


async def test_only_claims_for_extended_resources_of_a_pod_are_created_and_deleted(claims: Claims) -> None:
    theirs, arena = await claims.create(protected=False), claims.arena
    path = claim_objects.path(f"{arena.namespace}/{theirs['metadata']['name']}")
    collection = path.rpartition("/")[0]
    with pytest.raises(ApiError, match="only ResourceClaims for the extended resources"):
        await claims.client.request("DELETE", path)
    [pod] = claims.allocated["reservedFor"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pod["uid"], "controller": True}
    made: Raw = {
        "generateName": "p-",
        "annotations": {status.EXTENDED: "true"},
        "ownerReferences": [owner],
        "labels": {"berth.dev/fenced-by": arena.lease_name},
        "finalizers": [claim_objects.FINALIZER],
    }
    bad: list[Raw] = [
        {"annotations": {}},
        {"ownerReferences": []},
        {"ownerReferences": [{**owner, "kind": "Node"}]},
        {"labels": {**made["labels"], "a": "b"}},
        {"finalizers": ["example.com/f"]},
    ]
    for metadata in bad:
        with pytest.raises(ApiError, match="Berth's operator may c"):
            await claims.client.request("POST", collection, body={"metadata": made | metadata, "spec": theirs["spec"]})
    own = await claims.client.request("POST", collection, body={"metadata": made, "spec": theirs["spec"]})
    stolen = {**theirs, "metadata": {**theirs["metadata"], "annotations": made["annotations"]}}
    assert "the metadata of a ResourceClaim only by" in await claims.refusal(stolen, term=7)
    free = await claims.put({**own, "metadata": {**own["metadata"], "finalizers": []}}, term=7)
    await claims.client.request("DELETE", claim_objects.path(f"{arena.namespace}/{free['metadata']['name']}"))


async def test_without_a_leader_others_release_what_it_allocated(claims: Claims, admin: kube.KubeClient) -> None:
    claim, arena = await claims.create(), claims.arena
    allocated = await claims.put(claim, status=claims.allocated, term=7)
    await admin.request("DELETE", f"{leases(arena)}/{arena.lease_name}")
    deallocated = await claims.put(allocated, status={}, term=0, client=admin)
    assert "allocation" not in deallocated["status"]
    # The next leader's lease ends what the one before may still write.
    await set_term(admin, arena, 8)
    await claims.until_refused("is over", term=7)


async def test_without_the_kind_of_the_lease_only_fenced_claims_cannot_be_written(
    claims: Claims, admin: kube.KubeClient
) -> None:
    policy = next(each for each in claims.documents if each["spec"].get("paramKind"))
    path = claims.arena.cluster.api.path_of(policy)
    await admin.merge_patch(path, {"spec": {"paramKind": {"kind": "LeaderLeaseThatIsNotDefined"}}})
    await claims.until_refused("LeaderLeaseThatIsNotDefined", term=7)
    theirs = await claims.create(protected=False)
    await claims.put(theirs, status=claims.allocated, term=0, client=admin)
    await admin.request("DELETE", path)
    ours, deadline = await claims.create(), time.monotonic() + ACTIVE_SECONDS
    while why := await claims.refusal(ours, status=claims.allocated, term=0, client=admin):
        assert "LeaderLeaseThatIsNotDefined" in why
        assert time.monotonic() < deadline
