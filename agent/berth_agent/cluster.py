"""All calls to the API server: plain dicts in and out, one exception for whatever goes wrong.

kubernetes-asyncio brings configuration, authentication and the connection; its typed models stay out, since an
agent only ever applies and lists.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
from kubernetes_asyncio import client, config
from kubernetes_asyncio.client.exceptions import ApiException

from berth_agent.settings import Settings
from berth_api import names

NODES: Final = "/api/v1/nodes"
NAMESPACES: Final = "/api/v1/namespaces"
DEVICES: Final = f"/apis/{names.API_VERSION}/{names.DEVICES}"

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PAGE: Final = 500

NOT_FOUND: Final = 404
CONFLICT: Final = 409


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

    async def apply(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Apply our fields of an object on the server, never taking a field from another manager."""
        return await self._call("PATCH", path, body=body, query={"fieldManager": names.AGENT}, content=APPLY)

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


def _reason(error: ApiException) -> str:
    """Take the server's own sentence out of its Status object."""
    try:
        return str(json.loads(error.body or b"")["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"
