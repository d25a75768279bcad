"""A small synchronous client of one cluster's API server, based on the standard library.

It connects only to loopback, so a kubeconfig that a test inherits cannot make it reach a real cluster.
"""

import http.client
import ipaddress
import json
import re
import ssl
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

Manifest = dict[str, Any]

MANAGER: Final = "devcluster"
WORKERS: Final = 16
TIMEOUT_SECONDS: Final = 120.0
"""Of one request: the API server deletes a collection of hundreds of objects one by one."""
SHARED: Final = re.compile(
    r"(/api/v1/namespaces|/apis/(admissionregistration|apiextensions)\.k8s\.io/\w+/\w+)(/[^/]+)?"
)
"""Paths of what all users of a cluster meet: namespaces, policies, webhooks, definitions."""
DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
ETCD_TIMED_OUT: Final = "etcdserver: request timed out"
"""Message of a server error (500) after which the request may be executed or not."""
ETCD_TRIES: Final = 5
"""Requests until such an error is reported. Each waits 7 s for etcd, whose process had no processor that long."""
STALE: Final = (
    http.client.RemoteDisconnected,
    http.client.CannotSendRequest,
    BrokenPipeError,
    ConnectionResetError,
    ssl.SSLEOFError,
)


_CLIENTS: Final["weakref.WeakSet[Api]"] = weakref.WeakSet()


def close_idle() -> None:
    """Close the connections that all clients of this process keep for their next request."""
    for client in list(_CLIENTS):
        client.close()


class ApiError(Exception):
    """The API server refused a request; `status` is the HTTP code, `reason` the reason of the Status object."""

    def __init__(self, *, request: str, status: int, body: Manifest) -> None:
        self.status = status
        self.reason: str = body.get("reason", "")
        self.body = body
        super().__init__(f"{request}: {status} {self.reason}: {body.get('message', '')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One kind of object the API server serves."""

    prefix: str
    """`/api/v1` or `/apis/<group>/<version>`."""
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return self.prefix.split("/", 2)[2]

    def path(self, *, namespace: str | None = None, name: str | None = None) -> str:
        """Return the URL path of one object, or of all where no name is given."""
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.prefix}{scope}/{self.plural}" + (f"/{name}" if name else "")


class Api:
    """Requests to one API server, from any thread; connections are kept for the next request."""

    def __init__(self, *, server: str, token: str, ca: str) -> None:
        parts = urlsplit(server)
        host, port = parts.hostname, parts.port
        if host is None or port is None or not ipaddress.ip_address(host).is_loopback:
            raise ValueError(f"the API server {server} is not on loopback")
        self._host, self._port, self._token = host, port, token
        self._tls = ssl.create_default_context(cadata=ca)
        self._idle: deque[http.client.HTTPSConnection] = deque()
        self._resources: list[Resource] = []
        self.shared: set[str] = set()
        """Paths of the namespaces, policies, webhooks and definitions that this client has written, gone or not."""
        _CLIENTS.add(self)

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            self._idle.pop().close()

    def get(self, path: str, **query: str) -> Manifest:
        """Read one object or a list."""
        return self.request("GET", path, query=query)

    def is_ready(self) -> bool:
        """Return whether the API server reports that it is ready."""
        try:
            self.get("/readyz")
        except ApiError:
            return False
        return True

    def watch(self, path: str, *, version: str, seconds: int) -> Iterator[Manifest]:
        """Yield the events of a list's objects from a version on, until the API server ends it after some seconds."""
        query = urlencode({"watch": "true", "resourceVersion": version, "timeoutSeconds": str(seconds)})
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._tls)
        try:
            connection.request("GET", f"{path}?{query}", headers={"Authorization": f"Bearer {self._token}"})
            response = connection.getresponse()
            if response.status >= http.client.BAD_REQUEST:
                raise ApiError(request=f"WATCH {path}", status=response.status, body=_parse(response.read()))
            yield from map(json.loads, response)
        finally:
            connection.close()

    def exists(self, path: str) -> bool:
        """Return whether an object exists."""
        return self._unless_missing(lambda: self.get(path)) is not None

    def post(self, path: str, body: Mapping[str, Any]) -> Manifest:
        """Create one object."""
        return self.request("POST", path, body=body)

    def merge(self, path: str, body: Mapping[str, Any]) -> Manifest:
        """Change one object with a JSON merge patch."""
        return self.request("PATCH", path, body=body, content_type="application/merge-patch+json")

    def delete(self, path: str, *, grace_seconds: int | None = None, **query: str) -> None:
        """Delete one object or a collection; a missing object is no error."""
        body = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self._unless_missing(lambda: self.request("DELETE", path, body=body, query=query))

    def apply(self, manifest: Manifest, *, namespace: str | None = None) -> Manifest:
        """Create or update one object by server-side apply."""
        query = {"fieldManager": MANAGER, "force": "true"}
        path = self.path_of(manifest, namespace=namespace)
        return self.request("PATCH", path, body=manifest, query=query, content_type="application/apply-patch+yaml")

    def create_all(self, path: str, manifests: Iterable[Mapping[str, Any]]) -> list[Manifest]:
        """Create many objects of one kind, several at a time, and return them in order."""
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(lambda manifest: self.post(path, manifest), manifests))

    def path_of(self, manifest: Manifest, *, namespace: str | None = None) -> str:
        """Return the URL path of the object that a manifest describes."""
        resource = self.resource(manifest["kind"], api_version=manifest["apiVersion"])
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace") or namespace or "default"
        return resource.path(namespace=namespace, name=metadata["name"])

    def resource(self, name: str, *, api_version: str | None = None) -> Resource:
        """Find what is served under a plural name or a kind; the core group comes first."""
        for _ in range(2):
            for resource in self._resources:
                if name in (resource.plural, resource.kind) and api_version in (None, resource.api_version):
                    return resource
            # Perhaps its CRD is newer than what was read before.
            self._resources = self._discover()
        raise LookupError(f"the API server serves no {name} of {api_version or 'any group'}")

    def resources(self) -> list[Resource]:
        """Return all kinds that are served now."""
        self._resources = self._discover()
        return self._resources

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Manifest:
        """Send one request and return the answer's JSON; raise ApiError where it is refused."""
        return self._request(method, path, body=body, query=query, content_type=content_type, accept=accept)[0]

    def warnings(
        self, method: str, path: str, *, body: Mapping[str, Any], query: Mapping[str, str] | None = None
    ) -> list[str]:
        """Send one request and return the warnings of the API server; raise ApiError where it is refused."""
        response = self._request(method, path, body=body, query=query)[1]
        # 299 - "text", with backslashes before quotes
        texts = [value.split(" ", 2)[2] for value in response.headers.get_all("Warning") or ()]
        return [json.loads(text) for text in texts]

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[Manifest, http.client.HTTPResponse]:
        url = f"{path}?{urlencode(query)}" if query else path
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type, "Accept": accept}
        text = None if body is None else json.dumps(body)
        response, data = self._send(method, url, text, headers)
        tries = 1
        while (
            response.status == http.client.INTERNAL_SERVER_ERROR
            and ETCD_TIMED_OUT in _parse(data).get("message", "")
            and tries < ETCD_TRIES
        ):
            response, data = self._send(method, url, text, headers)
            tries += 1
        answer = _parse(data)
        if method == "POST" and tries > 1 and answer.get("reason") == "AlreadyExists" and body is not None:
            # An earlier try has created it.
            response, data = self._send("GET", f"{path}/{body['metadata']['name']}", None, headers)
            answer = _parse(data)
        if response.status >= http.client.BAD_REQUEST:
            raise ApiError(request=f"{method} {path}", status=response.status, body=answer)
        if method in ("POST", "PATCH") and SHARED.fullmatch(path) and "dryRun" not in (query or {}):
            self.shared.add(path if method == "PATCH" else f"{path}/{answer['metadata']['name']}")
        return answer, response

    def _send(
        self, method: str, url: str, body: str | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        try:
            return self._exchange(method, url, body, headers)
        except STALE:
            # The server closed the kept connection while it was idle; nothing was processed.
            self.close()
            return self._exchange(method, url, body, headers)

    def _exchange(
        self, method: str, url: str, body: str | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = self._connection()
        try:
            connection.request(method, url, body, headers)
            response = connection.getresponse()
            answer = response, response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer

    def _connection(self) -> http.client.HTTPSConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return http.client.HTTPSConnection(self._host, self._port, context=self._tls, timeout=TIMEOUT_SECONDS)

    def _discover(self) -> list[Resource]:
        resources = []
        for root in ("/api", "/apis"):
            for group in self.request("GET", root, accept=DISCOVERY)["items"]:
                name = group.get("metadata", {}).get("name")
                base = f"{root}/{name}" if name else root
                resources += [
                    Resource(
                        prefix=f"{base}/{version['version']}",
                        plural=resource["resource"],
                        kind=resource["responseKind"]["kind"],
                        namespaced=resource["scope"] == "Namespaced",
                    )
                    for version in group["versions"]
                    for resource in version.get("resources", [])
                ]
        return resources

    @staticmethod
    def _unless_missing(call: Callable[[], Manifest]) -> Manifest | None:
        try:
            return call()
        except ApiError as error:
            if error.status != http.client.NOT_FOUND:
                raise
            return None


def _parse(data: bytes) -> Manifest:
    try:
        answer = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace")}
    return answer if isinstance(answer, dict) else {"message": str(answer)}
