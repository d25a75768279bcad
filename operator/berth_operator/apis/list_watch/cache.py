"""The watch cache of a kind whose objects are computed from custom resources; their versions are those of the cluster.

After a new list of the custom resources (rare: the API server no longer had our version) the changes in between are not
known.
"""

import structlog

from berth_client.objects import Object
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

    def listing(self, *, requested_at: float) -> "_Listing":  # noqa: ARG002 - of a sink
        """Begin a list of all custom resources."""
        return _Listing(self)

    def apply(self, event_type: EventType, obj: Object) -> None:
        """Take a change of a custom resource."""
        if (entry := self.read_object(obj)) is not None:
            self.put(event_type, entry)

    def read_object(self, obj: Object) -> Entry | None:
        """Return the object of a custom resource; None, and a log line, if it is not one by its definition."""
        try:
            return self._convert(obj)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            # Definitions may have been looser when it was written; one such object must not end the program.
            metadata = obj["metadata"]
            where = {"namespace": metadata.get("namespace", ""), "name": metadata["name"]}
            log.warning("object not shown", resource=self.kind.plural, **where, error=repr(error))
            return None


class _Listing:
    """One list; the cache takes it when it is complete."""

    def __init__(self, cache: ReflectedCache) -> None:
        self._cache = cache
        self._entries: dict[Key, Entry] = {}

    def put(self, objects: list[Object]) -> None:
        for obj in objects:
            if (entry := self._cache.read_object(obj)) is not None:
                self._entries[entry.key] = entry

    def end(self, version: str, /) -> None:
        self._cache.replace(self._entries, int(version))
