"""Return one chunk of a list or the whole list (`limit` and `continue`, as on the API server). Pure functions.

The server stores nothing for a client between two chunks. The history of the cache restores the version of the first
chunk.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from berth_operator.apis.aggregated.continuation import Continuation
from berth_operator.apis.aggregated.kinds import Entry
from berth_operator.apis.aggregated.options import EXACT, ListOptions
from berth_operator.apis.aggregated.statuses import expired
from berth_operator.apis.aggregated.watch_cache import WatchCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Objects of a list, and how it continues."""

    entries: Sequence[Entry]
    version: int
    """The version of the whole list."""
    token: str = ""
    """The token with which the client gets the next chunk; empty for the last chunk."""
    remaining: int | None = None
    """Objects after this chunk; None for the last chunk and, as in the API server, for lists with selectors."""

    @classmethod
    def of(cls, cache: WatchCache, wanted: ListOptions) -> Self:
        """Return the chunk that a client wants.

        Raises:
            StatusError: the cache does not know the version, or no longer.
        """
        continuation, version = wanted.continuation, wanted.version if wanted.match == EXACT else cache.version
        if not cache.oldest <= version <= cache.version:
            raise continuation.expired() if continuation else expired(version, cache.oldest)
        entries = cache.select(wanted.selection, version)
        first = bisect.bisect_right(entries, continuation.after, key=lambda entry: entry.place) if continuation else 0
        end = first + wanted.limit if wanted.limit else len(entries)
        if end >= len(entries):
            return cls(entries=entries[first:], version=version)
        token = Continuation(version=version, after=entries[end - 1].place).encode()
        remaining = None if wanted.selection.has_selectors else len(entries) - end
        return cls(entries=entries[first:end], version=version, token=token, remaining=remaining)
