"""Computed answers about claims for each node, cached until something changes there.

For each kind of requested device, a column has how many devices a node may give. For each request, the cache stores why
the search on a node found nothing.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from berth_operator.core.claims.bounds.changes import ChangeLog
from berth_operator.core.claims.bounds.kept import Kept
from berth_operator.core.claims.matching.selected import Selectors
from berth_operator.core.claims.objects.amounts import ExactQuantity
from berth_operator.core.fleet.arrays.copies import with_own

MAX_KINDS: Final = 4_096
MAX_BYTES: Final = 32 * 2**20
"""Memory for counts; a few kinds are kept in any case."""
BYTES: Final = 20
"""Bytes of one row in the counts of a kind."""
COPIED_KINDS: Final = 64
MAX_REQUESTS: Final = 32
"""Requests whose refusals are kept in any case. A request may have one refusal for each node."""
MAX_CHANGED: Final = 50_000
"""Nodes whose changes are kept, most of which do not exist any more. Then everything is computed again."""
MAX_REFUSALS: Final = 160_000
"""Refusals that are kept."""

_COLUMNS: Final = ("devices", "possible", "divided", "shared", "invalid", "cost")

Mask = npt.NDArray[np.bool_]
Hundredths = npt.NDArray[np.int32]


class DeviceKind(NamedTuple):
    """What is requested of a device, except how many."""

    selectors: Selectors
    wants_all: bool
    admin: bool
    capacity: tuple[tuple[str, ExactQuantity], ...] = ()
    """What it requests of the capacities of a shared device, by name."""


class DeviceCounts:
    """How many devices of a kind each row may give, as an upper bound, and the cost of giving one."""

    def __init__(self, rows: int, seen: int = 0) -> None:
        self.devices = np.zeros(rows, np.int32)
        self.possible = np.zeros(rows, np.int32)
        """The same if nothing there were held."""
        self.divided: Mask = np.zeros(rows, np.bool_)
        """Rows with a device whose counters other devices have overdrawn. Releasing one of those devices may free
        several."""
        self.shared: Mask = np.zeros(rows, np.bool_)
        """Rows with a device that may serve several requests of one pod."""
        self.invalid: Mask = np.zeros(rows, np.bool_)
        """Rows with an invalid pool, whichever devices it has."""
        self.cost: Hundredths = np.zeros(rows, np.int32)
        """The least that taking a device of the kind costs on each row, in hundredths of a device: `dra.stock`."""
        self.stale: set[str] | None = None
        """Nodes that are not counted, or changed since; None for all."""
        self.seen = seen
        """The changes of nodes that it knows of."""

    def fit(self, rows: int) -> None:
        """Enlarge to a number of rows."""
        if (more := rows - len(self.devices)) > 0:
            for name in _COLUMNS:
                setattr(self, name, np.pad(getattr(self, name), (0, more)))

    def copy(self) -> Self:
        """Return an independent copy."""
        stale = None if self.stale is None else self.stale.copy()
        columns = {name: getattr(self, name).copy() for name in _COLUMNS}
        return with_own(self, **columns, stale=stale)


@dataclass(slots=True, kw_only=True)
class SearchRefusals:
    """Why claims of a request cannot be allocated."""

    everywhere: str = ""
    """What is wrong with a claim or a class, on any node."""
    by_node: dict[str, str] = field(default_factory=dict)
    """Node -> error that ended the search there; empty if the search found nothing."""
    doublings: dict[str, int] = field(default_factory=dict)
    """Node -> how often the bound of the next search there is doubled, because the last one ended at its bound."""
    seen: int = 0
    """The changes of nodes that it knows of."""

    def copy(self) -> "SearchRefusals":
        """Return an independent copy."""
        return SearchRefusals(
            everywhere=self.everywhere, by_node=self.by_node.copy(), doublings=self.doublings.copy(), seen=self.seen
        )

    def drop(self, node: str) -> None:
        """Drop the results for a node."""
        self.by_node.pop(node, None)
        self.doublings.pop(node, None)

    def go_on(self, most: int) -> bool:
        """Resume searches that ended at a bound which was doubled at most this often; return whether there was one."""
        ended = [node for node, doublings in self.doublings.items() if node in self.by_node and doublings <= most]
        for node in ended:
            del self.by_node[node]
        return bool(ended)


class Answers:
    """All that was computed."""

    def __init__(self) -> None:
        self._counts: Kept[DeviceKind, DeviceCounts] = Kept(lambda counts: counts.stale is None or bool(counts.stale))
        self._refusals: Kept[Hashable, SearchRefusals] = Kept()
        self._changes: ChangeLog[str] = ChangeLog()
        """The nodes for which something changed."""
        self._ended: dict[Hashable, None] = {}
        """Requests with a search that ended at its bound."""

    def counts(self, kind: DeviceKind, rows: int) -> DeviceCounts | None:
        """Return the counts of a kind, to be updated; None if there is no memory until others are up to date."""
        most = max(COPIED_KINDS, min(MAX_KINDS, MAX_BYTES // (BYTES * (rows + 1))))
        counts = self._counts.use(kind, lambda: DeviceCounts(rows, self._changes.now), most)
        if counts is not None:
            counts.fit(rows)
            if counts.stale is not None:
                counts.stale.update(self._changes.since(counts.seen))
            counts.seen = self._changes.now
        return counts

    def refusals(self, request: Hashable, nodes: int) -> SearchRefusals:
        """Return the refusals of a request, to look up and to add to. There is at most one for each of `nodes`."""
        most = max(MAX_REQUESTS, min(MAX_KINDS, MAX_REFUSALS // (nodes + 1)))
        refusals = self._refusals.use(request, SearchRefusals, most)
        assert refusals is not None  # noqa: S101 - all of them may be replaced
        if refusals.by_node or refusals.doublings:
            for node in self._changes.since(refusals.seen):
                refusals.drop(node)
        refusals.seen = self._changes.now
        return refusals

    def drop(self, node: str) -> None:
        """Drop the results for a node."""
        if self._counts or self._refusals:
            self._changes.note(node)
            if len(self._changes) > MAX_CHANGED:
                self.drop_all()

    def search_ended(self, request: Hashable) -> None:
        """Note that a search for a request ended at its bound."""
        if len(self._ended) < MAX_KINDS:
            self._ended[request] = None

    def go_on(self, most: int) -> Hashable | None:
        """Return a request whose searches continue, after `SearchRefusals.go_on`; None if there is none."""
        while self._ended:
            request = next(iter(self._ended))
            del self._ended[request]
            refusals = self._refusals.peek(request)
            if refusals is not None and refusals.go_on(most):
                return request
        return None

    def drop_refusals(self) -> None:
        """Drop the refusals of all nodes."""
        self._refusals.clear()

    def drop_all(self) -> None:
        """Drop everything."""
        self._counts.clear()
        self._refusals.clear()
        self._changes.clear()

    def copy(self) -> Self:
        """Return an independent copy of the recently used results. Copying all of them would take too long."""
        new = type(self)()
        new._changes = self._changes.copy()  # noqa: SLF001 - of this class
        for kind, counts in self._counts.newest(COPIED_KINDS):
            new._counts.put(kind, counts.copy())  # noqa: SLF001
        for request, refusals in self._refusals.newest(MAX_REQUESTS):
            new._refusals.put(request, refusals.copy())  # noqa: SLF001
        return new
