"""The OpenAPI documents. The API server merges them into its own, and `kubectl explain` shows them. Pure functions."""

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, NotRequired, Required, get_args, get_origin, get_type_hints, is_typeddict

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
_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


def of_type(of: Any, description: str = "") -> Schema:
    """Return the schema of a TypedDict, a list, a map from texts, or a value; `Annotated` has its description.

    Raises:
        KeyError: there is no schema for a type.
    """
    origin, arguments = get_origin(of), get_args(of)
    if origin in (NotRequired, Required):
        return of_type(*arguments)
    if origin is Annotated:
        return of_type(arguments[0], arguments[-1])
    if is_typeddict(of):
        fields = get_type_hints(of, include_extras=True)
        return {
            "type": "object",
            "description": description or inspect.cleandoc(of.__doc__),
            "properties": {name: of_type(field) for name, field in fields.items() if name != "metadata"},
        }
    schema: Schema = {"type": _TYPES[origin or of]}
    if description:
        schema["description"] = description
    if origin is list:
        schema["items"] = of_type(*arguments)
    elif origin is dict and arguments[1] is not Any:
        schema["additionalProperties"] = of_type(arguments[1])
    return schema


def documents(group: str, version: str, objects: Mapping[str, type], lists: Iterable[Kind]) -> dict[str, Schema]:
    """Return path -> document of a group. `objects` has the TypedDict of each kind, `lists` the listed kinds."""
    info = {"title": group, "version": version}
    definitions = {}
    for name, of in objects.items():
        schema = of_type(of)
        schema["properties"] |= _COMMON
        schema["x-kubernetes-group-version-kind"] = [{"group": group, "version": version, "kind": name}]
        definitions[f"{group}.{version}.{name}"] = schema
    path = f"{V3}/apis/{group}/{version}"
    # kubectl finds the schema of a resource in the paths of lists.
    paths = {}
    for kind in lists:
        operation = {
            "x-kubernetes-action": "list",
            "x-kubernetes-group-version-kind": {"group": kind.group, "version": kind.version, "kind": kind.name},
            "responses": {"200": {"description": "OK"}},
        }
        paths[f"/apis/{kind.api_version}/{kind.plural}"] = {"get": operation}
    of_group = {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": definitions}}
    digest = hashlib.sha256(orjson.dumps(of_group)).hexdigest()[:32]
    return {
        V2: {"swagger": "2.0", "info": info, "paths": {}, "definitions": definitions},
        V3: {"paths": {path.removeprefix(f"{V3}/"): {"serverRelativeURL": f"{path}?hash={digest}"}}},
        path: of_group,
    }
