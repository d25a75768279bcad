"""Names of objects, and keys of namespaced objects: `namespace/name`, as in client-go's caches."""

import re
from collections.abc import Mapping
from typing import Any, Final

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""What names of pods, nodes and namespaces look like."""


def join(namespace: str, name: str) -> str:
    """Return the key of an object."""
    return f"{namespace}/{name}"


def split(key: str) -> tuple[str, str]:
    """Return namespace and name of a key."""
    namespace, _, name = key.partition("/")
    return namespace, name


def of(obj: Mapping[str, Any]) -> str:
    """Return the key of an object as the API server sends it."""
    return join(obj["metadata"]["namespace"], obj["metadata"]["name"])


def name_of(obj: Mapping[str, Any]) -> str:
    """Return the name of an object as the API server sends it; the key of an object without a namespace."""
    return str(obj["metadata"]["name"])
