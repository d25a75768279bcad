"""The operator's way to the API server: one session, JSON in and out, two kinds of failure.

* The server answered with an error: `ApiError`, with what its Status says.
* It did not answer, or not in time: `Unreachable`. A write may or may not have happened, so nothing here
  repeats it; whoever wrote knows how to find out.

Only answers that say "later" (429, or 503 with Retry-After; neither has been executed) are repeated, within
the call's own time and at most `TRIES` times.

Requests go by our own `Wire`, watches by aiohttp; where a proxy stands between, aiohttp does both. The leader's
election takes a client of its own, so that its renewals never queue behind a thousand binds.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlencode

import aiohttp
import orjson
import yarl

from berth_client import credentials
from berth_client.credentials import CredentialsError, Login
from berth_operator.clients.credentials import Credentials
from berth_operator.clients.wire import Answer, Wire

TRIES: Final = 5
"""Sends of one call at most; the usual Retry-After is one second."""

JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML

Params = Mapping[str, str]
Object = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request.

    Attributes:
        status: the HTTP status.
        reason: the machine-readable reason of the Status object, such as "Conflict".
        message: the sentence for people.
        retry_after: seconds after which the server wants to be asked again, where it said so.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after

    @classmethod
    def of_status(cls, status: Object, *, retry_after: float | None = None) -> Self:
        """Read a Kubernetes Status object."""
        return cls(
            int(status.get("code") or 0),
            str(status.get("reason") or "Unknown"),
            str(status.get("message") or ""),
            retry_after,
        )


class Unreachable(Exception):  # noqa: N818 - a state of the world, not a mistake
    """No usable answer came: whether a write happened is unknown."""


class KubeClient:
    """Requests to one API server as one user."""

    def __init__(self, *, session: aiohttp.ClientSession, wire: Wire | None, who: Credentials) -> None:
        self._session, self._wire, self._who = session, wire, who
        self._server = yarl.URL(who.login.server)
        agent = session.headers["User-Agent"]
        self._head = f"Host: {self._server.authority}\r\nUser-Agent: {agent}\r\nAccept: {JSON}\r\n"

    @classmethod
    async def connect(cls, kubeconfig: Path | None, user_agent: str, *, limit: int = 64) -> Self:
        """Log in by a kubeconfig, or in-cluster without one; `limit` connections at most.

        Raises:
            CredentialsError: neither can be used.
        """
        who = await Credentials.load(kubeconfig)
        tls = credentials.tls(who.login)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=limit, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Inside a cluster packing a list costs the server more time than sending it.
            headers={"User-Agent": user_agent, "Accept": JSON, "Accept-Encoding": "identity"},
            read_bufsize=2**18,
        )
        return cls(session=session, wire=None if who.proxy else _wire(who.login, tls, limit), who=who)

    async def close(self) -> None:
        """Close every connection."""
        if self._wire is not None:
            self._wire.close()
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        content_type: str = JSON,
        timeout: float = 30.0,  # noqa: ASYNC109 - of the whole call, its waits included
        decode: bool = True,
    ) -> Any:
        """Send one request and return the decoded answer, or None where nobody wants it decoded.

        Raises:
            ApiError: the server said no, or "later" too often.
            Unreachable: no answer within the time.
        """
        url = self._url(path, params)
        data = b"" if body is None else orjson.dumps(body)
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        for attempt in range(1, TRIES + 1):
            try:
                payload = await self._send(method, url, data, content_type, deadline - clock())
            except ApiError as error:
                wait = _wait(error)
                if attempt == TRIES or wait is None or clock() + wait >= deadline:
                    raise
                await asyncio.sleep(wait)
            else:
                return _decode(payload, f"{method} {url}") if decode else None
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def stream(
        self,
        path: str,
        params: Params,
        *,
        idle_timeout: float = 90.0,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch: first an empty one once the server has accepted it.

        Raises:
            ApiError: the server refused the watch.
            Unreachable: the connection broke, or nothing came for `idle_timeout` seconds.
        """
        url = self._url(path, params)
        timeout = aiohttp.ClientTimeout(total=None, connect=idle_timeout, sock_read=idle_timeout)
        try:
            async with self._open("GET", url, b"", await self._headers(JSON), timeout) as response:
                if response.status != 200:  # noqa: PLR2004 - OK
                    raise self._error(await _read(response))
                yield b""
                async for line in _lines(response.content.iter_any()):
                    yield line
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"watch {path}: {error!r}") from error

    async def facts(self) -> dict[str, Any]:
        """Return current server and identity for a client that makes its own session."""
        await self._who.authorization()
        return self._who.facts()

    async def get_pod(self, namespace: str, name: str) -> Object:
        """Read a pod at quorum."""
        pod: Object = await self.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return pod

    async def bind(self, namespace: str, name: str, binding: Object) -> None:
        """Give a pod its node, and its annotations with it."""
        await self.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body=binding, decode=False)

    async def annotate_pod(self, pod: Object, annotations: Mapping[str, str]) -> None:
        """Set annotations of a pod, if it is still as it was read; else that is a 409."""
        metadata = pod["metadata"]
        same = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        await self.merge_patch(path, {"metadata": {**same, "annotations": dict(annotations)}})

    async def patch_pod_status(self, namespace: str, name: str, patch: Object) -> Object:
        """Patch a pod's status; lists such as conditions merge by their key."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        pod: Object = await self.request("PATCH", path, body=patch, content_type=STRATEGIC)
        return pod

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete a pod, if it is still the one with this UID; another one of its name is a 409."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        await self.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body=body, decode=False)

    async def evict_pod(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod, if it is still the one with this UID; a 429 if a PodDisruptionBudget forbids it for now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        await self.request("POST", path, body=body, decode=False)

    async def create_event(self, namespace: str, event: Object) -> None:
        """Post an events.k8s.io/v1 Event."""
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        await self.request("POST", path, body=event, decode=False)

    async def patch_event(self, namespace: str, name: str, patch: Object) -> None:
        """Patch an events.k8s.io/v1 Event."""
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events/{name}"
        await self.request("PATCH", path, body=patch, content_type=MERGE, decode=False)

    async def apply(self, path: str, body: Object, field_manager: str, *, force: bool = False) -> None:
        """Apply our fields of an object; a field that another manager owns is a 409 unless forced."""
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        await self.request("PATCH", path, params=params, body=body, content_type=APPLY, decode=False)

    async def merge_patch(self, path: str, body: Object) -> Object:
        """Patch an object by JSON merge patch."""
        patched: Object = await self.request("PATCH", path, body=body, content_type=MERGE)
        return patched

    def _url(self, path: str, params: Params | None) -> str:
        """Give path and query, as they are sent."""
        return self._server.path.rstrip("/") + path + ("?" + urlencode(params) if params else "")

    async def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Content-Type": content_type}
        authorization = await self._who.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        return headers

    def _open(
        self,
        method: str,
        url: str,
        data: bytes,
        headers: dict[str, str],
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        return self._session.request(
            method,
            self._server.join(yarl.URL(url, encoded=True)),
            data=data or None,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            proxy=self._who.proxy,
            server_hostname=self._who.login.server_name,
        )

    async def _send(self, method: str, url: str, data: bytes, content_type: str, seconds: float) -> bytes:
        if seconds <= 0:  # to aiohttp that would mean: for ever
            raise Unreachable(f"{method} {url}: no time left")
        try:
            headers = await self._headers(content_type)
            answer = await self._exchange(method, url, data, headers, seconds)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{method} {url}: {error!r}") from error
        if answer.status >= 300:  # noqa: PLR2004 - the API redirects nobody
            raise self._error(answer)
        return answer.payload

    async def _exchange(self, method: str, url: str, data: bytes, headers: dict[str, str], seconds: float) -> Answer:
        if self._wire is None:
            async with self._open(method, url, data, headers, aiohttp.ClientTimeout(total=seconds)) as response:
                return await _read(response)
        own = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {url} HTTP/1.1\r\n{self._head}{own}Content-Length: {len(data)}\r\n\r\n"
        return await self._wire.exchange(head.encode() + data, seconds)

    def _error(self, answer: Answer) -> ApiError:
        if answer.status == 401:  # noqa: PLR2004 - Unauthorized
            self._who.refused()
        return _error_of(answer)


def _wire(login: Login, tls: ssl.SSLContext, limit: int) -> Wire:
    server = yarl.URL(login.server)
    if server.host is None or server.port is None:
        raise CredentialsError(f'"{login.server}" is not the address of an API server; it looks like https://host:6443')
    return Wire(
        host=server.host,
        port=server.port,
        tls=tls if server.scheme == "https" else None,
        server_name=login.server_name,
        limit=limit,
    )


async def _read(response: aiohttp.ClientResponse) -> Answer:
    retry_after = response.headers.get("Retry-After")
    return Answer(status=response.status, retry_after=retry_after, payload=await response.read())


def _wait(error: ApiError) -> float | None:
    """Return the seconds to wait before the same request may be sent again, if it may."""
    later = error.status in {429, 503}
    return error.retry_after if later else None


def _decode(payload: bytes, request: str) -> Any:
    if not payload:
        return None
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise Unreachable(f"{request}: the answer is not JSON: {payload[:80]!r}") from error


def _error_of(answer: Answer) -> ApiError:
    seconds = float(answer.retry_after) if answer.retry_after and answer.retry_after.isdecimal() else None
    try:
        body = orjson.loads(answer.payload)
    except orjson.JSONDecodeError:  # in front of the API: a plain sentence, or a proxy's page
        told = answer.payload[:200].decode(errors="replace").strip()
        return ApiError(answer.status, "Unknown", told, seconds)
    fields = body if isinstance(body, dict) else {}
    return ApiError.of_status({**fields, "code": answer.status}, retry_after=seconds)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Split at newlines, whatever the length (aiohttp's own reader stops at its buffer's size)."""
    pending: list[bytes] = []
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pending.append(first)
        for start in others:
            line = b"".join(pending)
            pending = [start]
            if line:
                yield line
    # What is left has no newline: cut off. The watch goes on from the last whole line.
