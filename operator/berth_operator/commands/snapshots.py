"""Snapshot files of JSON lines: a header, then what is known about the operator, then one object on each line."""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import orjson

from berth_api.objects.visibility import OperatorSettings
from berth_operator.commands.effective import Served
from berth_operator.commands.errors import InputError
from berth_operator.state.watches.snapshot import KEPT, OPERATOR, Object, Snapshot, kept

HEAD: Final = {"kind": "BerthSnapshot", "version": 1}


def head() -> bytes:
    """Return the header line."""
    return orjson.dumps(HEAD) + b"\n"


def operator(settings: Mapping[str, Any], *, node_selector: str = "", now: float) -> bytes:
    """Return the line about the operator: the settings that it serves, empty if it serves none, and which nodes follow.

    `now` is when the snapshot is taken, in seconds since 1970.
    """
    about = {"metadata": {}, "takenAt": now, "nodeSelector": node_selector}
    return line(OPERATOR, {**about, "settings": settings} if settings else about)


def served(path: Path) -> Served:
    """Return the operator's settings that a file has.

    Raises:
        InputError: the file cannot be read, or is invalid.
    """
    for where, value in islice(_objects(path), 1):
        of, obj = _object(value, where)
        if of == OPERATOR and isinstance(settings := obj.get("settings"), dict):
            return Served(settings=cast("OperatorSettings", settings))
    return Served(why_not="the snapshot does not have them")


def line(of: str, obj: Object) -> bytes:
    """Return the line for an object, with the fields that scheduling reads."""
    return orjson.dumps({"of": of, "object": kept(of, obj)}) + b"\n"


def load(path: Path, into: Snapshot) -> None:
    """Load a file into a snapshot.

    Raises:
        InputError: the file cannot be read, or is invalid.
    """
    for where, value in _objects(path):
        of, obj = _object(value, where)
        put(into, of, obj, where)


def _objects(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (where, value) of each line after the header."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    lines = _lines(content, path)
    if next(lines, ("", None))[1] != HEAD:
        raise InputError(f"{path}: line 1: not a snapshot; it begins with {head().decode().strip()}")
    yield from lines


def put(into: Snapshot, of: str, obj: Object, where: str) -> None:
    """Add an object to a snapshot.

    Raises:
        InputError: the object is invalid.
    """
    try:
        into.put(of, obj)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{where}: cannot be read as one of the {of}: {error!r}") from error


def _lines(content: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    for number, text in enumerate(content.splitlines(), start=1):
        where = f"{path}: line {number}"
        try:
            yield where, orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InputError(f"{where}: not JSON: {error}") from error


def _object(value: Any, where: str) -> tuple[str, Object]:
    if not isinstance(value, dict) or not isinstance(value.get("object"), dict):
        raise InputError(f'{where}: not of the form {{"of": "nodes", "object": {{…}}}}')
    of = str(value.get("of"))
    if of not in KEPT:
        raise InputError(f'{where}: of: "{of}"; allowed: {", ".join(KEPT)}')
    return of, value["object"]
