"""One watch: the state first, then the changes, as frames.

A watch has no queue. When the client has read a frame, the watch writes the next one from the history.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from berth_operator.apis.aggregated import frames
from berth_operator.apis.aggregated.frames import BATCH, Form
from berth_operator.apis.aggregated.options import ListOptions
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.aggregated.watch_cache import CacheChange, WatchCache

BOOKMARK_SECONDS: Final = 30.0

Write = Callable[[bytes], Awaitable[None]]
"""Returns when the client can take more."""


class Watch:
    """One watch: its place in the history, and the version up to which the client knows all changes."""

    def __init__(self, cache: WatchCache, form: Form, wanted: ListOptions, *, seconds: float) -> None:
        """Begin a watch of `seconds`.

        Raises:
            StatusError: the history does not reach back to the client's version.
        """
        self._cache, self._form, self._wanted = cache, form, wanted
        self._state = cache.select(wanted.selection) if wanted.begins_with_state else []
        continues = wanted.version and not wanted.begins_with_state
        self._place = cache.place_after(wanted.version) if continues else cache.end()
        self._known = wanted.version if continues else cache.version
        self._clock = asyncio.get_running_loop().time
        self._ends_at = self._clock() + seconds
        self._bookmark_at = self._clock() + BOOKMARK_SECONDS

    async def run(self, write: Write) -> None:
        """Write the state and then changes, until the watch's time is over or the history has gone on without it."""
        state, self._state = self._state, []
        for first in range(0, len(state), BATCH):
            events = (self._form.event("ADDED", entry) for entry in state[first : first + BATCH])
            await self._send(write, b"".join(events))
        if self._wanted.initial_events and self._wanted.bookmarks:
            await self._send(write, self._form.bookmark(self._known, ends_state=True))
        try:
            while (left := self._ends_at - self._clock()) > 0:
                await self._send(write, self._next())
                if self._is_current:
                    await self._cache.changed(min(left, max(0.0, self._bookmark_at - self._clock())))
                else:
                    await asyncio.sleep(0)
            await self._send(write, self._bookmark())
        except StatusError as failure:
            await self._send(write, frames.error(failure))

    async def _send(self, write: Write, data: bytes) -> None:
        if data:
            await write(data)

    @property
    def _is_current(self) -> bool:
        return self._place == self._cache.end()

    def _next(self) -> bytes:
        """Return the frames of further changes, and a bookmark if it is due; empty if there is neither."""
        changes = self._cache.read(self._place, BATCH)
        events = self._events(changes) if changes else b""
        self._place += len(changes)
        if events:
            self._known = changes[-1].entry.version
        if self._clock() < self._bookmark_at:
            return events
        self._bookmark_at = self._clock() + BOOKMARK_SECONDS
        return events + self._bookmark()

    def _events(self, changes: Sequence[CacheChange]) -> bytes:
        """Return the frames of the changes at our place."""
        if not self._wanted.selection.is_everything or self._wanted.version >= changes[0].entry.version:
            return b"".join(map(self._event, changes))
        return self._cache.joined(self._place, len(changes), self._form, lambda: b"".join(map(self._event, changes)))

    def _event(self, change: CacheChange) -> bytes:
        """Return the frame of a change; empty if it does not concern this watch."""
        # A client may know a version of another replica that is ahead of this one.
        if self._wanted.version >= change.entry.version:
            return b""
        event_type = change.seen_by(self._wanted.selection)
        return b"" if event_type is None else self._form.event(event_type, change.entry)

    def _bookmark(self) -> bytes:
        """Return a bookmark, if the client wants any and has seen all changes up to a version that is new to it."""
        version = self._cache.version
        if not self._wanted.bookmarks or not self._is_current or version <= self._known:
            return b""
        self._known = version
        return self._form.bookmark(version)
