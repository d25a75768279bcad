"""Pods of other schedulers with claims that only Berth can allocate are refused when they are created."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from berth_api.names import DRA_DRIVER
from devcluster import Arena
from tests.claims.objects import exactly, first_available, request

FILE: Final = "../components/claims/schedulers.yaml"
OTHER: Final = "other.example.com"
OWN: Final = "own"
"""The claim, and its template, of Berth's driver."""
TEMPLATES: Final = {
    OWN: request(deviceClassName=DRA_DRIVER),
    "instance": request(deviceClassName=f"mig.{DRA_DRIVER}"),
    "other": request(deviceClassName=OTHER),
    "either": first_available("gpu", exactly(deviceClassName=OTHER), exactly(deviceClassName=DRA_DRIVER)),
    "both": first_available("gpu", exactly(deviceClassName=f"mig.{DRA_DRIVER}"), exactly(deviceClassName=DRA_DRIVER)),
}


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce: Callable[..., None]) -> None:
    api, group = arena.cluster.api, f"/apis/resource.k8s.io/v1/namespaces/{arena.namespace}"
    for name, requested in TEMPLATES.items():
        spec = {"devices": {"requests": [requested]}}
        api.post(f"{group}/resourceclaimtemplates", {"metadata": {"name": name}, "spec": {"spec": spec}})
    for name in (OWN, "given"):
        spec = {"devices": {"requests": [TEMPLATES[OWN]]}}
        api.post(f"{group}/resourceclaims", {"metadata": {"name": name}, "spec": spec})
    enforce(FILE, lambda: bool(refusal(arena, OWN)) and bool(refusal(arena, OWN, by="resourceClaimName")))


def refusal(arena: Arena, of: str, *, by: str = "resourceClaimTemplateName", **spec: Any) -> str:
    """Return why a pod with a claim is refused; empty if it is not."""
    claims = [{"name": "cards", by: of}]
    return arena.refusal(arena.pod(**{"schedulerName": "default-scheduler", "resourceClaims": claims, **spec}))


@pytest.mark.parametrize("name", [OWN, "instance", "both"])
def test_the_missing_line_is_named(arena: Arena, name: str) -> None:
    message = refusal(arena, name)
    assert f"ResourceClaimTemplate {name} of the claim cards" in message
    assert f"Set spec.schedulerName: {arena.scheduler_name}" in message
    assert refusal(arena, name, schedulerName=arena.scheduler_name) == ""


@pytest.mark.parametrize("name", ["other", "either", "missing"])
def test_pods_that_another_scheduler_can_place_are_not_refused(arena: Arena, name: str) -> None:
    assert refusal(arena, name) == ""


def test_a_claim_is_looked_at_until_it_is_allocated(arena: Arena) -> None:
    by = {"by": "resourceClaimName"}
    assert f"ResourceClaim {OWN} of the claim cards" in refusal(arena, OWN, **by)
    path = f"/apis/resource.k8s.io/v1/namespaces/{arena.namespace}/resourceclaims/given"
    result = {"driver": DRA_DRIVER, "pool": "p", "device": "d", "request": "gpu"}
    body = {"status": {"allocation": {"devices": {"results": [result]}}}}
    arena.cluster.api.merge(f"{path}/status", body)
    arena.wait(lambda: refusal(arena, "given", **by) == "", what="the policy to see the allocation")
