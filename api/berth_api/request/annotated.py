"""Reading JSON in a pod's annotations: what is wrong with it is told by its place."""

from collections.abc import Mapping
from typing import Any

import orjson

from berth_api.request.values import RequestError

Annotations = Mapping[str, str]
Body = dict[str, Any]


def body(annotations: Annotations, name: str, *allowed: str) -> Body | None:
    """Give the object in an annotation, which may have these fields; None where there is no such annotation.

    Raises:
        RequestError: it is not JSON, no object, or has other fields.
    """
    if name not in annotations:
        return None
    try:
        parsed = orjson.loads(annotations[name])
    except orjson.JSONDecodeError as error:
        raise RequestError(f"annotation {name}: not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise RequestError(f"annotation {name}: not a JSON object")
    check_fields(parsed, f"annotation {name}", *allowed)
    return parsed


def check_fields(fields: Body, where: str, *allowed: str) -> None:
    """Refuse fields that nobody would read."""
    if unknown := [key for key in fields if key not in allowed]:
        raise RequestError(f'{where}: "{unknown[0]}"; allowed are {", ".join(allowed)}')


def choice(fields: Body, where: str, name: str, *allowed: str) -> str:
    """Give a field that is one of these words; where it is left out, nothing."""
    value = fields.get(name) or ""
    if value and value not in allowed:
        raise RequestError(f'{where}: {name} "{value}"; allowed are {", ".join(allowed)}')
    return str(value)
