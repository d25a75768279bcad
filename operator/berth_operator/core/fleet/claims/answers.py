"""What was computed about claims for each node, until something changes there.

Of each kind of device that is requested, a column has how many a node may give; of each request, why the search on a
node found nothing.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from berth_operator.core.claims.amounts import ExactQuantity
from berth_operator.core.claims.pools import Selectors
from berth_operator.core.fleet.arrays.copies import with_own

MAX_KINDS: Final = 64
MAX_REQUESTS: Final = 32
"""Requests whose refusals are kept; they may have one for each node."""

_COLUMNS: Final = ("devices", "possible", "divided", "shared", "invalid", "cost")

Mask = npt.NDArray[np.bool_]
Hundredths = npt.NDArray[np.int32]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class DeviceKind(NamedTuple):
    """What is requested of a device, except how many."""

    selectors: Selectors
    wants_all: bool
    admin: bool
    capacity: tuple[tuple[str, ExactQuantity], ...] = ()
    """What it requests of the capacities of a shared device, by name."""


class DeviceCounts:
    """How many devices of a kind each row may give: at least as many as it can; and what it costs to give one."""

    def __init__(self, rows: int) -> None:
        self.devices = np.zeros(rows, np.int32)
        self.possible = np.zeros(rows, np.int32)
        """The same if nothing there were held."""
        self.divided: Mask = np.zeros(rows, np.bool_)
        """Rows with a device of which other devices have taken too much; one of those may free several."""
        self.shared: Mask = np.zeros(rows, np.bool_)
        """Rows with a device that may serve several requests of one pod."""
        self.invalid: Mask = np.zeros(rows, np.bool_)
        """Rows with an invalid pool, whichever devices it has."""
        self.cost: Hundredths = np.zeros(rows, np.int32)
        """The least that taking a device of the kind costs on each row, in hundredths of a device: `claims.stock`."""
        self.stale: set[str] | None = None
        """Nodes that are not counted, or changed since; None for all."""

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
    """Node -> what ended the search there; empty if it found nothing."""
    doublings: dict[str, int] = field(default_factory=dict)
    """Node -> how often the bound of the next search there is doubled, because the last one ended at its bound."""

    def copy(self) -> "SearchRefusals":
        """Return an independent copy."""
        return SearchRefusals(everywhere=self.everywhere, by_node=self.by_node.copy(), doublings=self.doublings.copy())

    def drop(self, node: str) -> None:
        """Drop what is known of a node."""
        self.by_node.pop(node, None)
        self.doublings.pop(node, None)

    def go_on(self, most: int) -> bool:
        """Let searches go on that ended at a bound that was doubled less often than that; return whether one does."""
        ended = [node for node, doublings in self.doublings.items() if node in self.by_node and doublings <= most]
        for node in ended:
            del self.by_node[node]
        return bool(ended)


class Answers:
    """All that was computed, the least recently used first."""

    def __init__(self) -> None:
        self._counts: dict[DeviceKind, DeviceCounts] = {}
        self._refusals: dict[Hashable, SearchRefusals] = {}

    def counts(self, kind: DeviceKind, rows: int) -> DeviceCounts:
        """Return the counts of a kind, to be brought up to date."""
        counts = _used(self._counts, kind, MAX_KINDS) or DeviceCounts(rows)
        counts.fit(rows)
        self._counts[kind] = counts
        return counts

    def refusals(self, request: Hashable) -> SearchRefusals:
        """Return the refusals of a request, to look up and to add to."""
        refusals = _used(self._refusals, request, MAX_REQUESTS) or SearchRefusals()
        self._refusals[request] = refusals
        return refusals

    def drop(self, node: str) -> None:
        """Drop what was computed for a node."""
        for counts in self._counts.values():
            if counts.stale is not None:
                counts.stale.add(node)
        for refusals in self._refusals.values():
            refusals.drop(node)

    def go_on(self, most: int) -> Hashable | None:
        """Return a request of which searches go on, after `SearchRefusals.go_on`; None if there is none."""
        return next((request for request, refusals in self._refusals.items() if refusals.go_on(most)), None)

    def drop_refusals(self) -> None:
        """Drop the refusals of all nodes."""
        self._refusals.clear()

    def drop_all(self) -> None:
        """Drop everything."""
        self._counts.clear()
        self._refusals.clear()

    def copy(self) -> Self:
        """Return an independent copy."""
        parts = {name: {key: each.copy() for key, each in kept.items()} for name, kept in vars(self).items()}
        return with_own(self, **parts)


def _used(kept: dict[K, V], key: K, most: int) -> V | None:
    """Remove and return a value that is put back as the last one; the first one goes if there are too many."""
    value = kept.pop(key, None)
    if value is None and len(kept) >= most:
        del kept[next(iter(kept))]
    return value
