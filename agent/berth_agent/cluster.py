"""All calls to the API server: plain dicts in and out, one exception for whatever goes wrong.

It is a thin layer over aiohttp: kubernetes-asyncio's models alone would take more memory than the rest of the agent.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
import orjson

from berth_agent.configuration.settings import Settings
from berth_api import names
from berth_client import credentials
from berth_client.credentials import Login

NODES: Final = "/api/v1/nodes"
NAMESPACES: Final = "/api/v1/namespaces"
PODS: Final = "/api/v1/pods"
DEVICES: Final = f"/apis/{names.API_VERSION}/{names.DEVICES}"

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
PAGE: Final = 500
HEADERS: Final = {"User-Agent": names.AGENT}

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

    def __init__(self, *, session: aiohttp.ClientSession, login: Login, timeout: float) -> None:
        self._session = session
        self._login = login
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
        """Delete one object if it is still that one; an object that is gone or has another UID is no error."""
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
        limits = aiohttp.ClientTimeout(connect=self._timeout, sock_read=IDLE_SECONDS)
        async with self._answer("GET", path, query=query, headers={"Accept": JSON}, limits=limits) as answer:
            async for line in _lines(answer):
                yield _checked(orjson.loads(line))

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
        headers = {"Accept": accept, "Content-Type": content}
        data = None if body is None else orjson.dumps(body)
        limits = aiohttp.ClientTimeout(total=self._timeout)
        async with self._answer(method, path, query=query, headers=headers, data=data, limits=limits) as answer:
            found: dict[str, Any] = orjson.loads(await answer.read())
        return found

    @contextlib.asynccontextmanager
    async def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        data: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, and give its answer if it is a good one.

        Raises:
            CallError: it is not, or there is none, or it breaks off, or cannot be understood.
        """
        try:
            async with self._session.request(
                method,
                self._login.server + path,
                params=query,
                data=data,
                headers={**headers, **self._login.authorization()},
                timeout=limits,
                server_hostname=self._login.server_name,
            ) as answer:
                if not answer.ok:
                    raise CallError(_reason(answer, await answer.read()), status=answer.status)
                yield answer
        except (aiohttp.ClientError, OSError) as error:
            raise CallError(f"no answer: {error or type(error).__name__}") from error
        except ValueError as error:
            raise CallError(f"no answer that can be read: {error}") from error


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[Cluster]:
    """Open the connection that the settings name; it is closed at the end of the block.

    Raises:
        CredentialsError: the kubeconfig or the service account cannot be used.
    """
    login = credentials.load(settings.kubeconfig)
    async with opened(login, timeout=settings.request_timeout, connections=2 * settings.concurrency) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def opened(login: Login, *, timeout: float, connections: int) -> AsyncIterator[Cluster]:  # noqa: ASYNC109 -- of each call
    """Open connections, so many at most, as a login says.

    Raises:
        CredentialsError: its certificates cannot be used.
    """
    connector = aiohttp.TCPConnector(limit=connections, ssl=credentials.tls(login))
    # The variables of a proxy count.
    async with aiohttp.ClientSession(connector=connector, headers=HEADERS, trust_env=True) as session:
        yield Cluster(session=session, login=login, timeout=timeout)


async def _lines(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a stream; its own limit is far below an object's size."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _checked(event: dict[str, Any]) -> dict[str, Any]:
    if event["type"] == "ERROR":
        raise CallError(str(event["object"].get("message")), status=int(event["object"].get("code") or 0))
    return event


def _reason(answer: aiohttp.ClientResponse, body: bytes) -> str:
    """Return the message of the server's Status object."""
    try:
        return str(orjson.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status} {answer.reason}"
