"""Encode answers as bytes: objects, lists, tables for kubectl, and the frames of watches. Pure functions.

Frames are composed of objects that are already serialized.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal

import orjson

from berth_client.objects import Object
from berth_client.reflector import EventType
from berth_operator.apis.aggregated.chunks import Chunk
from berth_operator.apis.aggregated.kinds import Entry, Kind
from berth_operator.apis.aggregated.statuses import StatusError, bad_request

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
META: Final = "meta.k8s.io/v1"
BATCH: Final = 256
"""Objects in one part of a list, and objects or changes in one write of a watch."""
_TABLE: Final = {"as": "Table", "g": "meta.k8s.io", "v": "v1"}
_NAME: Final = {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0}
_ANY_JSON: Final = frozenset({"application/json", "application/*", "*/*"})

Included = Literal["None", "Metadata", "Object"]


def wants_table(accept: str) -> bool:
    """Return whether a client prefers tables, by its Accept header; quality values are not read.

    Raises:
        StatusError: the client takes no JSON.
    """
    for media in accept.split(",") if accept.strip() else ["*/*"]:
        name, *parameters = (part.strip() for part in media.split(";"))
        pairs = dict(part.partition("=")[::2] for part in parameters if not re.match(r"q=|charset=", part))
        if name in _ANY_JSON and not pairs:
            return False
        if name == "application/json" and pairs == _TABLE:
            return True
    raise StatusError(
        HTTPStatus.NOT_ACCEPTABLE,
        "NotAcceptable",
        "only the following media types are accepted: application/json, application/json;as=Table;g=meta.k8s.io;v=v1",
    )


@dataclass(frozen=True, slots=True)
class Form:
    """The form in which a client gets objects: unchanged, or as tables."""

    kind: Kind
    table: bool = False
    included: Included = "Metadata"
    """What a table has of each object."""

    def one(self, entry: Entry) -> bytes:
        """Return one object."""
        return self.many(Chunk(entries=[entry], version=entry.version)) if self.table else entry.body

    def many(self, chunk: Chunk) -> bytes:
        """Return a list."""
        return b"".join(self.parts(chunk))

    def parts(self, chunk: Chunk) -> Iterator[bytes]:
        """Yield a list in parts of `BATCH` objects, so that a caller can do other work in between."""
        entries, kind = chunk.entries, self.kind
        metadata: Object = {
            "resourceVersion": str(chunk.version),
            **({"continue": chunk.token} if chunk.token else {}),
            **({} if chunk.remaining is None else {"remainingItemCount": chunk.remaining}),
        }
        head: Object = {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": metadata}
        items = b"items"
        if self.table:
            head, items = self._head(metadata), b"rows"
        before = orjson.dumps(head)[:-1] + b',"' + items + b'":['
        for first in range(0, len(entries), BATCH):
            yield before + b",".join(map(self._item, entries[first : first + BATCH]))
            before = b","
        yield b"]}" if entries else before + b"]}"

    def _item(self, entry: Entry) -> bytes:
        """Return an object of a list, or its row in a table."""
        if not self.table:
            return entry.body
        included: Any = None
        if self.included == "Metadata":
            included = {"kind": "PartialObjectMetadata", "apiVersion": META, "metadata": entry.metadata}
        elif self.included == "Object":
            included = orjson.Fragment(entry.body)
        return orjson.dumps({"cells": [entry.metadata["name"], *entry.cells], "object": included})

    def event(self, event_type: EventType, entry: Entry) -> bytes:
        """Return a watch's frame of a change."""
        return _frame(event_type, self.one(entry))

    def bookmark(self, version: int, *, ends_state: bool = False) -> bytes:
        """Return a watch's frame that only has a version."""
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if ends_state:
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        bare: Object = {"kind": self.kind.name, "apiVersion": self.kind.api_version, "metadata": metadata}
        if self.table:
            row = {"cells": [], "object": {**bare, "kind": "PartialObjectMetadata", "apiVersion": META}}
            bare = {**self._head({"resourceVersion": str(version)}), "rows": [row]}
        return _frame("BOOKMARK", orjson.dumps(bare))

    def _head(self, metadata: Object) -> Object:
        columns = [_NAME, *self.kind.columns]
        return {"kind": "Table", "apiVersion": META, "metadata": metadata, "columnDefinitions": columns}


def form(kind: Kind, accept: str, include_object: str) -> Form:
    """Return the form that a client requests, by its Accept header and its parameter `includeObject`.

    Raises:
        StatusError: there is no such form.
    """
    for included in ("", "None", "Metadata", "Object"):
        if include_object == included:
            return Form(kind, wants_table(accept), included or "Metadata")
    raise bad_request(f'includeObject: "{include_object[:80]}"; allowed are None, Metadata, Object')


def error(failure: StatusError) -> bytes:
    """Return a watch's frame of a failure, after which the watch ends."""
    return _frame("ERROR", orjson.dumps(failure.status))


def _frame(frame_type: str, body: bytes) -> bytes:
    return b'{"type":"' + frame_type.encode() + b'","object":' + body + b"}\n"
