"""The fields of values as `metadata.managedFields` has them, for API servers in memory."""

from collections.abc import Mapping
from typing import Any, Final

import orjson

Raw = dict[str, Any]

KEYS: Final = {"devices": ("minor", "type"), "conditions": ("type",)}
"""Lists whose items have owners of their own -> the keys of an item."""


def fields_of(value: Any, name: str = "") -> Raw:
    """Return the fields of a value, as `fieldsV1` has them."""
    if isinstance(value, Mapping):
        return {f"f:{key}": fields_of(part, key) for key, part in value.items()}
    if name in KEYS:
        return {key_of(name, item): {".": {}, **fields_of(item)} for item in value}
    return {}


def key_of(name: str, item: Raw) -> str:
    """Return the name of an item of a list in `fieldsV1`."""
    return f"k:{orjson.dumps({key: item[key] for key in KEYS[name]}).decode()}"
