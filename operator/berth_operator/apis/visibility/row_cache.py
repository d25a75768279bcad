"""The watch cache of one kind of row. While there are clients, rows are rendered from the state once for all of them.

A version is the leader's term and a counter of the changes that this leader has rendered, so no other leader knows it.
Rendering yields to the scheduler every few milliseconds. A pause after it bounds the share of the loop's time that
rendering and sending take.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import orjson
import structlog

from berth_api.objects.visibility import API_VERSION
from berth_client.objects import Object
from berth_operator.apis.aggregated.kinds import NAME_FIELD, NAMESPACE_FIELD, Cells, Entry, Key
from berth_operator.apis.aggregated.options import Selection
from berth_operator.apis.aggregated.statuses import internal_error
from berth_operator.apis.aggregated.watch_cache import WatchCache
from berth_operator.apis.visibility.kinds import RowKind
from berth_operator.apis.visibility.slices import LoopTurns, Sending, Slices
from berth_operator.metrics import counters

COUNTER_BITS: Final = 33
"""Bits of a version for the counter. At 1,000 changes a second, the counter lasts for 100 days. The other bits hold
terms, which are seconds since 2025, until 2059."""
HISTORY_BYTES: Final = 8 * 2**20
KEPT_SECONDS: Final = 1.0
"""Age of the rows of a list at most, unless they take long to render."""
KEPT_SHARE: Final = 20.0
"""The same, as a multiple of what rendering all rows took."""
IDLE_SECONDS: Final = 600.0
"""Seconds after which rows that no request has read are dropped."""
PAUSES: Final = (1.0, 10.0)
"""Seconds between two renderings for watches."""
SHARE: Final = 60.0
"""The pause, as a multiple of the last rendering's time, and also of sending. For three kinds together, this is a tenth
of the loop's time."""
SECONDS_PER_BYTE: Final = 8e-9
"""Seconds to compose, encrypt and write one byte to a watch."""

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Row(NamedTuple):
    """A row as its source offers it."""

    key: Key
    anchor: object
    """What the row is rendered from: another object may mean another row."""
    stamp: object
    """The same, compared by value."""
    render: Callable[[], Mapping[str, Any] | None]
    """Returns the row; None if it is gone. The cache adds kind, version and `metadata.resourceVersion`."""


class Source(Protocol):
    """Where the rows of a kind come from."""

    kind: RowKind
    is_volatile: bool
    """Whether rows have fields that change with time alone. These fields are updated for lists, and for new watches."""

    def rows(self) -> Iterator[Row | None]:
        """Yield all rows in their order, and None where other work may be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    """A rendered row."""

    anchor: object
    stamp: object
    metadata: Object
    cells: Cells
    rank: int
    tail: bytes
    """The object as JSON, without kind, version and metadata."""


class RowCache(WatchCache):
    """Rows and their history.

    Attributes:
        sending: what its watches write through.
    """

    def __init__(self, source: Source, *, term: int, clock: Callable[[], float], turns: LoopTurns) -> None:
        super().__init__(source.kind, history_bytes=HISTORY_BYTES)
        self.version = self.oldest = term << COUNTER_BITS
        self.sending, self._turns = Sending(turns.writing), turns.rendering
        self._source, self._clock, self._kind = source, clock, source.kind
        self._rendered: dict[Key, _Rendered] = {}
        self._order: list[Key] = []
        self._has_rendered = self._has_failed = False
        self._rendering = asyncio.Lock()
        self._complete_at = -math.inf
        """When all rows were rendered last, with their volatile fields."""
        self._complete_cost = 0.0
        """Seconds that this took."""
        self._refreshing: set[asyncio.Task[None]] = set()
        self._watches = 0
        self._watched = asyncio.Event()
        self._renders = counters.VISIBILITY_RENDERS.labels(source.kind.plural)

    # --- readers ------------------------------------------------------------------------------------------------

    def select(self, selection: Selection, version: int = 0) -> list[Entry]:
        """Return the selected rows by their places, at a version. Rows of the newest version are already sorted."""
        if version not in (0, self.version):
            return super().select(selection, version)
        entries = [self._entries[key] for key in self._order]
        return entries if selection.is_everything else [entry for entry in entries if selection.matches(entry)]

    async def refresh(self) -> None:
        """Return once the rows are fresh; then no rendering is in progress, until the caller awaits something.

        Raises:
            StatusError: the last rendering failed.
        """
        if not self._is_fresh:
            # It goes on if the client leaves, since clients that come and go would have it begun again and again.
            refreshing = asyncio.create_task(self._refresh())
            self._refreshing.add(refreshing)
            refreshing.add_done_callback(self._refreshing.discard)
            await asyncio.shield(refreshing)
        # Another rendering may have begun meanwhile, and some of its changes are in the history already.
        async with self._rendering:
            pass
        if self._has_failed:
            raise internal_error(f"{self.kind.plural} cannot be shown; the log of the operator has the reason")

    @property
    def _is_fresh(self) -> bool:
        return self._clock() - self._complete_at < max(KEPT_SECONDS, KEPT_SHARE * self._complete_cost)

    async def _refresh(self) -> None:
        async with self._rendering:
            if not self._is_fresh:
                at = self._clock()
                self._complete_cost = await self._try_render(complete=True)
                self._complete_at = at

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count a watch: while there are any, the rows are rendered."""
        self._watches += 1
        self._watched.set()
        try:
            yield
        finally:
            self._watches -= 1
            if not self._watches:
                self._watched.clear()

    # --- rendering ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Render while there are watches, until cancelled."""
        shortest, longest = PAUSES
        while True:
            # Until there are watches, rows that no request reads are dropped.
            while not self._watches:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await self._watched.wait()
                async with self._rendering:
                    if not self._watches and self._clock() - self._complete_at >= IDLE_SECONDS:
                        self._drop()
            sent = self.sending.sent
            async with self._rendering:
                spent = await self._try_render(complete=False)
            await asyncio.sleep(min(longest, max(shortest, SHARE * spent)))
            # What watches were sent is known only now.
            rest = SHARE * (self.sending.sent - sent) * SECONDS_PER_BYTE - shortest
            await asyncio.sleep(min(longest, max(0.0, rest)))

    def _drop(self) -> None:
        self._rendered.clear()
        self._order, self._has_rendered, self._complete_at = [], False, -math.inf
        self.replace({}, self._next())

    async def _try_render(self, *, complete: bool) -> float:
        """Render; if that fails, drop all rows, which ends all watches. Return the seconds that it took."""
        slices = Slices(self._turns)
        try:
            self._renders.inc()
            order, is_first = dict[Key, None](), not self._has_rendered
            async for row in slices.of(self._source.rows()):
                if row is not None and row.key not in order and self._take(row, complete=complete, is_first=is_first):
                    order[row.key] = None
            # First: a rendering may be cancelled between two slices.
            self._order = list(order)
            async for key in slices.of(iter([key for key in self._rendered if key not in order])):
                self._remove(key)
            if is_first:
                # No client knows an earlier version of this leader.
                self.replace(self._entries, self._next())
                self._has_rendered = True
            self.advance(self.version)
        except Exception:
            # In the scheduler's process: a row that cannot be rendered must not end it.
            counters.VISIBILITY_FAILURES.labels("rendering").inc()
            log.exception("rows not rendered", resource=self.kind.plural)
            self._drop()
            self._has_failed = True
        else:
            self._has_failed = False
        return slices.spent

    def _take(self, row: Row, *, complete: bool, is_first: bool) -> bool:
        """Render a row unless it is unchanged; return whether it exists."""
        known = self._rendered.get(row.key)
        is_same = known is not None and known.anchor is row.anchor and known.stamp == row.stamp
        if is_same and not (complete and self._source.is_volatile):
            return True
        if (fields := row.render()) is None:
            return False
        body = dict(fields)
        metadata = body.pop("metadata")
        if known is not None and known.metadata.get("uid") != metadata.get("uid"):
            self._remove(row.key)
            known, is_same = None, False
        tail = orjson.dumps(body)[1:]
        cells, rank = self._kind.cells(body), self._kind.rank(body)
        rendered = _Rendered(anchor=row.anchor, stamp=row.stamp, metadata=metadata, cells=cells, rank=rank, tail=tail)
        self._rendered[row.key] = rendered
        if is_first:
            self._entries[row.key] = self._entry(row.key, rendered, self.version + 1)
        elif is_same or (known is not None and known.tail == tail):
            # Nothing but time has changed it, if anything: no event.
            self._entries[row.key] = self._entry(row.key, rendered, self._entries[row.key].version)
        else:
            self.record("ADDED" if known is None else "MODIFIED", self._entry(row.key, rendered, self._next()))
        return True

    def _remove(self, key: Key) -> None:
        rendered = self._rendered.pop(key)
        self.record("DELETED", self._entry(key, rendered, self._next()))

    def _next(self) -> int:
        """Return the version of the next change."""
        self.version += 1
        return self.version

    def _entry(self, key: Key, rendered: _Rendered, version: int) -> Entry:
        namespace, name = key
        metadata = {**rendered.metadata, "resourceVersion": str(version)}
        head = {"kind": self.kind.name, "apiVersion": API_VERSION, "metadata": metadata}
        return Entry(
            key=key,
            version=version,
            labels={},
            fields={NAME_FIELD: name, NAMESPACE_FIELD: namespace},
            metadata=metadata,
            cells=rendered.cells,
            rank=rendered.rank,
            body=orjson.dumps(head)[:-1] + b"," + rendered.tail,
        )
