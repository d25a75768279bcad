"""The watch cache of a kind whose objects are computed from custom resources and carry their resourceVersions.

If the API server no longer has Berth's version, which is rare, the custom resources are listed again. The changes in
between are then unknown.

Two GpuPods may name one pod. An older agent's GpuPod exists until the new agent deletes it. A false GpuPod of another
node exists until the operator deletes it. The API serves the GpuPod that was created first. So another node cannot
replace an object that is already served, and all replicas choose the same one.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import orjson
import structlog

from berth_api.values.caching import compact
from berth_client.objects import READING_ERRORS, Object
from berth_client.reflector import EventType
from berth_operator.apis.aggregated.kinds import Entry, Key
from berth_operator.apis.aggregated.watch_cache import HISTORY_BYTES, WatchCache
from berth_operator.apis.list_watch.kinds import SourcedKind

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class ReflectedCache(WatchCache):
    """Objects and history of one kind; the sink of a reflector."""

    def __init__(self, kind: SourcedKind, *, history_bytes: int = HISTORY_BYTES) -> None:
        super().__init__(kind, history_bytes=history_bytes)
        self._convert = kind.entry
        self._hidden: dict[Key, list[Entry]] = {}
        """Objects of further custom resources under a key, which are not served."""

    def listing(self, *, requested_at: float) -> "_Listing":  # noqa: ARG002 - of a sink
        """Begin a list of all custom resources."""
        return _Listing(self)

    def apply(self, event_type: EventType, obj: Object) -> None:
        """Take a change of a custom resource."""
        if (entry := self.read_object(obj)) is None:
            return
        served = self.get(entry.key)
        known = [*self._hidden.pop(entry.key, ()), *([served] if served else ())]
        others = [other for other in known if _uid(other) != _uid(entry)]
        if not others:
            self.put(event_type, entry)
            return
        first = self._first_of(entry.key, others if event_type == "DELETED" else [*others, entry])
        if first is entry:
            self.put(event_type, entry)
        elif first is served:
            self.advance(entry.version)
        else:
            # From this version on another object is served, as if it had changed now.
            metadata = {**first.metadata, "resourceVersion": str(entry.version)}
            body = compact(orjson.dumps({**orjson.loads(first.body), "metadata": metadata}))
            self.put("MODIFIED", replace(first, version=entry.version, metadata=metadata, body=body))

    def take(self, listed: dict[Key, list[Entry]], version: int) -> None:
        """Take the objects of all custom resources as of a version."""
        self._hidden.clear()
        self.replace({key: self._first_of(key, entries) for key, entries in listed.items()}, version)

    def _first_of(self, key: Key, entries: Sequence[Entry]) -> Entry:
        """Return the entry whose resource was created first, and hide the others."""
        first, *hidden = sorted(entries, key=lambda entry: (entry.metadata["creationTimestamp"], _uid(entry)))
        if hidden:
            self._hidden[key] = hidden
        return first

    def read_object(self, obj: Object) -> Entry | None:
        """Return the object of a custom resource; None, and a log line, if it violates its definition."""
        try:
            return self._convert(obj)
        except READING_ERRORS as error:
            # Definitions may have been looser when it was written; one such object must not end the program.
            metadata = obj["metadata"]
            where = {"namespace": metadata.get("namespace", ""), "name": metadata["name"]}
            log.warning("object not shown", resource=self.kind.plural, **where, error=repr(error))
            return None


class _Listing:
    """One list. The cache takes it when it is complete."""

    def __init__(self, cache: ReflectedCache) -> None:
        self._cache = cache
        self._entries: defaultdict[Key, list[Entry]] = defaultdict(list)

    def put(self, objects: list[Object]) -> None:
        for obj in objects:
            if (entry := self._cache.read_object(obj)) is not None:
                self._entries[entry.key].append(entry)

    def end(self, version: str, /) -> None:
        self._cache.take(self._entries, int(version))


def _uid(entry: Entry) -> str:
    """Return the UID of the custom resource behind an object."""
    return str(entry.metadata["uid"])
