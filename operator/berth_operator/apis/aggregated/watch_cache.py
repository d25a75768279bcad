"""The watch cache of one kind: its objects, and a history of recent changes from which watches continue.

The cache works like the API server's. Versions are resourceVersions, which grow with each change.

* There are no queues. Each watch has its place in one bounded history. A watch that does not keep up falls out of the
  history and ends with `Expired`. An object is serialized once, however many watches there are.
* If all objects are replaced, the changes in between are unknown. The history then begins again, and all watches end
  with `Expired`. Clients list again.
"""

import asyncio
import bisect
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final

from berth_client.reflector import EventType
from berth_operator.apis.aggregated.kinds import Entry, Key, Kind
from berth_operator.apis.aggregated.options import Selection
from berth_operator.apis.aggregated.statuses import expired, too_large, unavailable

HISTORY_BYTES: Final = 32 * 2**20
"""Bytes of the objects in the history. The history of one kind takes about as much memory."""
MAX_JOINED: Final = 16
"""Batches of changes whose frames are kept for other watches."""
WAIT_SECONDS: Final = 3.0
"""Seconds to wait for a version that is not known yet, as in the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheChange:
    """One change of an object."""

    type: EventType
    entry: Entry
    """The object after the change, or before its deletion. Its version is the change's version."""
    previous: Entry | None

    def seen_by(self, selection: Selection) -> EventType | None:
        """Return what a watch of a selection sees; None if the change does not concern it."""
        is_selected = self.type != "DELETED" and selection.matches(self.entry)
        was_selected = self.previous is not None and selection.matches(self.previous)
        if is_selected:
            return "MODIFIED" if was_selected else "ADDED"
        return "DELETED" if was_selected else None


class WatchCache:
    """Objects and history of one kind.

    Attributes:
        version: the cache has all changes up to this version; 0 before the first list.
        oldest: the history has all changes after this version.
    """

    def __init__(self, kind: Kind, *, history_bytes: int = HISTORY_BYTES) -> None:
        self.kind = kind
        self.version = self.oldest = 0
        self._entries: dict[Key, Entry] = {}
        self._history: deque[CacheChange] = deque()
        self._bytes, self._limit = 0, history_bytes
        self._first = 0
        """The place of the first change in the history; places only grow."""
        self._progress = asyncio.Event()
        self._joined: dict[Hashable, bytes] = {}
        """(place, number of changes, form) -> their frames, for the watches that see all objects."""

    # --- changes ------------------------------------------------------------------------------------------------

    def replace(self, entries: dict[Key, Entry], version: int) -> None:
        """Take the objects at a version. Earlier changes are unknown from now on."""
        self._entries = entries
        # One more than the last: a watch that has seen all changes ends, too.
        self._first += len(self._history) + 1
        self._history.clear()
        self._bytes = 0
        self.version = self.oldest = version
        self._notify()

    def put(self, event_type: EventType, entry: Entry) -> None:
        """Apply a change of an object, whose version is the version of the change."""
        self.record(event_type, entry)
        self.advance(entry.version)

    def advance(self, version: int) -> None:
        """Note that there are no other changes up to a version."""
        self.version = max(self.version, version)
        self._notify()

    def record(self, event_type: EventType, entry: Entry) -> None:
        """Take a change of several, which are complete with `advance`."""
        previous = self._entries.pop(entry.key, None)
        if event_type != "DELETED":
            self._entries[entry.key] = entry
        self._history.append(CacheChange(type=event_type, entry=entry, previous=previous))
        self._bytes += len(entry.body)
        self._joined.clear()
        while self._bytes > self._limit:
            gone = self._history.popleft()
            self._bytes -= len(gone.entry.body)
            self._first += 1
            self.oldest = gone.entry.version

    def _notify(self) -> None:
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    # --- readers ------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Entry | None:
        """Return an object; None if there is none."""
        return self._entries.get(key)

    def select(self, selection: Selection, version: int = 0) -> list[Entry]:
        """Return the selected objects by their places, as of a version of the history; 0 for the newest."""
        entries = self._entries if version in (0, self.version) else self._as_of(version)
        return sorted(filter(selection.matches, entries.values()), key=lambda entry: entry.place)

    def _as_of(self, version: int) -> dict[Key, Entry]:
        """Return the objects at a version, by undoing the later changes."""
        entries = self._entries.copy()
        for change in reversed(self._history):
            if change.entry.version <= version:
                break
            if change.previous is None:
                entries.pop(change.entry.key, None)
            else:
                entries[change.entry.key] = change.previous
        return entries

    async def wait_for(self, version: int) -> None:
        """Return once the cache has all changes up to a version.

        Raises:
            StatusError: that takes too long, or there has been no list yet.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self.version < max(version, 1):
                    await self._progress.wait()
        except TimeoutError:
            if not self.version:
                raise unavailable(f"{self.kind.plural} are not known yet") from None
            raise too_large(version, self.version) from None

    def end(self) -> int:
        """Return the place after the last change."""
        return self._first + len(self._history)

    def place_after(self, version: int) -> int:
        """Return the place of the first change after a version, which may still be to come.

        Raises:
            StatusError: the history does not reach back that far.
        """
        if version < self.oldest:
            raise expired(version, self.oldest)
        return self._first + bisect.bisect_right(self._history, version, key=lambda change: change.entry.version)

    def read(self, place: int, limit: int) -> Sequence[CacheChange]:
        """Return the changes from a place on, at most `limit`.

        Raises:
            StatusError: the history does not reach back that far.
        """
        if place < self._first:
            raise expired(self.oldest - 1, self.oldest)
        first = place - self._first
        # By number: most watches are near the end, to which an iterator would walk from the beginning.
        return [self._history[index] for index in range(first, min(first + limit, len(self._history)))]

    def joined(self, place: int, count: int, form: Hashable, join: Callable[[], bytes]) -> bytes:
        """Return the frames of changes from a place on, computed once for all watches of one form that see them all."""
        key = (place, count, form)
        if (frames := self._joined.get(key)) is None:
            if len(self._joined) >= MAX_JOINED:
                self._joined.clear()
            frames = self._joined[key] = join()
        return frames

    async def changed(self, seconds: float) -> None:
        """Return when there is another change or version, or after some seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._progress.wait()
        except TimeoutError:
            return
