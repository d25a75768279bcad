"""Parse JSON in the annotations of a pod. Errors name the annotation and the field."""

from collections.abc import Mapping
from typing import Any

import orjson

from berth_api.request.values import RequestError
from berth_api.values import spelling

Annotations = Mapping[str, str]
Body = dict[str, Any]


def body(annotations: Annotations, name: str, *allowed: str) -> Body | None:
    """Return the JSON object in an annotation, which may have the allowed fields; None without the annotation.

    Raises:
        RequestError: the text is not JSON, not an object, or has other fields.
    """
    if name not in annotations:
        return None
    try:
        parsed = orjson.loads(annotations[name])
    except orjson.JSONDecodeError as error:
        raise RequestError(f"annotation {name}: not JSON: {error}; {_form(allowed)}") from error
    if not isinstance(parsed, dict):
        raise RequestError(f"annotation {name}: not a JSON object; {_form(allowed)}")
    check_fields(parsed, f"annotation {name}", *allowed)
    return parsed


def _form(allowed: tuple[str, ...]) -> str:
    return f"allowed is an object with the fields {', '.join(allowed)}"


def check_fields(fields: Body, where: str, *allowed: str) -> None:
    """Raise RequestError for fields that are not allowed: they would have no effect."""
    if unknown := [key for key in fields if key not in allowed]:
        meant = spelling.closest(unknown[0], allowed)
        question = f"; did you mean {meant}?" if meant else ""
        raise RequestError(f'{where}: "{unknown[0]}"; allowed are {", ".join(allowed)}{question}')


def choice(fields: Body, where: str, name: str, *allowed: str) -> str:
    """Return a field, whose value must be allowed; an empty text if it is absent."""
    value = fields.get(name) or ""
    if value and value not in allowed:
        raise RequestError(f'{where}: {name} "{value}"; allowed are {", ".join(allowed)}')
    return str(value)
