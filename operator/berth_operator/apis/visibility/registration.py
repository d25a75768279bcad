"""The APIService of the visibility API. It exists only while a replica answers.

An APIService without a server makes discovery incomplete, and keeps every deleted namespace `Terminating`. So no
manifest contains it. A replica that answers creates it, and the last replica deletes it when it shuts down normally.
Removing only the Service would not be enough: aggregated discovery keeps what it knew about an APIService until the
APIService is deleted (`discoveryManager.AddAPIService` in k8s.io/kube-aggregator).

In some clusters the API server does not reach pods at all, or its Service has no endpoints. If it says so for a while
about the APIService of a replica that serves, the replica deletes the APIService, and tries again after a pause.

The owner of the APIService is the ClusterRole that grants the right to create it. When the ClusterRole is deleted, the
garbage collector deletes the APIService, and no replica can create another one.
"""

import asyncio
import base64
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from berth_api.objects.visibility import GROUP, VERSION
from berth_api.values.backoff import ExponentialBackoff
from berth_client.errors import ApiError, CallError
from berth_client.objects import Object
from berth_operator.apis.visibility.kinds import API_SERVICE

PERIOD: Final = 10.0
"""Longest time in seconds between two checks: a user may delete it, or apply an older manifest that has it."""
AWAY_PERIOD: Final = 60.0
"""The same while the API is switched off: replicas of before the change may create it once more before they end."""
NOT_REACHED: Final = "FailedDiscoveryCheck"
"""Reason of the condition `Available` if the API server has endpoints for the Service, and none of them answers."""
UNREACHABLE_SECONDS: Final = 60.0
"""Seconds for which the API server may say that it does not reach the API. Until then no namespace can be deleted."""
UNAVAILABLE_SECONDS: Final = 300.0
"""The same for all reasons together, such as `MissingEndpoints`, which passes when a replica becomes ready."""
BACKOFF: Final = ExponentialBackoff(first=600.0, longest=21600.0)
"""For which there is no APIService after that."""
LEAVE_SECONDS: Final = 2.0
"""Seconds for which the process, before it exits, waits for the deletion."""
OWNER: Final = "berth-operator-visibility"
"""Name of the ClusterRole in `manifests/base/visibility.yaml`."""
PRIORITY: Final = 100
"""Lower than the priority of CustomResourceDefinitions."""
_API_SERVICES: Final = "/apis/apiregistration.k8s.io/v1/apiservices"
_PATH: Final = f"{_API_SERVICES}/{API_SERVICE}"
_RBAC: Final = "rbac.authorization.k8s.io/v1"
_OWNER_PATH: Final = f"/apis/{_RBAC}/clusterroles/{OWNER}"
_GONE: Final = {HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN}
"""The object does not exist, or is not accessible."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class NotOursError(Exception):
    """The APIService names the Service of somebody else."""


class ApiServiceApi(Protocol):
    """The subset of `KubeClient` that this uses."""

    async def get(self, path: str, params: Any = None) -> Any:
        """Return an object or a list."""

    async def create(self, path: str, body: Object) -> Object:
        """Create an object."""

    async def merge_patch(self, path: str, body: Object) -> Object:
        """Patch an object that exists."""

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete an object, unless it has another UID."""


class Registration:
    """What one replica does to the APIService."""

    def __init__(self, *, namespace: str, service: str, port: int, pod: str, period: float = PERIOD) -> None:
        """Create it for a Service and its port. `pod` is the name of our own pod; empty if it is unknown."""
        self._own = {"namespace": namespace, "name": service}
        self._port, self._pod, self._period = port, pod, min(period, PERIOD)
        self._core = f"/api/v1/namespaces/{namespace}"
        self._problem = ""
        self._unreachable_since = self._unavailable_since = math.inf
        self._paused_until, self._pause = -math.inf, BACKOFF.first

    async def keep(self, api: ApiServiceApi, bundle: Callable[[], str]) -> None:
        """Register until cancelled.

        `bundle` returns the certificates (PEM) by which the API server trusts us.
        """
        while True:
            await self._try(self._register(api, base64.b64encode(bundle().encode()).decode()))
            await asyncio.sleep(self._period)

    async def keep_away(self, api: ApiServiceApi) -> None:
        """Delete what replicas that served have left, until cancelled."""
        while True:
            await self._try(self._withdraw(api))
            await asyncio.sleep(AWAY_PERIOD)

    async def leave(self, api: ApiServiceApi) -> None:
        """Delete it at the end of this replica, unless another one is ready."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                if not await self._others(api):
                    await self._withdraw(api)
        except (CallError, TimeoutError) as error:
            log.warning("APIService not deleted", error=str(error) or "no answer", path=_PATH)

    async def _try(self, attempt: Awaitable[None]) -> None:
        """Report a failure once, not at each attempt."""
        try:
            await attempt
        except (CallError, NotOursError) as error:
            if self._problem != (problem := str(error)):
                log.warning("APIService not written, will try again", error=problem)
            self._problem = problem
        else:
            self._problem = ""

    async def _register(self, api: ApiServiceApi, bundle: str) -> None:
        """Create the APIService, or update its bundle; delete it if the API server does not reach us.

        Raises:
            NotOursError: it names the Service of somebody else.
        """
        current, now = await _read(api, _PATH), asyncio.get_running_loop().time()
        if current is None:
            self._unreachable_since = self._unavailable_since = math.inf
            if now < self._paused_until:
                return
            owner = await _read(api, _OWNER_PATH)
            if owner is None:
                # Not installed: then neither is the API.
                return
            metadata = owner["metadata"]
            reference = {"apiVersion": _RBAC, "kind": "ClusterRole", "name": metadata["name"], "uid": metadata["uid"]}
            api_service = {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": API_SERVICE, "ownerReferences": [reference]},
                "spec": {
                    "group": GROUP,
                    "version": VERSION,
                    "groupPriorityMinimum": PRIORITY,
                    "versionPriority": PRIORITY,
                    "service": self._own | {"port": self._port},
                    "caBundle": bundle,
                },
            }
            await api.create(_API_SERVICES, api_service)
            log.info("APIService created", path=_PATH)
        elif not self._is_ours(current):
            raise NotOursError(f"{_PATH} names another Service than ours: {current['spec'].get('service')}")
        elif current["spec"].get("caBundle") != bundle:
            await api.merge_patch(_PATH, {"spec": {"caBundle": bundle}})
        else:
            await self._withdraw_unreached(api, current, now)

    async def _withdraw_unreached(self, api: ApiServiceApi, current: Object, now: float) -> None:
        """Delete the APIService if the API server has said for a while that it does not reach it."""
        conditions = (current.get("status") or {}).get("conditions") or ()
        available: Object = next((condition for condition in conditions if condition["type"] == "Available"), {})
        if available.get("status") == "True":
            self._pause = BACKOFF.first
        is_unavailable = available.get("status") == "False"
        self._unavailable_since = min(self._unavailable_since, now) if is_unavailable else math.inf
        is_unreachable = is_unavailable and available.get("reason") == NOT_REACHED
        self._unreachable_since = min(self._unreachable_since, now) if is_unreachable else math.inf
        if now - self._unreachable_since >= UNREACHABLE_SECONDS or now - self._unavailable_since >= UNAVAILABLE_SECONDS:
            await api.delete(_PATH, uid=current["metadata"]["uid"])
            self._unreachable_since = self._unavailable_since = math.inf
            self._paused_until = now + self._pause
            log.warning(
                "APIService deleted, because the API server does not reach this replica; set the chart's "
                "operator.hostNetwork=true or visibility.enabled=false (docs/visibility.md)",
                reason=available.get("message", ""),
                again_in_seconds=self._pause,
            )
            self._pause = BACKOFF.following(self._pause)

    async def _withdraw(self, api: ApiServiceApi) -> None:
        """Delete the APIService if it is ours."""
        current = await _read(api, _PATH)
        if current is not None and self._is_ours(current):
            await api.delete(_PATH, uid=current["metadata"]["uid"])
            log.info("APIService deleted", path=_PATH)

    def _is_ours(self, api_service: Object) -> bool:
        service = api_service["spec"].get("service") or {}
        return all(service.get(key) == value for key, value in self._own.items())

    async def _others(self, api: ApiServiceApi) -> bool:
        """Return whether another pod of the Service serves and stays; without a selector, none is known.

        It serves if it has a port of the Service. A pod of an older version, or with the API off, has no such port. It
        stays if it is ready, and is not being deleted.
        """
        service = await _read(api, f"{self._core}/services/{self._own['name']}")
        spec = (service or {}).get("spec") or {}
        if not (selector := spec.get("selector")):
            return False
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        ports = {port.get("targetPort") for port in spec.get("ports") or ()}
        pods = await api.get(f"{self._core}/pods", {"labelSelector": labels})
        for pod in pods["items"]:
            if pod["metadata"]["name"] == self._pod or "deletionTimestamp" in pod["metadata"]:
                continue
            conditions = (pod.get("status") or {}).get("conditions") or ()
            is_ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
            own = [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]
            if is_ready and any({port.get("name"), port["containerPort"]} & ports for port in own):
                return True
        return False


async def _read(api: ApiServiceApi, path: str) -> Object | None:
    """Return an object; None if there is none, or not for us."""
    try:
        obj: Object = await api.get(path)
    except ApiError as error:
        if error.status not in _GONE:
            raise
        return None
    return obj
