"""Which writes of Kueue's kinds the real API server accepts from the operator's account, and in which term."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from berth_client.client import JSON_PATCH
from berth_client.errors import ApiError
from berth_operator.clients import kube
from devcluster import Arena, waiting
from tests.integration.clients.conftest import ACCOUNT, ACTIVE_SECONDS
from tests.integration.clients.test_fence import set_term
from tests.objects import kueue_objects
from tests.objects.kueue_objects import check_state
from tests.programs import fence
from tests.stand_ins import kueue_by_hand
from tests.stand_ins.kueue_by_hand import PATH, Kueue

Raw = dict[str, Any]
POLL_SECONDS: Final = 0.1


@dataclass(kw_only=True)
class Checks:
    """Workloads with two AdmissionChecks of an arena, one of which is ours, and the account that may write it."""

    arena: Arena
    kueue: Kueue
    client: kube.KubeClient
    other: str
    made: list[str] = field(default_factory=list)

    def create(self) -> str:
        """Create a Workload; return the path of its status."""
        name = f"w{len(self.made)}"
        self.made.append(name)
        self.kueue.create(name)
        self.kueue.set_status(name, {"admissionChecks": [self.kueue.pending(), check_state(name=self.other)]})
        return f"{self.kueue.path(name)}/status"

    async def refusal(self, path: str, *operations: Raw, term: int) -> str:
        """Return why a patch is refused; empty if it is accepted."""
        params = {"fieldManager": f"{self.arena.lease_name}/{term}"}
        try:
            await self.client.request("PATCH", path, params=params, body=list(operations), content_type=JSON_PATCH)
        except ApiError as error:
            return error.message
        return ""

    async def until_refused(self, why: str, *operations: Raw, term: int) -> None:
        """Wait until the API server has loaded a policy, or a term.

        Each try has a Workload of its own: one that was accepted has changed what the next could change.
        """

        async def is_refused() -> bool:
            return why in await self.refusal(self.create(), *operations, term=term)

        await waiting.until_async(is_refused, deadline=ACTIVE_SECONDS, what=f"the refusal {why!r}")

    def ready(self, index: int = 0, **fields: Any) -> Raw:
        """Return the operation that makes an entry Ready."""
        name = self.kueue.check if index == 0 else self.other
        return replaced(f"/status/admissionChecks/{index}", check_state("Ready", name=name, **fields))


def replaced(path: str, value: Any) -> Raw:
    return {"op": "replace", "path": path, "value": value}


def added(path: str, value: Any) -> Raw:
    return {"op": "add", "path": path, "value": value}


@pytest.fixture
async def checks(arena: Arena, admin: kube.KubeClient, tmp_path: Path) -> AsyncIterator[Checks]:
    kueue_by_hand.install(arena.cluster, tmp_path / "definitions")
    client = await kube.KubeClient.connect(arena.service_account(ACCOUNT, "cluster-admin"), "berth-test/operator")
    documents = fence.fence(
        namespace=arena.namespace,
        lease=arena.lease_name,
        service_account=ACCOUNT,
        suffix=arena.id,
        file=fence.OF_CHECKS,
    )
    kueue = Kueue(arena, check=f"ours-{arena.id}")
    own = Checks(arena=arena, kueue=kueue, client=client, other=f"other-{arena.id}")
    kueue.open()
    foreign = kueue_objects.admission_check(own.other, controller="example.com/other")
    arena.cluster.api.apply({**foreign, "metadata": {"name": own.other}})
    try:
        arena.apply(documents)
        await set_term(admin, arena, 7)
        await own.until_refused("is over", own.ready(), term=6)
        await own.until_refused("retries", replaced("/status/admissionChecks", []), term=7)
        await own.until_refused("is decided by", own.ready(1), term=7)
        yield own
    finally:
        for document in documents:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))
        arena.cluster.api.delete(f"{PATH}/admissionchecks/{own.other}")
        kueue.close()
        client.close()


async def test_only_the_present_term_answers(checks: Checks, admin: kube.KubeClient) -> None:
    ours = checks.arena.lease_name
    expected = f"a write of {ours}/6 is over, the LeaderLease {ours} is in term 7"
    assert expected in await checks.refusal(checks.create(), checks.ready(), term=6)
    assert await checks.refusal(checks.create(), checks.ready(), term=7) == ""
    await set_term(admin, checks.arena, 8)
    await checks.until_refused("is over", checks.ready(), term=7)
    assert await checks.refusal(checks.create(), checks.ready(), term=8) == ""


async def test_an_answer_names_the_version_that_was_read(checks: Checks) -> None:
    path = checks.create()
    version = checks.kueue.api.get(path)["metadata"]["resourceVersion"]
    named = replaced("/metadata/resourceVersion", version)
    assert await checks.refusal(path, named, checks.ready(), term=7) == ""
    assert "the object has been modified" in await checks.refusal(path, named, checks.ready(message="m"), term=7)


async def test_no_more_than_our_own_entry_is_written(checks: Checks) -> None:
    pods = [{"name": "main", "annotations": {"berth.dev/workload": "w", "berth.dev/pod-set": "main"}}]
    assert await checks.refusal(checks.create(), checks.ready(podSetUpdates=pods), term=7) == ""
    for operation, why in (
        (checks.ready(1), f"the AdmissionCheck {checks.other} is decided by example.com/other"),
        (added("/status/admissionChecks/-", check_state(name="third")), "neither add nor remove"),
        ({"op": "remove", "path": "/status/admissionChecks/1"}, "neither add nor remove"),
        (checks.ready(retryCount=9), "nor count its retries"),
        (checks.ready(podSetUpdates=[{"name": "main", "labels": {"a": "b"}}]), "to the pods of a Workload only"),
        (checks.ready(podSetUpdates=[{"name": "main", "annotations": {"a": "b"}}]), "to the pods of a Workload only"),
        (added("/status/requeueState", {"count": 1}), "only this part of the status: admissionChecks"),
        (added("/status/conditions", [kueue_objects.condition("Admitted")]), "only this part of the status"),
    ):
        assert why in await checks.refusal(checks.create(), operation, term=7), operation
    spec = checks.create().removesuffix("/status")
    assert "only the status" in await checks.refusal(spec, added("/spec/active", value=False), term=7)


async def test_of_our_checks_alone_the_condition_active_is_written(checks: Checks) -> None:
    active = {
        "type": "Active",
        "status": "True",
        "reason": "a",
        "message": "",
        "lastTransitionTime": kueue_objects.TIME,
    }
    ours, other = (f"{PATH}/admissionchecks/{name}/status" for name in (checks.kueue.check, checks.other))
    assert await checks.refusal(ours, added("/status", {"conditions": [active]}), term=7) == ""
    more = [active, {**active, "type": "Other"}]
    assert "only the condition Active" in await checks.refusal(ours, added("/status", {"conditions": more}), term=7)
    assert "only the condition Active" in await checks.refusal(
        other, added("/status", {"conditions": [active]}), term=7
    )
    assert "is over" in await checks.refusal(ours, added("/status", {"conditions": []}), term=6)


async def test_other_accounts_write_as_before(checks: Checks) -> None:
    name = checks.create().split("/")[-2]
    checks.kueue.set_status(name, {"admissionChecks": [], "requeueState": {"count": 1}})
    assert checks.kueue.api.get(checks.kueue.path(name))["status"]["requeueState"] == {"count": 1}
