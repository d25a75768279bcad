"""The requests that are served. Every other request is refused.

Paths are compared as they are sent, including encoded characters, so no encoding can hide anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

from berth_kubectl.transport.request import Request

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_NAME: Final = rf"(?=[^/]{{1,253}}(?:/|\Z)){_LABEL}(?:\.{_LABEL})*"
"""A DNS subdomain, as names of pods are."""
VIEWS: Final = re.compile(rf"/(?:queue|holders|health|pods/{_LABEL}/{_NAME})?")
BASE: Final = "/apis/visibility.berth.dev/v1alpha1"
LISTS: Final = re.compile(rf"{re.escape(BASE)}/(?:fleet|(?:namespaces/{_LABEL}/)?(?:queue|holders))")
EXPLANATIONS: Final = re.compile(rf"{re.escape(BASE)}/namespaces/{_LABEL}/pods/{_NAME}/explanation")
FILES: Final = "/page/"

_FIELD: Final = r"metadata\.(?:name|namespace)=[-.a-z0-9]{1,253}"
_BOOLEAN: Final = re.compile(r"true|false|1|0")
PARAMETERS: Final = {
    "watch": _BOOLEAN,
    "allowWatchBookmarks": _BOOLEAN,
    "sendInitialEvents": _BOOLEAN,
    "resourceVersion": re.compile(r"[0-9]{0,20}"),
    "resourceVersionMatch": re.compile(r"NotOlderThan|Exact"),
    "timeoutSeconds": re.compile(r"[0-9]{1,4}"),
    "fieldSelector": re.compile(rf"{_FIELD}(?:,{_FIELD})?"),
}
"""Query parameter of a list -> the values that are relayed."""
TRUE: Final = frozenset({"true", "1"})


class RefusedError(Exception):
    """The dashboard itself answers a request with an error."""

    def __init__(self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Create the error with the parts of its answer."""
        super().__init__(message)
        self.status, self.headers = status, headers or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """The page; its script chooses the view by the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """A file of the page."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the page is about: cluster, namespace, version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """The findings of `kubectl berth doctor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """A request for the API server."""

    request: Request
    watch: bool = False


Route = PageView | PageFile | Context | Doctor | Relayed


def route(target: str) -> Route:
    """Return what a request's target (path and query) asks for.

    Raises:
        RefusedError: it is not served.
    """
    path, _, query = target.partition("?")
    if VIEWS.fullmatch(path):
        return PageView()
    if path.startswith(FILES):
        return PageFile(path=path.removeprefix(FILES))
    if LISTS.fullmatch(path):
        try:
            given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=len(PARAMETERS))
        except ValueError as error:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "the query cannot be read") from error
        values = dict(given)
        if len(values) < len(given):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "a query parameter is repeated")
        for name, value in given:
            allowed = PARAMETERS.get(name)
            if allowed is None:
                message = f"the dashboard does not relay this query parameter; it relays {', '.join(PARAMETERS)}"
                raise RefusedError(HTTPStatus.BAD_REQUEST, message)
            if not allowed.fullmatch(value):
                raise RefusedError(HTTPStatus.BAD_REQUEST, f"{name} has a value that the dashboard does not relay")
        return Relayed(request=Request(path=path, query=tuple(given)), watch=values.get("watch") in TRUE)
    alone: dict[str, Route] = {"/api/context": Context(), "/api/doctor": Doctor()}
    explained = Relayed(request=Request(path=path)) if EXPLANATIONS.fullmatch(path) else None
    found = explained or alone.get(path)
    if found is None:
        raise RefusedError(HTTPStatus.NOT_FOUND, "the dashboard does not serve this path")
    if query:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "this path takes no query")
    return found


def token(target: str) -> str:
    """Return the token of `/?token=…`; empty if there is none."""
    path, _, query = target.partition("?")
    if path != "/" or not query.startswith("token="):
        return ""
    return query.removeprefix("token=").partition("&")[0]
