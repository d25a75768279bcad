"""Measurements of GPUs, put into the Fleet card by card.

A sample counts only for a card that the Device of its own node lists. So a source that names one node cannot change the
cards of another node. If several Devices list an id, a sample counts only with the name of one of their nodes.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from berth_api.names import GPU
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.card_columns import NEVER
from berth_operator.core.values.gpu_metrics import CardSample
from berth_operator.state.cache.waker import Waker

UNKNOWN_CARD: Final = "unknown card"
"""No Device, or more than one, lists the card."""
OTHER_NODE: Final = "card of another node"
"""The Device of the node that the source names does not list the card."""
REASONS: Final = (UNKNOWN_CARD, OTHER_NODE)
_AMBIGUOUS: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How many GPUs have recent measurements."""

    fresh: int
    stale: int
    """GPUs that Devices list and that were never measured, or too long ago."""
    newest: float | None
    """When any GPU was measured last, by the operator's clock; None if none was."""


class GpuMetrics:
    """Writes samples into the Fleet; decisions see them after `apply`."""

    def __init__(self, *, fleet: Fleet, waker: Waker, clock: Callable[[], float]) -> None:
        self._fleet, self._waker, self._clock = fleet, waker, clock
        self._rows: dict[str, int] = {}
        """Card id -> its row, or _AMBIGUOUS; as of `begin`."""
        self._measured: set[tuple[int, int]] = set()
        """(row, slot) of the cards that this refresh has measured."""
        self._newest: float | None = None
        self._more_free: set[str] = set()
        """The nodes where more memory was measured as free since the last `apply`."""

    def begin(self) -> None:
        """Start a refresh: read which node lists which card."""
        self._rows.clear()
        self._measured.clear()
        for row, ids in enumerate(self._fleet.cards[GPU].ids):
            for card_id in ids.values():
                self._rows[card_id] = _AMBIGUOUS if card_id in self._rows else row

    def put(self, samples: Iterable[CardSample]) -> Counter[str]:
        """Write samples, and return how many were dropped by reason. A refresh may write its samples in several turns.

        If one refresh has several samples of a card, for example from two exporters, the first sample counts.
        """
        dropped: Counter[str] = Counter()
        for sample in samples:
            named = self._fleet.rows.get(sample.node)
            row = self._rows.get(sample.uuid, _AMBIGUOUS) if named is None else named
            # The Device may have changed since `begin`.
            slot = None if row == _AMBIGUOUS else self._fleet.cards[GPU].slot_of_card(row, sample.uuid)
            if slot is None:
                dropped[UNKNOWN_CARD if named is None else OTHER_NODE] += 1
            elif (row, slot) not in self._measured:
                self._measured.add((row, slot))
                at = self._clock() - sample.age
                self._newest = at if self._newest is None else max(at, self._newest)
                if self._fleet.measure(row, slot, sample.values, at):
                    self._more_free.add(self._fleet.names[row])
        return dropped

    def apply(self, stale_after: float) -> None:
        """Apply the written samples to decisions, forget samples older than `stale_after` seconds, and wake pods."""
        self._more_free.update(self._fleet.expire_measurements(self._clock() - stale_after))
        self._fleet.measured()
        more_free, self._more_free = self._more_free, set()
        self._waker.memory_measured(sorted(more_free))

    def freshness(self) -> Freshness:
        """Return of how many of the Devices' GPUs a recent measurement is known."""
        cards = self._fleet.cards[GPU]
        fresh = int(np.count_nonzero(cards.present & (cards.measured_at > NEVER)))
        return Freshness(fresh=fresh, stale=int(np.count_nonzero(cards.present)) - fresh, newest=self._newest)
