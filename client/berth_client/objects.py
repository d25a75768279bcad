"""Kubernetes objects as the API server sends them: decoded JSON."""

from typing import Any

Object = dict[str, Any]


def without_managed_fields(obj: Object) -> Object:
    """Remove `managedFields`, which no decision reads and which is often half of an object; return the object."""
    obj["metadata"].pop("managedFields", None)
    return obj
