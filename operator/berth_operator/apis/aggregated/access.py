"""Authenticate and authorize requests by asking the API server, as aggregated API servers do.

A request that the API server passes on names its user in headers (`X-Remote-User` and so on). These headers count only
if the connection has a client certificate that the front proxy's authority signed for an allowed name. The ConfigMap
`kube-system/extension-apiserver-authentication` contains the authority and the names. Any other request needs a bearer
token, which the API server reviews. There is no anonymous access here: the API server passes on its own anonymous user
by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import unquote

import orjson
from multidict import CIMultiDictProxy

from berth_client.objects import Object
from berth_client.reviews import Reviews, User
from berth_operator.apis.aggregated.statuses import forbidden, unauthorized

CONFIGURATION: Final = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
ANONYMOUS: Final = "system:anonymous"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"

Headers = CIMultiDictProxy[str]
PeerCertificate = Mapping[str, Any]
"""A certificate that TLS has verified, as `ssl.SSLSocket.getpeercert` returns it."""


class FrontProxyError(Exception):
    """The ConfigMap about the front proxy cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxy:
    """The program whose headers name users, which is the API server. Without an authority, there is none."""

    authorities: str = ""
    """PEM; TLS verifies client certificates by it."""
    allowed_names: frozenset[str] = frozenset()
    """Common names; without any, all that the authority has signed."""
    username: tuple[str, ...] = ()
    uid: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Prefixes of headers; the others are whole names."""

    @classmethod
    def of(cls, configuration: Object) -> Self:
        """Read the ConfigMap.

        Raises:
            FrontProxyError: a value is not what the API server writes.
        """
        data = configuration.get("data") or {}
        return cls(
            authorities=data.get("requestheader-client-ca-file", ""),
            allowed_names=frozenset(_listed(data, "requestheader-allowed-names")),
            username=_listed(data, "requestheader-username-headers"),
            uid=_listed(data, "requestheader-uid-headers"),
            group=_listed(data, "requestheader-group-headers"),
            extra=_listed(data, "requestheader-extra-headers-prefix"),
        )

    def user(self, headers: Headers, peer: PeerCertificate | None) -> User | None:
        """Return the user that the front proxy names; None if the request does not come from it."""
        if not self.authorities or not peer:
            return None
        names = {value for part in peer.get("subject", ()) for field, value in part if field == "commonName"}
        if self.allowed_names and self.allowed_names.isdisjoint(names):
            return None
        name = next((headers[header] for header in self.username if headers.get(header)), "")
        if not name:
            return None
        extra: dict[str, list[str]] = {}
        for header, value in headers.items():
            for prefix in self.extra:
                if header.lower().startswith(prefix.lower()):
                    extra.setdefault(unquote(header[len(prefix) :].lower()), []).append(value)
        groups = [group for header in self.group for group in headers.getall(header, ())]
        if name != ANONYMOUS and AUTHENTICATED not in groups and UNAUTHENTICATED not in groups:
            groups.append(AUTHENTICATED)  # the API server leaves out the group of all authenticated users
        return User(
            name=name,
            uid=next((headers[header] for header in self.uid if headers.get(header)), ""),
            groups=tuple(groups),
            extra=tuple(sorted((name, tuple(values)) for name, values in extra.items())),
        )


def _listed(data: Mapping[str, str], name: str) -> tuple[str, ...]:
    try:
        values = orjson.loads(data.get(name) or "[]")
    except orjson.JSONDecodeError as error:
        raise FrontProxyError(f"{name}: not JSON") from error
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise FrontProxyError(f"{name}: not a list of strings")
    return tuple(values)


class Access:
    """Authenticates and authorizes requests.

    All methods raise an `ApiError` if the API server refused a review, and `Unreachable` if it did not answer.
    """

    def __init__(self, *, front_proxy: FrontProxy, reviews: Reviews, group: str, version: str) -> None:
        """Create an access control of the resources of one group."""
        self._front_proxy, self._reviews = front_proxy, reviews
        self._group, self._version = group, version

    async def authenticate(self, headers: Headers, peer: PeerCertificate | None) -> User:
        """Return the user of a request.

        Raises:
            StatusError: the user is not known.
        """
        user = self._front_proxy.user(headers, peer)
        if user is None:
            scheme, _, token = headers.get("Authorization", "").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                user = await self._reviews.user(token.strip())
        if user is None:
            raise unauthorized("Unauthorized")
        return user

    async def check_path(self, user: User, path: str) -> None:
        """Check that a user may get a path.

        Raises:
            StatusError: the user may not.
        """
        if not await self._reviews.is_allowed(user, {"path": path, "verb": "get"}, of_resource=False):
            raise forbidden(f'forbidden: User "{user.name}" cannot get path "{path}"')

    async def check_resource(
        self, user: User, verb: str, resource: str, *, namespace: str, name: str, subresource: str = ""
    ) -> None:
        """Check that a user may send a request; `namespace` is empty for all, `name` if there may be several.

        Raises:
            StatusError: the user may not.
        """
        group = self._group
        attributes = {"group": group, "version": self._version, "resource": resource, "verb": verb}
        attributes |= {"namespace": namespace} if namespace else {}
        attributes |= {"name": name} if name else {}
        attributes |= {"subresource": subresource} if subresource else {}
        whole = f"{resource}/{subresource}" if subresource else resource
        if not await self._reviews.is_allowed(user, attributes, of_resource=True):
            subject = f'{resource}.{group} "{name}"' if name else f"{resource}.{group}"
            scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise forbidden(
                f'{subject} is forbidden: User "{user.name}" cannot {verb} resource "{whole}" '
                f'in API group "{group}" {scope}'
            )
