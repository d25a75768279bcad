"""The kinds of objects that an aggregated API serves. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth_client.objects import Object

NAMESPACE_FIELD: Final = "metadata.namespace"
NAME_FIELD: Final = "metadata.name"
VERBS: Final = ("get", "list", "watch")

Key = tuple[str, str]
"""Namespace (empty for objects of the cluster) and name."""
Place = tuple[int, str]
"""Where lists have an object: by its rank, then by `<namespace>/<name>`, as the API server sorts."""
Cells = list[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An object in the form in which it is served."""

    key: Key
    version: int
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    """The fields that field selectors can select, with their values."""
    metadata: Object
    cells: Cells
    """Its row in a table, without the name."""
    body: bytes
    """The object as JSON."""
    rank: int = 0
    """Where lists have it, before its namespace and name decide."""

    @property
    def place(self) -> Place:
        """Return where lists have it."""
        return self.rank, "/".join(self.key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """One kind of object."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool
    fields: frozenset[str]
    """The fields that may be selected by."""
    columns: tuple[Mapping[str, Any], ...]
    """Columns of `kubectl get` after the name."""
    verbs: tuple[str, ...] = VERBS

    @property
    def api_version(self) -> str:
        """Return the group with the version."""
        return f"{self.group}/{self.version}"


def column(name: str, kind: str = "string", *, wide: bool = False) -> Mapping[str, Any]:
    """Return a column of `kubectl get`. A `wide` column is shown with `-o wide` alone."""
    return {"name": name, "type": kind, "format": "", "description": "", "priority": int(wide)}


CREATED: Final = column("Created At", "date")
