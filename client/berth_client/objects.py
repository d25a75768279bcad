"""Kubernetes objects as the API server sends them: decoded JSON."""

from typing import Any, Final

Object = dict[str, Any]

READING_ERRORS: Final = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What parsers raise if an object does not have the expected fields.

The API server checks objects by the definition of their kind. Definitions of other projects and of other versions may
allow any JSON: a string or null in place of an object, missing fields, numbers that are too large, hundreds of levels.
"""


def without_managed_fields(obj: Object) -> Object:
    """Remove `managedFields`, which no decision reads and which is often half of an object; return the object."""
    obj["metadata"].pop("managedFields", None)
    return obj
