"""Which keys of an object Berth wrote, by its field managers (`metadata.managedFields`).

In this field, the API server records which client wrote each key last. So a key of another program is never removed,
even if Berth would write the same key. For example, GPU Feature Discovery and Koordinator label Nodes with the same
names.
"""

from collections.abc import Iterable
from typing import Any, Final

from berth_api import names
from berth_client.objects import Object

MANAGERS: Final = frozenset({names.OPERATOR, names.AGENT, names.AGENT_LABELS})


def owned(obj: Object, *path: str) -> frozenset[str]:
    """Return the keys of a map, such as `metadata.labels`, that Berth wrote and no other manager claims."""
    return _keys(obj, path, ours=True) - _keys(obj, path, ours=False)


def unowned(obj: Object, *path: str) -> frozenset[str]:
    """Return the keys of a map that no manager claims, as after another client emptied `managedFields`."""
    fields: Any = obj
    for name in path:
        fields = fields.get(name) or {}
    return frozenset(fields) - _keys(obj, path, ours=True) - _keys(obj, path, ours=False)


def _keys(obj: Object, path: Iterable[str], *, ours: bool) -> frozenset[str]:
    keys: set[str] = set()
    for entry in obj["metadata"].get("managedFields") or ():
        if (entry.get("manager") in MANAGERS) is not ours:
            continue
        # In the form {"f:metadata": {"f:labels": {"f:<key>": {}}}}.
        fields: Any = entry.get("fieldsV1") or {}
        for name in path:
            fields = fields.get(f"f:{name}") or {}
        keys.update(key[2:] for key in fields if key.startswith("f:"))
    return frozenset(keys)
