"""All calls to the API server: plain dicts in and out, one exception for whatever goes wrong.

kubernetes-asyncio brings configuration, authentication and the connection; its typed models stay out, since an
agent only ever applies and lists.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.client.exceptions import ApiException

from berth_agent.settings import Settings
from berth_api import names

NODES: Final = "/api/v1/nodes"
NAMESPACES: Final = "/api/v1/namespaces"
PODS: Final = "/api/v1/pods"
DEVICES: Final = f"/apis/{names.API_VERSION}/{names.DEVICES}"

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PAGE: Final = 500

NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410

WATCH_SECONDS: Final = 300
"""How long one watch lasts."""
IDLE_SECONDS: Final = 90
"""A watch that is silent for so long is broken: the server sends a bookmark each minute."""


class CallError(Exception):
    """The API server refused, or did not answer (status 0)."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Cluster:
    """One connection to an API server, kept for the life of the process."""

    def __init__(self, *, api: client.ApiClient, timeout: float) -> None:
        self._api = api
        self._timeout = timeout

    async def get(self, path: str) -> dict[str, Any]:
        """Read one object."""
        return await self._call("GET", path)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post one object."""
        return await self._call("POST", path, body=body, query={"fieldManager": names.AGENT})

    async def apply(self, path: str, body: Mapping[str, Any], *, manager: str = names.AGENT) -> dict[str, Any]:
        """Apply our fields of an object on the server, never taking a field from another manager."""
        return await self._call("PATCH", path, body=body, query={"fieldManager": manager}, content=APPLY)

    async def merge(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Overwrite fields of an object that must exist; costs the server a third of an apply."""
        return await self._call("PATCH", path, body=body, query={"fieldManager": names.AGENT}, content=MERGE)

    async def metadata(self, path: str, *, only: str | None = None) -> dict[str, dict[str, Any]]:
        """List the metadata of all objects (or of one) by name."""
        query = {"limit": str(PAGE)} | ({"fieldSelector": f"metadata.name={only}"} if only else {})
        found: dict[str, dict[str, Any]] = {}
        while True:
            page = await self._call("GET", path, query=query, accept=METADATA_LIST)
            found.update((item["metadata"]["name"], item["metadata"]) for item in page["items"] or ())
            following = page["metadata"].get("continue")
            if not following:
                return found
            query["continue"] = following

    async def delete(self, path: str, *, uid: str) -> None:
        """Delete one object if it is still that one; one that is gone, or another now, is well."""
        try:
            await self._call("DELETE", path, body={"preconditions": {"uid": uid}})
        except CallError as error:
            if error.status not in {NOT_FOUND, CONFLICT}:
                raise

    async def list(self, path: str, *, field: str = "", label: str = "") -> tuple[list[dict[str, Any]], str]:
        """List objects at quorum, with the version that they are of."""
        query = {"limit": str(PAGE), **({"fieldSelector": field} if field else {})}
        query |= {"labelSelector": label} if label else {}
        found: list[dict[str, Any]] = []
        while True:
            page = await self._call("GET", path, query=query)
            found += page["items"] or ()
            following = page["metadata"].get("continue")
            if not following:
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = following

    async def watch(self, path: str, *, field: str, version: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what changes after a version, until the server ends it or falls silent.

        Raises:
            CallError: it cannot be watched; with status GONE the version is too old.
        """
        query = {"watch": "true", "fieldSelector": field, "resourceVersion": version, "allowWatchBookmarks": "true"}
        query["timeoutSeconds"] = str(WATCH_SECONDS)
        try:
            answer = await self._api.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                header_params={"Accept": JSON},
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
                _request_timeout=aiohttp.ClientTimeout(connect=self._timeout, sock_read=IDLE_SECONDS),
            )
            try:
                async for line in _lines(answer):
                    yield _checked(json.loads(line))
            finally:
                # It is not read to its end, and so cannot serve another call.
                answer.close()
        except ApiException as error:
            raise CallError(_reason(error), status=error.status or 0) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CallError(f"no answer: {error or type(error).__name__}") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await self._api.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content},
                body=body,
                response_types_map={200: "object", 201: "object"},
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _request_timeout=self._timeout,
            )
        except ApiException as error:
            raise CallError(_reason(error), status=error.status or 0) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CallError(f"no answer: {error or type(error).__name__}") from error
        return answer


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[Cluster]:
    """Open the connection that the settings name; it is closed at the end of the block.

    Raises:
        ConfigException: the kubeconfig or the service account cannot be used.
    """
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = 2 * settings.concurrency
    if settings.kubeconfig:
        if not settings.kubeconfig.exists():
            raise config.ConfigException(f"{settings.kubeconfig}: no such kubeconfig")
        await config.load_kube_config(
            config_file=str(settings.kubeconfig), client_configuration=configuration, persist_config=False
        )
    else:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    async with client.ApiClient(configuration) as api:
        yield Cluster(api=api, timeout=settings.request_timeout)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a stream; its own limit is far below an object's size."""
    if answer.status != HTTPStatus.OK:
        raise CallError(f"{answer.status} {answer.reason}", status=answer.status)
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    if event["type"] == "ERROR":
        raise CallError(str(event["object"].get("message")), status=int(event["object"].get("code") or 0))
    return event


def _reason(error: ApiException) -> str:
    """Take the server's own sentence out of its Status object."""
    try:
        return str(json.loads(error.body or b"")["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"
