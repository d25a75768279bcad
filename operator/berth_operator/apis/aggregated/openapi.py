"""The OpenAPI documents, from which the API server composes its own; `kubectl explain` shows them. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from berth_operator.apis.aggregated.kinds import Kind

Schema = dict[str, Any]

V2: Final = "/openapi/v2"
V3: Final = "/openapi/v3"
_COMMON: Final[Schema] = {
    "apiVersion": {"type": "string", "description": "Version of this schema."},
    "kind": {"type": "string", "description": "Kind of this object."},
    "metadata": {"type": "object", "description": "Standard metadata."},
}


def of_text(description: str) -> Schema:
    """Return the schema of a text."""
    return {"type": "string", "description": description}


def of_number(description: str, *, whole: bool = True) -> Schema:
    """Return the schema of a number."""
    return {"type": "integer" if whole else "number", "description": description}


def of_flag(description: str) -> Schema:
    """Return the schema of a truth value."""
    return {"type": "boolean", "description": description}


def of_list(description: str, items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "description": description, "items": items}


def of_texts(description: str) -> Schema:
    """Return the schema of a list of texts."""
    return of_list(description, {"type": "string"})


def of_map(description: str, values: Schema) -> Schema:
    """Return the schema of an object whose keys are data."""
    return {"type": "object", "description": description, "additionalProperties": values}


def of_object(description: str, **properties: Schema) -> Schema:
    """Return the schema of an object."""
    return {"type": "object", "description": description, "properties": properties}


def documents(group: str, version: str, schemas: Mapping[str, Schema], lists: Iterable[Kind]) -> dict[str, Schema]:
    """Return path -> document of a group; `schemas` has the schema of each kind of object, `lists` what is listed."""
    info = {"title": group, "version": version}
    definitions = _definitions(group, version, schemas)
    path = f"{V3}/apis/{group}/{version}"
    of_group = {"openapi": "3.0.0", "info": info, "paths": _paths(lists), "components": {"schemas": definitions}}
    digest = hashlib.sha256(orjson.dumps(of_group)).hexdigest()[:32]
    return {
        V2: {"swagger": "2.0", "info": info, "paths": {}, "definitions": definitions},
        V3: {"paths": {path.removeprefix(f"{V3}/"): {"serverRelativeURL": f"{path}?hash={digest}"}}},
        path: of_group,
    }


def _definitions(group: str, version: str, schemas: Mapping[str, Schema]) -> Schema:
    return {
        f"{group}.{version}.{name}": {
            **schema,
            "properties": {**_COMMON, **schema["properties"]},
            "x-kubernetes-group-version-kind": [{"group": group, "version": version, "kind": name}],
        }
        for name, schema in schemas.items()
    }


def _paths(kinds: Iterable[Kind]) -> Schema:
    """Return the paths of lists, by which kubectl finds the schema of a resource."""
    paths = {}
    for kind in kinds:
        operation = {
            "x-kubernetes-action": "list",
            "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.name},
            "responses": {"200": {"description": "OK"}},
        }
        paths[f"/apis/{kind.api_version}/{kind.plural}"] = {"get": operation}
    return paths
