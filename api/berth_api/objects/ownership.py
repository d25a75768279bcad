"""Which fields of an object a field manager owns, by the object's `metadata.managedFields`.

The API server guarantees: a manager owns a field only as long as the field has the value that the manager applied last.
A client that changes or removes the field takes it from all other managers. So what a manager owns shows, without a
copy of what it wrote, whether an object still has its values.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import orjson

Object = Mapping[str, Any]
Fields = Mapping[str, Any]
"""A set of fields in the form of `fieldsV1`: `{"f:spec": {"f:devices": {'k:{"minor":0,"type":"gpu"}': ...}}}`."""
Path = tuple[str, ...]
"""The keys of `fieldsV1` from the object to one of its fields."""

NO_FIELDS: Final[Fields] = {}
KEYED: Final = frozenset({"f:devices", "f:conditions"})
"""Lists of our definitions whose items have owners of their own. All other lists are owned as a whole."""


class Applied(NamedTuple):
    """The fields that a manager owns by server-side apply."""

    main: Fields
    """Of the object without its subresources."""
    status: Fields
    """Of the subresource `status`."""


def applied(obj: Object, manager: str) -> Applied:
    """Return the fields of an object that a manager owns by server-side apply."""
    fields = {
        entry.get("subresource", ""): entry.get("fieldsV1") or NO_FIELDS
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("manager") == manager and entry.get("operation") == "Apply"
    }
    return Applied(fields.get("", NO_FIELDS), fields.get("status", NO_FIELDS))


def unowned(obj: Object, part: str, fields: Fields, *, only: Iterable[str]) -> Path | None:
    """Return the first field in a part of an object that is not among a manager's fields; None if all are.

    The part is `spec` or `status`, and `only` lists the fields in it that count.
    """
    value, name = obj.get(part) or {}, f"f:{part}"
    counted = {key: value[key] for key in only if key in value}
    return next(_unowned_in(counted, fields.get(name, NO_FIELDS), (name,)), None)


def owned_by_others(obj: Object, *, but: Collection[str], only: Mapping[str, Collection[str]]) -> Path | None:
    """Return the first of these fields that another manager owns, perhaps with the same value; None if there is none.

    `but` lists the managers that do not count, and `only` the fields by part of the object. Its metadata is enough.
    """
    for entry in obj["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1") or NO_FIELDS
        if entry.get("manager") not in but:
            for part, names in only.items():
                owned = fields.get(f"f:{part}", NO_FIELDS)
                if name := next((name for name in names if f"f:{name}" in owned), ""):
                    return f"f:{part}", f"f:{name}"
    return None


def condition_types(fields: Fields) -> set[str]:
    """Return the types of the conditions in a status of which a manager owns a field."""
    conditions = fields.get("f:status", NO_FIELDS).get("f:conditions", NO_FIELDS)
    return {str(orjson.loads(name[2:])["type"]) for name in conditions if name.startswith("k:")}


def others(obj: Object, *, but: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Yield the managers that own fields of the spec, or of the status except conditions, each with a field."""
    for entry in obj["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1") or NO_FIELDS
        paths = [(part, name) for part in ("f:spec", "f:status") for name in fields.get(part, NO_FIELDS)]
        path = next((path for path in paths if path[1].startswith("f:") and path[1] != "f:conditions"), None)
        if path is not None and entry.get("manager") not in but:
            yield str(entry["manager"]), path


def last_writer(obj: Object, path: Path | None, *, but: Collection[str]) -> str:
    """Return who wrote last of the managers that own a field, or of all without a field; empty if there is none.

    `but` lists the managers that do not count.
    """
    writers = [
        entry
        for entry in obj["metadata"].get("managedFields") or ()
        if entry.get("manager") not in but and _has(entry.get("fieldsV1") or NO_FIELDS, path or ())
    ]
    return str(max(writers, key=lambda entry: entry.get("time") or "")["manager"]) if writers else ""


def text(path: Path) -> str:
    """Return a field as messages name it: `spec.devices[minor=3,type=gpu].health`."""
    shown = ""
    for name in path:
        if name.startswith("k:"):
            keys = ",".join(f"{key}={value}" for key, value in orjson.loads(name[2:]).items())
            shown += f"[{keys}]"
        else:
            shown += f".{name.removeprefix('f:')}"
    return shown.removeprefix(".")


def _unowned_in(value: Any, fields: Fields, path: Path) -> Iterator[Path]:
    """Yield the fields of a value that are not among `fields`."""
    parts: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, Mapping):
        parts = ((f"f:{key}", part) for key, part in value.items())
    elif isinstance(value, list):
        parts = _keyed(value, fields)
    for name, part in parts:
        if name not in fields:
            yield (*path, name)
        # Without parts it is owned as a whole. An empty list of items stays owned when somebody adds an item.
        elif fields[name] or name in KEYED:
            yield from _unowned_in(part, fields[name], (*path, name))


def _keyed(items: list[Any], fields: Fields) -> Iterator[tuple[str, Any]]:
    """Yield each item of a list that is a map, with its name in `fields`; an item without one has a new name."""
    names = {tuple(orjson.loads(name[2:]).items()): name for name in fields if name.startswith("k:")}
    keys = [key for key, _ in next(iter(names), ())]
    for item in items:
        key = tuple((key, item.get(key)) for key in keys)
        yield names.get(key) or f"k:{orjson.dumps(dict(key)).decode()}", item


def _has(fields: Fields, path: Path) -> bool:
    for name in path:
        if name not in fields:
            return False
        fields = fields[name]
    return True
