"""Only the operator allocates devices of Berth's pools."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from berth_api.names import DRA_DRIVER
from devcluster import Arena
from devcluster.control_plane.api import Api, ApiError
from tests.claims.objects import request

OTHER: Final = "other.example.com"
POOL: Final = f"{OTHER}/ours"
MERGE: Final = "application/merge-patch+json"
Results = Sequence[dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, enforce: Callable[..., None]) -> None:
    arena.cluster.api.post(claims(arena), claim("probe"))
    file = "../components/claims/pools.yaml"
    enforce(file, lambda: bool(refusal(arena, "probe", [device()])), pools=f'["{POOL}"]')


def claims(arena: Arena) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{arena.namespace}/resourceclaims"


def claim(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request(deviceClassName=DRA_DRIVER)]}}}


def device(name: str = "d", *, driver: str = DRA_DRIVER, pool: str = "node-1", **fields: Any) -> dict[str, Any]:
    return {"driver": driver, "pool": pool, "device": name, "request": "gpu", **fields}


def refusal(arena: Arena, name: str, results: Results) -> str:
    """Return why another account may not allocate devices to a claim; empty if it may."""
    path = f"{claims(arena)}/{name}/status"
    body = {"status": {"allocation": {"devices": {"results": list(results)}}}}
    try:
        arena.cluster.api.request("PATCH", path, body=body, query={"dryRun": "All"}, content_type=MERGE)
    except ApiError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("results", "pool"),
    [
        pytest.param([device()], f"{DRA_DRIVER}/node-1", id="of the driver"),
        pytest.param([device(driver=OTHER, pool="ours")], POOL, id="of the pool"),
        pytest.param([device(driver=OTHER, pool="theirs"), device()], f"{DRA_DRIVER}/node-1", id="one of two"),
    ],
)
def test_another_account_is_told_what_is_missing(arena: Arena, results: Results, pool: str) -> None:
    message = refusal(arena, "probe", results)
    assert f"only Berth allocates devices of the pool {pool}" in message
    assert f"set spec.schedulerName: {arena.scheduler_name} in pods" in message


def test_devices_of_other_pools_are_not_looked_at(arena: Arena) -> None:
    admin = {"resource.kubernetes.io/admin-access": "true"}
    arena.cluster.api.merge(f"/api/v1/namespaces/{arena.namespace}", {"metadata": {"labels": admin}})
    arena.cluster.api.post(claims(arena), claim("free"))
    theirs = device(driver=OTHER, pool="theirs")
    assert refusal(arena, "free", [theirs]) == ""
    assert refusal(arena, "free", [theirs, device(adminAccess=True)]) == ""


def test_the_operator_allocates_and_others_may_write_what_is_held(arena: Arena) -> None:
    arena.service_account("berth-operator", "cluster-admin")
    api, account = arena.cluster.api, f"/api/v1/namespaces/{arena.namespace}/serviceaccounts/berth-operator/token"
    token = api.post(account, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    operator = Api(server=arena.cluster.server, token=token, ca=arena.cluster.ca_file.read_text())
    api.post(claims(arena), claim("held"))
    operator.merge(f"{claims(arena)}/held/status", {"status": {"allocation": {"devices": {"results": [device()]}}}})
    operator.close()
    assert refusal(arena, "held", [device()]) == ""


def test_the_pod_that_forgot_its_scheduler_says_so(arena: Arena) -> None:
    """With the real kube-scheduler, on an API server without DeviceTaintRules."""
    api, name = arena.cluster.api, f"{arena.id}.example.com"
    [node] = arena.nodes(1)
    group = "/apis/resource.k8s.io/v1"
    of_node = f"device.driver == '{DRA_DRIVER}' && device.attributes['{DRA_DRIVER}'].?node.orValue('') == '{node}'"
    listed = {"name": "d", "attributes": {"node": {"string": node}}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    slice_ = {"driver": DRA_DRIVER, "nodeName": node, "pool": pool, "devices": [listed]}
    made = {
        "deviceclasses": {"selectors": [{"cel": {"expression": of_node}}]},
        "resourceslices": slice_,
        f"namespaces/{arena.namespace}/resourceclaims": {"devices": {"requests": [request(deviceClassName=name)]}},
    }
    for collection, spec in made.items():
        api.post(f"{group}/{collection}", {"metadata": {"name": name}, "spec": spec})
    try:
        used = [{"name": "gpu", "resourceClaimName": name}]
        arena.create([arena.pod("forgot", scheduler_name="default-scheduler", resourceClaims=used)])

        def reasons() -> list[str]:
            events = arena.list("events", fieldSelector="involvedObject.name=forgot")
            return [each["message"] for each in events if each["reason"] == "FailedScheduling"]

        missing = f"only Berth allocates devices of the pool {DRA_DRIVER}/{node}: set spec.schedulerName"
        arena.wait(lambda: any(missing in each for each in reasons()), what="the Event of the pod")
        assert "allocation" not in api.get(f"{claims(arena)}/{name}").get("status", {})
    finally:
        for collection in ("deviceclasses", "resourceslices"):
            api.delete(f"{group}/{collection}/{name}")
