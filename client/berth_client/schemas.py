"""Omit fields from an apply if the API server's definition of the kind is older than the program and lacks them.

The API server refuses a server-side apply with an undeclared field, whatever `fieldValidation` says. It prunes
undeclared fields only from other writes. So the fields are omitted here, by the schema that the API server publishes.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

import structlog

from berth_client.errors import ApiError, CallError
from berth_client.objects import Object

UNDECLARED: Final = "field not declared in schema"
KEPT_SECONDS: Final = 600.0
"""Seconds for which a schema is used. Then an object is applied in full again, in case its definition was updated."""

Schema = Mapping[str, Any]

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger(__name__)


def is_undeclared(error: ApiError) -> bool:
    """Return whether an apply failed because the definition lacks a field."""
    return error.status == HTTPStatus.INTERNAL_SERVER_ERROR and UNDECLARED in error.message


class Schemas:
    """Schemas of the kinds whose definitions are older than the program. Most clusters have none."""

    def __init__(self, *, read: Callable[[str], Awaitable[Object]], clock: Callable[[], float]) -> None:
        """Create an empty collection; `read` reads a path of the API server, `clock` returns monotonic seconds."""
        self._read, self._clock = read, clock
        self._known: dict[str, tuple[float, Schema]] = {}
        """Kind -> when its schema expires, and the schema."""
        self._reported: dict[str, set[str]] = {}
        """Kind -> the fields that were reported as left out."""

    def is_outdated(self, kind: str) -> bool:
        """Return whether objects of a kind lack fields on the API server."""
        return kind in self._known

    def declared(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an object without the fields that its definition is known to lack; report new ones."""
        kind = body.get("kind", "")
        expires, schema = self._known.get(kind, (0.0, {}))
        if self._clock() >= expires:
            self._known.pop(kind, None)
            return body
        kept: Mapping[str, Any] = pruned(body, schema)
        reported = self._reported.setdefault(kind, set())
        if fresh := sorted({*undeclared(body, schema)} - reported):
            reported.update(fresh)
            _log.warning("the definition lacks fields, which are not written: apply crds/", kind=kind, fields=fresh)
        return kept

    async def learn(self, body: Mapping[str, Any], refused: ApiError) -> None:
        """Read the schema of an object's kind after the API server refused an apply.

        Raises:
            ApiError: what it refused, if the schema cannot be read now.
        """
        try:
            published = await self._read(f"/openapi/v3/apis/{body['apiVersion']}")
        except CallError as error:
            raise refused from error
        group, _, version = body["apiVersion"].rpartition("/")
        known_as = {"group": group, "version": version, "kind": body["kind"]}
        for schema in published["components"]["schemas"].values():
            if known_as in schema.get("x-kubernetes-group-version-kind", ()):
                self._known[body["kind"]] = self._clock() + KEPT_SECONDS, schema


def pruned(value: Any, schema: Schema) -> Any:
    """Return a value without what its schema does not declare."""
    if isinstance(value, list):
        return [pruned(item, schema.get("items", {})) for item in value]
    if not isinstance(value, dict):
        return value
    children = {name: _child(schema, name) for name in value}
    return {name: pruned(value[name], child) for name, child in children.items() if child is not None}


def undeclared(value: Any, schema: Schema, path: str = "") -> Iterator[str]:
    """Yield the path of each field of a value that its schema does not declare, such as `spec.devices[].links`."""
    if isinstance(value, list):
        for item in value:
            yield from undeclared(item, schema.get("items", {}), f"{path}[]")
    elif isinstance(value, dict):
        for name, item in value.items():
            field, child = f"{path}.{name}".removeprefix("."), _child(schema, name)
            if child is None:
                yield field
            else:
                yield from undeclared(item, child, field)


def _child(schema: Schema, name: str) -> Schema | None:
    """Return the schema of a field; empty if the field may have any value, None if there is no such field."""
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if name in properties:
        return properties[name]
    if not properties or schema.get("x-kubernetes-preserve-unknown-fields"):
        return schema["additionalProperties"] if isinstance(schema.get("additionalProperties"), dict) else {}
    return None
