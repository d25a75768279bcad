"""Genius' score: how large and fast a node's GPUs are, and how idle they were at the last measurement.

    points = static weight  * (memory, multiprocessors, memory bandwidth, encoders, decoders: sums over the node's GPUs)
           + dynamic weight * (free memory, power headroom, idle encoders, decoders, multiprocessors: their means)

Each value is divided by the highest value of all nodes, and has its own weight. The score is the weighted mean, 0 to
100. A value that was not measured, or too long ago, counts as the mean of the nodes with a measurement. Free memory is
the memory that charges leave, minus the measured use beyond the charges. It is divided by the largest memory of all
nodes' GPUs. So a node's score decreases with each placement, not only after the next measurement. All other values are
computed once per refresh.

The original prefers nodes that draw much power, but Berth prefers power headroom. `PowerPreference` chooses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU, GPU_CORE, GPU_MEMORY
from berth_api.request import CARD
from berth_operator.core.fleet.arrays.columns import read_only
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.fleet.nodes.card_columns import UNMEASURED
from berth_operator.core.fleet.nodes.cards import Cards, Mask
from berth_operator.core.values.gpu_metrics import Quantity
from berth_operator.core.values.inventory import CardFacts
from berth_operator.core.values.request import PodRequest

Amounts = npt.NDArray[np.float64]
PowerPreference = Literal["Headroom", "Draw"]

NAME: Final = "genius"
BEST: Final = 100.0
MAX_ROWS: Final = 16
"""Maximum number of changed rows that are computed one by one."""
STEPS: Final = 10
"""Steps of a card's load: differences below a tenth do not decide between cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticWeights:
    """The weights of what a GPU is."""

    weight: float = 1.0
    """The weight of all static values together."""
    memory: float = 2.0
    multiprocessors: float = 2.0
    memory_bandwidth: float = 2.0
    encoders: float = 1.0
    decoders: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicWeights:
    """The weights of what a GPU does."""

    weight: float = 2.0
    """The weight of all dynamic values together."""
    free_memory: float = 2.0
    power: float = 1.0
    idle_encoders: float = 1.0
    idle_decoders: float = 1.0
    idle_multiprocessors: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GeniusWeights:
    """The weights of the score's terms; only their proportions matter."""

    static: StaticWeights = StaticWeights()
    dynamic: DynamicWeights = DynamicWeights()
    power_preference: PowerPreference = "Headroom"


DEFAULT_WEIGHTS: Final = GeniusWeights()


class Genius:
    """The score with the weights of a profile."""

    NAME: str = NAME

    def __init__(self, weights: GeniusWeights = DEFAULT_WEIGHTS) -> None:
        self._weights = weights
        # Texts, because a text keeps its hash, and every decision looks them up.
        self._key, self._whole_key, self._share_key = (f"{NAME} {name} {weights}" for name in ("", "whole", "share"))

    def score(self, fleet: Fleet, request: PodRequest, _fits: Mask) -> Amounts | None:
        """Return each row's points; None if the pod requests no GPU."""
        if not any(part.type == GPU for part in request.devices.parts):
            return None
        return fleet.prepared.get(self._key, lambda: _Points(fleet, self._weights)).current(fleet)

    def loads(self, fleet: Fleet, row: int, *, whole: bool) -> tuple[int, ...]:
        """Return the load of the card in each slot of a row in steps of a tenth; empty if all cards are idle.

        Cards that pods used at the time of the measurement count as idle. For shares, these are the full cards; for
        `whole` cards, all cards in use. Load that no pod explains is an exception, so most nodes are alike. A choice
        made on one node is then made on the others without a search.
        """
        key = self._whole_key if whole else self._share_key
        loads = fleet.prepared.get(key, lambda: _loads(fleet.cards[GPU], self._weights, whole=whole))
        return loads[row]


BUILT_IN: Final = Genius()
"""The score with the default weights."""


class _Points:
    """The points of all rows. Only rows that changed are computed again.

    Charges change nothing but the free memory. For the one or two rows of a decision, it is computed without arrays.
    This takes a third of the time that `ColumnCache` would need.
    """

    def __init__(self, fleet: Fleet, weights: GeniusWeights) -> None:
        cards = fleet.cards[GPU]
        measured = ((weight, _of_nodes(cards, values)) for weight, values in _of_cards(cards, weights, watts=True))
        weighted = [*_static(cards, weights.static), *measured]
        of_free_memory = weights.dynamic.weight * weights.dynamic.free_memory
        whole = sum((weight for weight, _ in weighted), start=of_free_memory)
        self._uncharged = np.where(cards.healthy, cards.total[cards.index[GPU_MEMORY]] - cards.unaccounted, 0)
        """The memory that charges may take of each healthy card: its total, less what was measured as used beyond
        charges."""
        count = np.maximum(cards.healthy.sum(axis=1), 1)
        largest = (_memory(cards) / count).max(initial=0.0)
        self._per_byte = _part(of_free_memory, whole) / (count * max(largest, 1.0))
        self._fixed: Amounts = np.zeros(len(count))
        """The points of all terms but the free memory."""
        for weight, values in weighted:
            # As parts of the highest value.
            if (highest := float(values.max(initial=0.0))) > 0:
                self._fixed += _part(weight, whole) * (values / highest)
        self._of_rows: list[tuple[list[int], float, float]] = list(
            zip(self._uncharged.tolist(), self._fixed.tolist(), self._per_byte.tolist(), strict=True)
        )
        """The three of each row, as Python's numbers."""
        self._points, self._seen = self._all(cards), fleet.column_cache.changes
        self._shown = read_only(self._points)

    def current(self, fleet: Fleet) -> Amounts:
        """Return the points with all charges; read-only."""
        cards, moved = fleet.cards[GPU], fleet.column_cache.moved_since(self._seen)
        if moved is None or len(moved) > MAX_ROWS:
            self._points[:] = self._all(cards)
        else:
            used = cards.used[cards.index[GPU_MEMORY]]
            for row in {*moved}:
                uncharged, fixed, per_byte = self._of_rows[row]
                amounts = zip(uncharged, used[row].tolist(), strict=False)
                self._points[row] = fixed + sum([most - taken for most, taken in amounts if most > taken]) * per_byte
        self._seen = fleet.column_cache.changes
        return self._shown

    def _all(self, cards: Cards) -> Amounts:
        # Slots that were added since are of cards that no Device lists.
        used = cards.used[cards.index[GPU_MEMORY], :, : self._uncharged.shape[1]]
        free = np.maximum(self._uncharged - used, 0).sum(axis=1)
        points: Amounts = self._fixed + free * self._per_byte
        return points


def _part(weight: float, whole: float) -> float:
    return BEST * weight / whole if whole else 0.0


def _memory(cards: Cards) -> Amounts:
    """Return the bytes of each row's healthy GPUs."""
    total: Amounts = (cards.total[cards.index[GPU_MEMORY]] * cards.healthy).sum(axis=1, dtype=np.float64)
    return total


# --- what a GPU is ----------------------------------------------------------------------------------------------


def _static(cards: Cards, weights: StaticWeights) -> Iterator[tuple[float, Amounts]]:
    """Yield the weight and the values of each static term."""
    facts = CardFacts(*(cards.facts * cards.healthy).sum(axis=2, dtype=np.float64))
    yield weights.weight * weights.memory, _memory(cards)
    yield weights.weight * weights.multiprocessors, np.asarray(facts.multiprocessors)
    yield weights.weight * weights.memory_bandwidth, np.asarray(facts.memory_bandwidth)
    yield weights.weight * weights.encoders, np.asarray(facts.encoders)
    yield weights.weight * weights.decoders, np.asarray(facts.decoders)


# --- what it does -----------------------------------------------------------------------------------------------


def _of_cards(cards: Cards, weights: GeniusWeights, *, watts: bool) -> Iterator[tuple[float, Amounts]]:
    """Yield the weight and the value of each card, NaN if unknown; draws in watts, or as parts of the limit."""
    dynamic, whole = weights.dynamic, weights.dynamic.weight
    measured = np.where(cards.measured == UNMEASURED, np.nan, cards.measured.astype(np.float64))
    yield whole * dynamic.power, _power(measured, weights.power_preference, watts=watts)
    yield whole * dynamic.idle_encoders, 1.0 - measured[Quantity.ENCODER]
    yield whole * dynamic.idle_decoders, 1.0 - measured[Quantity.DECODER]
    yield whole * dynamic.idle_multiprocessors, 1.0 - measured[Quantity.MULTIPROCESSORS]


def _power(measured: Amounts, preference: PowerPreference, *, watts: bool) -> Amounts:
    """Return the power headroom as a part of the limit, or the draw."""
    draw: Amounts = measured[Quantity.POWER]
    limit = measured[Quantity.POWER_LIMIT]
    if preference == "Draw" and watts:
        return draw
    # A card without a known limit is compared with the highest one that is known, or else with the highest draw.
    fallback = np.nanmax(limit, initial=0.0) or np.nanmax(draw, initial=0.0)
    limit = np.where(limit > 0, limit, fallback)
    used = np.minimum(np.divide(draw, limit, out=np.zeros_like(draw), where=(limit > 0) & ~np.isnan(draw)), 1.0)
    wanted: Amounts = np.where(np.isnan(draw), np.nan, used if preference == "Draw" else 1.0 - used)
    return wanted


def _of_nodes(cards: Cards, values: Amounts) -> Amounts:
    """Return each node's mean over its healthy GPUs with a value; other nodes with GPUs get the mean of these nodes."""
    known = cards.healthy & ~np.isnan(values)
    counts = known.sum(axis=1)
    means = np.where(known, values, 0.0).sum(axis=1) / np.maximum(counts, 1)
    some = counts > 0
    others = means[some].mean() if some.any() else 0.0
    of_nodes: Amounts = np.where(some, means, np.where(cards.healthy.any(axis=1), others, 0.0))
    return of_nodes


def _loads(cards: Cards, weights: GeniusWeights, *, whole: bool) -> list[tuple[int, ...]]:
    """Return the load of each row's cards in steps of a tenth, by the terms that were measured of each."""
    good, known_weight = np.zeros(cards.minor.shape), np.zeros(cards.minor.shape)
    for weight, values in _of_cards(cards, weights, watts=False):
        known = ~np.isnan(values)
        good += np.where(known, weight * values, 0.0)
        known_weight += np.where(known, weight, 0.0)
    idle = np.divide(good, known_weight, out=np.ones_like(good), where=known_weight > 0)
    idle[cards.users > 0 if whole else cards.used[cards.index[GPU_CORE]] >= CARD] = 1.0
    steps = np.rint(STEPS * (1.0 - idle)).astype(np.int8)
    return [tuple(row) if any(row) else () for row in steps.tolist()]
