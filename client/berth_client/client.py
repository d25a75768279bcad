"""The client of the API server: JSON in and out, bytes where a caller needs protobuf, and two kinds of failure.

* The server answered with an error: `ApiError`, with the content of its Status.
* The server did not answer, or not in time: `Unreachable`. A write may or may not have been executed, so this client
  never repeats it. The caller knows how to find out.

A request is sent again only if the server refused it temporarily (429, or 503 with Retry-After). In both cases, the
server has not executed the request. Retries stay within the call's own time, and within `tries` attempts.
"""

import asyncio
import contextlib
import copy
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode

import orjson

from berth_api.values import decoding
from berth_client import wire
from berth_client.agreement import Restores
from berth_client.connections import ConnectionPool, Response
from berth_client.endpoints import Endpoint
from berth_client.errors import ApiError, PageTooLarge, Unreachable
from berth_client.lists import PageLimit, StreamedLists, pages
from berth_client.objects import Object
from berth_client.proxy import authority
from berth_client.refusals import RefusedWrites
from berth_client.schemas import Schemas, is_undeclared
from berth_client.streams import StreamPool, lines
from berth_client.tokens import TokenSource
from berth_client.versions import Versions

TRIES: Final = 5
"""Maximum number of sends of one call. The usual Retry-After is one second."""
TIMEOUT_SECONDS: Final = 30.0
PAGE_BYTES: Final = 4 * 2**20
"""Bytes of a list's page that are read, unless a client has another bound; a usual page of pods has 2.5 MB."""
BEGINNINGS: Final = 3
"""How often a list begins whose continue token expires, which it does after five minutes."""
IDLE_SECONDS: Final = 90.0
"""A watch that is silent for this long may be broken: the server sends a bookmark about once a minute."""

JSON: Final = "application/json"
MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

IN_PATH: Final = "/:@!$&'()*+,;=~"
"""What a path has besides letters, digits and `_.-`; anything else is escaped, or it could begin another request."""

NO_ANSWER: Final = "<error>"
"""The code of a request that was not answered, as in client-go's metrics."""

T = TypeVar("T")
Params = Mapping[str, str]
Observe = Callable[[str, str, str, float], None]
"""Called with the host, method, code and seconds of a request."""


class ApiClient:
    """Requests to one API server as one user. Watches have their own connections."""

    def __init__(
        self,
        *,
        tokens: TokenSource,
        endpoint: Endpoint,
        user_agent: str,
        limit: int,
        watches: int,
        tries: int,
        timeout: float,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._tokens = tokens
        self._target = endpoint.target
        self._head = f"{endpoint.headers}User-Agent: {user_agent}\r\n"
        self._connections = ConnectionPool(endpoint, limit=limit)
        self._streams = StreamPool(endpoint, limit=watches)
        self._tries, self._timeout, self._page_bytes = tries, timeout, page_bytes
        self._host = authority(endpoint.host, endpoint.port)
        self.observe: Observe = _ignore
        """Called after each request that was sent, for metrics; must return at once."""
        self.versions = Versions()
        self.streamed_lists = StreamedLists()
        self.restores = Restores()
        """Noted by who finds that the API server shows an earlier state."""
        self.refused = RefusedWrites()
        """The writes that the API server refuses for good. Clients of one program may share it."""
        self.schemas = Schemas(read=self.get, clock=time.monotonic)
        """Schemas of the kinds whose definitions lack fields that we apply."""

    @classmethod
    def of(
        cls,
        tokens: TokenSource,
        *,
        user_agent: str,
        limit: int = 64,
        watches: int = 0,
        tries: int = TRIES,
        timeout: float = TIMEOUT_SECONDS,
        page_bytes: int = PAGE_BYTES,
    ) -> Self:
        """Return the client of a login.

        Args:
            tokens: the login and its token.
            user_agent: the User-Agent header; also the default field manager.
            limit: maximum number of connections for requests.
            watches: maximum number of connections for watches; 0 for the same number.
            tries: maximum number of sends of one call.
            timeout: seconds of a call, including its waits, unless the call sets its own.
            page_bytes: maximum number of bytes of a list's page with several objects. A single object is always read.

        Raises:
            CredentialsError: the login cannot be used.
        """
        endpoint = Endpoint.of(tokens.login)
        return cls(
            tokens=tokens,
            endpoint=endpoint,
            user_agent=user_agent,
            limit=limit,
            watches=watches or limit,
            tries=tries,
            timeout=timeout,
            page_bytes=page_bytes,
        )

    def with_token(self, token: Path) -> Self:
        """Return a client that sends the token of a file over this client's connections.

        Raises:
            OSError: the file cannot be read.
        """
        other = copy.copy(self)
        other._tokens = TokenSource(login=replace(self._tokens.login, token=token))  # noqa: SLF001 -- its own class
        return other

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._connections.close()

    # --- objects ----------------------------------------------------------------------------------------------

    async def get(self, path: str, params: Params | None = None) -> Object:
        """Read an object, or one page of a list, at quorum."""
        obj: Object = await self.request("GET", path, params=params)
        return obj

    async def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """Create an object."""
        obj: Object = await self.request("POST", path, body=body)
        return obj

    async def apply(self, path: str, body: Mapping[str, Any], field_manager: str, *, force: bool = False) -> Object:
        """Apply a manager's fields of an object; a field that another manager owns is a 409 unless forced.

        Fields that an older definition of the kind does not have are left out, and logged once.
        """
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        try:
            return await self._apply(path, params, body)
        except ApiError as error:
            if not is_undeclared(error):
                raise
            await self.schemas.learn(body, error)
        return await self._apply(path, params, body)

    async def _apply(self, path: str, params: Params, body: Mapping[str, Any]) -> Object:
        declared = self.schemas.declared(body)
        obj: Object = await self.request("PATCH", path, params=params, body=declared, content_type=APPLY)
        return obj

    async def merge_patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Patch an object that exists by JSON merge patch; costs the server a third of an apply."""
        obj: Object = await self.request("PATCH", path, body=body, content_type=MERGE)
        return obj

    async def json_patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> Object:
        """Patch an object that exists by JSON patch; a failed `test` is a 422."""
        obj: Object = await self.request("PATCH", path, body=operations, content_type=JSON_PATCH)
        return obj

    async def delete(self, path: str, *, uid: str, version: str = "", dry_run: bool = False) -> None:
        """Delete an object with this UID and, if given, this resourceVersion; otherwise the server answers 409."""
        preconditions = {"uid": uid, **({"resourceVersion": version} if version else {})}
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        if dry_run:
            body["dryRun"] = ["All"]
        await self.request("DELETE", path, body=body, decode=False)

    async def read_list(
        self, path: str, params: Params | None = None, *, read: Callable[[Object], T], accept: str = JSON
    ) -> tuple[list[T], str]:
        """Return what is needed of each object, and the version of the list.

        Args:
            path: the path of the collection.
            params: `fieldSelector`, `labelSelector`.
            read: called with each object, page by page; no page stays in memory.
            accept: media type, such as `METADATA_LIST`.
        """
        limit = PageLimit()
        for beginning in range(1, BEGINNINGS + 1):
            try:
                return await self._read_list(path, params or {}, read, accept, limit)
            except ApiError as error:
                if error.status != HTTPStatus.GONE or beginning == BEGINNINGS:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _read_list(
        self, path: str, params: Params, read: Callable[[Object], T], accept: str, limit: PageLimit
    ) -> tuple[list[T], str]:
        result: list[T] = []
        version = ""
        fetched = pages(lambda query: self.request("GET", path, params=query, accept=accept), params, limit)
        async with contextlib.aclosing(fetched):
            async for page in fetched:
                result += map(read, page["items"] or ())
                version = str(page["metadata"]["resourceVersion"])
                del page  # as in `pages`
        return result, version

    async def list(self, path: str, params: Params | None = None, *, accept: str = JSON) -> tuple[list[Object], str]:
        """Return all objects, and the version of the list; arguments as in `read_list`.

        If users may write the objects, call `read_list`: this one has no bound on memory.
        """
        return await self.read_list(path, params, read=lambda obj: obj, accept=accept)

    # --- requests ---------------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float | None = None,  # noqa: ASYNC109 - of the whole call, its waits included
        decode: bool = True,
    ) -> Any:
        """Send one request and return the decoded answer, or None without `decode`.

        Raises:
            ApiError: the server refused it, or was busy too often.
            PageTooLarge: it has a `limit` above 1, and the answer more bytes than are read.
            Unreachable: there is no answer within the timeout.
        """
        requested = self.versions.request(method, path, params)
        try:
            payload = await self._exchange(
                method, path, params, body=body, content_type=content_type, accept=accept, seconds=timeout
            )
        except ApiError as error:
            if method != "GET":
                self.refused.answered(method, path, error)
            raise
        if method != "GET":
            self.refused.answered(method, path, None)
        if not decode and requested is None:
            return None
        answer = _decode(payload, f"{method} {path}")
        if requested is not None:
            self.versions.compare(requested, answer)
        return answer if decode else None

    async def get_protobuf(self, path: str, params: Params | None = None) -> bytes:
        """Read an object, or a list, at quorum, in the API server's protobuf (`wire`); raises as `request`."""
        return await self._exchange("GET", path, params, accept=PROTOBUF)

    async def _exchange(
        self,
        method: str,
        path: str,
        params: Params | None,
        *,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        seconds: float | None = None,
    ) -> bytes:
        """Send one request, again while the server is busy, and return the answer's payload."""
        url = self._url(path, params)
        name = f"{method} {url}"
        request = await self._encode(method, url, body, content_type, accept)
        clock = asyncio.get_running_loop().time
        deadline = clock() + (self._timeout if seconds is None else seconds)
        for attempt in range(1, self._tries + 1):
            try:
                return await self._send(method, request, name, deadline - clock(), self._most(params))
            except ApiError as error:
                # Only a busy server is asked again, and only if it says when.
                is_busy = error.status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}
                wait = error.retry_after if is_busy else None
                if attempt == self._tries or wait is None or clock() + wait >= deadline:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def stream(
        self,
        path: str,
        params: Params,
        *,
        idle_timeout: float = IDLE_SECONDS,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch: first an empty one once the server has accepted it.

        Raises:
            ApiError: the server refused the watch.
            Unreachable: the connection broke, or nothing arrived for `idle_timeout` seconds.
        """
        request = await self._encode("GET", self._url(path, params), None, JSON, JSON)
        started, code = time.monotonic(), NO_ANSWER
        try:
            async with self._streams.open(request, idle_timeout) as stream:
                code = str(stream.status)
                self.observe(self._host, "GET", code, time.monotonic() - started)
                chunks = stream.chunks(idle_timeout)
                if stream.status != HTTPStatus.OK:
                    payload = b"".join([chunk async for chunk in chunks])
                    raise self._error(Response(status=stream.status, retry_after=stream.retry_after, payload=payload))
                yield b""
                async for line in lines(chunks):
                    yield line
                    del line  # as in `lines`
        except OSError as error:
            if code is NO_ANSWER:
                self.observe(self._host, "GET", code, time.monotonic() - started)
            raise Unreachable(f"watch {path}: no answer: {_text(error)}") from error

    def _url(self, path: str, params: Params | None) -> str:
        """Return the request target with its query."""
        return self._target + quote(path, safe=IN_PATH) + ("?" + urlencode(params) if params else "")

    def _most(self, params: Params | None) -> float:
        """Return the bytes of the answer that are read: a page with several objects may be asked for with fewer."""
        return self._page_bytes if int((params or {}).get("limit", "1")) > 1 else math.inf

    async def _send(self, method: str, request: bytes, name: str, seconds: float, most: float) -> bytes:
        if seconds <= 0:
            raise Unreachable(f"{name}: no time left")
        started, code = time.monotonic(), NO_ANSWER
        try:
            response = await self._connections.exchange(request, seconds, most)
            code = str(response.status)
        except PageTooLarge:
            code = str(HTTPStatus.OK.value)
            raise
        except OSError as error:
            raise Unreachable(f"{name}: no answer: {_text(error)}") from error
        finally:
            self.observe(self._host, method, code, time.monotonic() - started)
        if response.status >= HTTPStatus.MULTIPLE_CHOICES:  # the API server redirects no call
            raise self._error(response)
        return response.payload

    async def _encode(self, method: str, url: str, body: Any, content_type: str, accept: str) -> bytes:
        """Return a request as bytes, with the current token. A body of bytes is sent unchanged."""
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        authorization = await self._tokens.authorization()
        own = f"Authorization: {authorization}\r\n" if authorization else ""
        head = (
            f"{method} {url} HTTP/1.1\r\n{self._head}{own}Accept: {accept}\r\n"
            f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    def _error(self, response: Response) -> ApiError:
        if response.status == HTTPStatus.UNAUTHORIZED:
            self._tokens.refused()
        seconds = float(response.retry_after) if response.retry_after and response.retry_after.isdecimal() else None
        if response.payload.startswith(wire.MAGIC):
            return ApiError(response.status, *_status_of(response.payload), seconds)
        try:
            body = decoding.loads(response.payload)
        except orjson.JSONDecodeError:  # from a proxy or load balancer in front of the API server
            text = response.payload[:200].decode(errors="replace").strip()
            return ApiError(response.status, "Unknown", text, seconds)
        fields = body if isinstance(body, dict) else {}
        return ApiError.of_status({**fields, "code": response.status}, retry_after=seconds)


def _ignore(_host: str, _method: str, _code: str, _seconds: float) -> None:
    pass


def _text(error: OSError) -> str:
    return str(error) or type(error).__name__


def _decode(payload: bytes, name: str) -> Any:
    if not payload:
        return None
    try:
        return decoding.loads(payload)
    except orjson.JSONDecodeError as error:
        raise Unreachable(f"{name}: the answer is not JSON: {payload[:80]!r}") from error


def _status_of(payload: bytes) -> tuple[str, str]:
    """Return the reason and the message of a Status in protobuf."""
    try:
        status = wire.opened(payload)
        message, reason = (b"".join(wire.values(status, number)).decode(errors="replace") for number in (3, 4))
    except wire.WireError as error:
        return "Unknown", f"the answer is no Status: {error}"
    return reason or "Unknown", message
