"""The APIService exists while a replica serves, and no longer."""

import asyncio
import base64
from typing import Any

import pytest
from structlog.testing import capture_logs

from berth_client.errors import ApiError
from berth_operator.apis.visibility.registration import (
    AWAY_PERIOD,
    BACKOFF,
    NOT_REACHED,
    PERIOD,
    UNAVAILABLE_SECONDS,
    UNREACHABLE_SECONDS,
    Registration,
)

pytestmark = pytest.mark.looptime

COLLECTION = "/apis/apiregistration.k8s.io/v1/apiservices"
PATH = f"{COLLECTION}/v1alpha1.visibility.berth.dev"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/berth-operator-visibility"
SERVICE = "/api/v1/namespaces/ns/services/berth-visibility"
PODS = "/api/v1/namespaces/ns/pods"
OURS = {"namespace": "ns", "name": "berth-visibility", "port": 443}
BUNDLE = base64.b64encode(b"bundle").decode()
REGISTERED = {"service": OURS, "caBundle": BUNDLE}
SELECTOR = {"app": "berth", "tier": "one"}
Object = dict[str, Any]


class ApiServer:
    """An APIService, its owner, a Service and pods."""

    def __init__(self, spec: Object | None, *pods: Object, selector: Object | None = None) -> None:
        self.objects: dict[str, Any] = {
            PODS: {"items": list(pods)},
            SERVICE: {"spec": {"selector": selector, "ports": [{"port": 443, "targetPort": "visibility"}]}},
            ROLE: {"metadata": {"name": "berth-operator-visibility", "uid": "role"}},
        }
        if spec is not None:
            self.put(spec)
        self.writes = 0
        self.asked: list[Any] = []

    def put(self, spec: Object) -> None:
        self.objects[PATH] = {"metadata": {"uid": "own"}, "spec": spec}

    def say_available(self, status: str, reason: str) -> None:
        """Set the condition by which the API server says whether it reaches the API."""
        condition = {"type": "Available", "status": status, "reason": reason, "message": "why"}
        self.objects[PATH]["status"] = {"conditions": [condition]}

    @property
    def spec(self) -> Object | None:
        """The spec of the APIService; None without one."""
        return self.objects[PATH]["spec"] if PATH in self.objects else None

    @property
    def registered(self) -> Object | None:
        return {key: self.spec[key] for key in REGISTERED} if self.spec else None

    async def get(self, path: str, params: Any = None) -> Any:
        self.asked.append(params)
        if path not in self.objects:
            raise ApiError(404, "NotFound", path)
        return self.objects[path]

    async def create(self, path: str, body: Object) -> Object:
        assert path == COLLECTION
        self.objects[f"{path}/{body['metadata']['name']}"] = body | {"metadata": body["metadata"] | {"uid": "own"}}
        self.writes += 1
        return body

    async def merge_patch(self, path: str, body: Object) -> Object:
        self.objects[path]["spec"] = self.objects[path]["spec"] | body["spec"]
        self.writes += 1
        return body

    async def delete(self, path: str, *, uid: str) -> None:
        assert self.objects[path]["metadata"]["uid"] == uid
        del self.objects[path]


def pod(name: str, *, ready: bool = True, leaving: bool = False, port: str = "visibility") -> Object:
    metadata = {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if leaving else {})}
    containers = [{"name": "operator", "ports": [{"name": port, "containerPort": 9445}]}, {"name": "side"}]
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return {"metadata": metadata, "spec": {"containers": containers}, "status": status}


def registration() -> Registration:
    return Registration(namespace="ns", service="berth-visibility", port=443, pod="own")


async def keep(api: ApiServer, seconds: float = PERIOD / 2) -> None:
    task = asyncio.create_task(registration().keep(api, lambda: "bundle"))
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="as shipped"),
        pytest.param({"service": OURS}, id="of an older manifest"),
        pytest.param({"service": OURS, "caBundle": "b2xk"}, id="with an old bundle"),
        pytest.param(REGISTERED, id="of another replica"),
    ],
)
async def test_a_replica_that_serves_registers_itself(before: Object | None) -> None:
    api = ApiServer(before)
    await keep(api)
    assert api.registered == REGISTERED
    assert api.writes == (before != REGISTERED)


async def test_what_the_api_server_does_not_reach_is_deleted_and_tried_again_later() -> None:
    api = ApiServer(None)
    task = asyncio.create_task(registration().keep(api, lambda: "bundle"))
    for pause in (BACKOFF.first, 2 * BACKOFF.first, 4 * BACKOFF.first):
        await asyncio.sleep(PERIOD / 2)
        api.say_available("False", NOT_REACHED)
        await asyncio.sleep(UNREACHABLE_SECONDS - PERIOD)
        assert api.spec is not None
        await asyncio.sleep(3 * PERIOD)
        assert api.spec is None
        await asyncio.sleep(pause - 4 * PERIOD)
        assert api.spec is None
        await asyncio.sleep(5 * PERIOD)
        assert api.registered == REGISTERED
    # Once it was reached, the pauses start at the shortest again.
    api.say_available("True", "Passed")
    await asyncio.sleep(2 * PERIOD)
    api.say_available("False", NOT_REACHED)
    await asyncio.sleep(UNREACHABLE_SECONDS + 2 * PERIOD)
    assert api.spec is None
    await asyncio.sleep(BACKOFF.first + PERIOD)
    assert api.registered == REGISTERED
    task.cancel()


async def test_what_the_api_server_does_not_reach_for_a_moment_stays() -> None:
    api = ApiServer(REGISTERED)
    task = asyncio.create_task(registration().keep(api, lambda: "bundle"))
    for _ in range(5):
        # As while a replica starts.
        api.say_available("False", "MissingEndpoints")
        await asyncio.sleep(UNREACHABLE_SECONDS * 2)
        api.say_available("False", NOT_REACHED)
        await asyncio.sleep(UNREACHABLE_SECONDS / 2)
        api.say_available("True", "Passed")
        await asyncio.sleep(2 * PERIOD)
    assert api.registered == REGISTERED
    assert api.writes == 0
    task.cancel()


@pytest.mark.parametrize("reason", ["ServiceNotFound", "EndpointsNotFound", "MissingEndpoints"])
async def test_what_has_no_endpoints_for_long_is_deleted_so_that_namespaces_can_be(reason: str) -> None:
    api = ApiServer(REGISTERED)
    task = asyncio.create_task(registration().keep(api, lambda: "bundle"))
    api.say_available("False", reason)
    await asyncio.sleep(UNAVAILABLE_SECONDS - PERIOD)
    assert api.registered == REGISTERED
    await asyncio.sleep(3 * PERIOD)
    assert api.spec is None
    # It is created again, and its time begins again, too.
    await asyncio.sleep(BACKOFF.first)
    api.say_available("False", reason)
    await asyncio.sleep(UNAVAILABLE_SECONDS - PERIOD)
    assert api.registered == REGISTERED
    task.cancel()


async def test_the_port_of_an_older_manifest_stays() -> None:
    api = ApiServer({"service": {**OURS, "port": 9}})
    await keep(api)
    assert api.registered == {"service": {**OURS, "port": 9}, "caBundle": BUNDLE}


async def test_it_goes_with_the_role_that_lets_it_be_created() -> None:
    api = ApiServer(None)
    await keep(api)
    [owner] = api.objects[PATH]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ClusterRole", "role")
    assert "blockOwnerDeletion" not in owner


async def test_without_that_role_nothing_is_created() -> None:
    api = ApiServer(None)
    del api.objects[ROLE]
    await keep(api)
    await registration().leave(api)
    assert api.writes == 0


async def test_one_that_was_deleted_is_created_again_and_nothing_else_is_written() -> None:
    api = ApiServer(None)
    task = asyncio.create_task(registration().keep(api, lambda: "bundle"))
    await asyncio.sleep(2.5 * PERIOD)
    assert api.writes == 1
    del api.objects[PATH]
    await asyncio.sleep(PERIOD)
    assert api.registered == REGISTERED
    task.cancel()


async def test_that_of_somebody_else_stays_and_is_reported_once() -> None:
    other = {"service": {**OURS, "name": "other"}}
    api = ApiServer(other)
    with capture_logs() as logs:
        await keep(api, 3 * PERIOD)
        await registration().leave(api)
    assert api.spec == other
    assert [line["error"] for line in logs] == [f"{PATH} names another Service than ours: {other['service']}"]


@pytest.mark.parametrize(
    ("pods", "stays"),
    [
        pytest.param([], False, id="none"),
        pytest.param([pod("own")], False, id="itself"),
        pytest.param([pod("own", leaving=True), pod("b", leaving=True)], False, id="another that leaves, too"),
        pytest.param([pod("own", leaving=True), pod("b", ready=False)], False, id="another that never became ready"),
        pytest.param([pod("own", leaving=True), pod("b", port="health")], False, id="another of an older version"),
        pytest.param([pod("own", leaving=True), pod("b")], True, id="another"),
    ],
)
async def test_the_last_replica_deletes_it(pods: list[Object], *, stays: bool) -> None:
    api = ApiServer(REGISTERED, *pods, selector=SELECTOR)
    await registration().leave(api)
    assert (api.spec is not None) == stays
    assert {"labelSelector": "app=berth,tier=one"} in api.asked


@pytest.mark.parametrize("is_gone", [False, True], ids=["without a selector", "deleted"])
async def test_a_service_that_selects_no_pods_keeps_nothing(*, is_gone: bool) -> None:
    api = ApiServer(REGISTERED, pod("b"))
    if is_gone:
        del api.objects[SERVICE]
    await registration().leave(api)
    assert api.spec is None


async def test_where_it_is_switched_off_what_others_created_is_deleted_again() -> None:
    api = ApiServer(REGISTERED)
    task = asyncio.create_task(registration().keep_away(api))
    await asyncio.sleep(1)
    assert api.spec is None
    api.put(REGISTERED)
    await asyncio.sleep(AWAY_PERIOD)
    assert api.spec is None
    task.cancel()
