"""The typical mix of pods: how much cpu goes with a card, and which shares, models and numbers of cards are requested.

Each pod is counted once, when it is first seen. Its weight decreases with every later pod. So the mix follows what
users request now, and counting a pod takes constant time.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from berth_api.names import GPU, GPU_CORE, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_api.request.model import ModelConstraint
from berth_api.resources import CPU
from berth_operator.core.fleet.arrays.columns import sealed
from berth_operator.core.values.request import PodRequest

T = TypeVar("T", bound=Hashable)

HALF_LIFE: Final = 10_000
"""Number of pods with cards after which a pod has half its weight."""
COMMON: Final = 0.03
"""A share is common if at least this fraction of all pods with shares request it."""
MAX_LARGE: Final = 16
"""Maximum number of kinds of pods with several cards that decisions see: the kinds with the most demand."""
MAX_COUNTED: Final = 256
"""Maximum number of such kinds that are counted, because tenants choose how many kinds there are."""
STEP: Final = 250
"""Thousandths of a cpu: the width of the histogram's bins for cpu per card."""
STEPS: Final = 1024
MAX_CONSTRAINTS: Final = 64
"""Maximum number of model constraints in the mix: the constraints with the most weight. It is limited because users
write them, and each decision compares them with all models."""
FRESH: Final = 64
"""Decisions see a new mix only after 1/FRESH of the weight is new, so that columns cached for a mix stay valid."""
_GROWTH: Final = 2.0 ** (1 / HALF_LIFE)
_RESCALE: Final = 2.0**40
_NEGLIGIBLE: Final = 2.0**-10


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeKind:
    """Pods that request several cards."""

    cards: int
    cpu: int
    """Thousandths of a cpu."""
    model: ModelConstraint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Typical:
    """The mix as decisions see it. Compared by identity, so that columns can be cached for it."""

    cpu_per_card: float = 0.0
    """Thousandths of a cpu per whole card; 0 until a pod was seen."""
    common: tuple[int, ...] = ()
    """The common shares of a card, in hundredths."""
    constraints: tuple[ModelConstraint, ...] = ()
    demand: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Constraint -> the fraction of all requested cards that are requested with it."""
    enough: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(STEPS))
    """Steps of cpu -> the fraction of all requested cards that need at most this much cpu per card."""
    large: tuple[LargeKind, ...] = ()
    """The kinds of pods with several cards that have the most demand."""
    large_demand: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Kind of `large` -> its fraction of the cards that all these kinds request."""
    large_share: float = 0.0
    """The fraction of all requested cards that these kinds request."""
    _starved: npt.NDArray[np.float64] = field(init=False)
    """1 - `enough`, shifted by one: the first value is for all amounts below 0."""

    def __post_init__(self) -> None:
        """Compute `_starved` once, because every decision reads it."""
        object.__setattr__(self, "_starved", sealed(np.append(1.0, 1.0 - self.enough)))
        sealed(self.demand)
        sealed(self.enough)
        sealed(self.large_demand)

    @property
    def constrained(self) -> bool:
        """Return whether any pod has a model constraint."""
        return any(self.constraints)

    def starved(self, cpu: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the fraction of all requested cards that need more cpu (thousandths) per card than this."""
        return self._starved.take(cpu // STEP + 1, mode="clip")


@dataclass(slots=True, kw_only=True)
class MixWeights:
    """The weights of the pods that were counted."""

    weight: float = 1.0
    """The weight of the latest pod."""
    total: float = 0.0
    unseen: float = 0.0
    """Weight of the pods that were seen after `PodMix.typical` was computed."""
    cpu: float = 0.0
    by_cpu: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(STEPS))
    """Steps of cpu per card -> weight of the cards."""
    by_share: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(CARD))
    """Hundredths of a card -> weight of the pods."""
    demand: dict[ModelConstraint, float] = field(default_factory=dict)
    large: dict[LargeKind, float] = field(default_factory=dict)
    """Kind of pods with several cards -> weight of the cards."""


class PodMix:
    """The requests of pods with GPUs. Later pods have more weight."""

    def __init__(self, typical: Typical | None = None, counts: MixWeights | None = None) -> None:
        """Continue with the mix that was seen before, if any."""
        self.typical = typical or Typical()
        self.counts = counts or MixWeights()

    def see(self, request: PodRequest) -> None:
        """Count a pod; ignore pods without GPUs, and pods that request only GPU memory in bytes."""
        hundredths, count = _cards(request.devices.parts)
        if not hundredths:
            return
        # Increasing the weight of later pods is the same as decreasing that of all earlier ones, without touching them.
        self.counts.weight *= _GROWTH
        self._count(hundredths, count, dict(request.resources).get(CPU, 0), request.model)
        if self.counts.unseen * FRESH >= self.counts.total:
            self._draw_up()

    def _count(self, hundredths: int, count: int, cpu: int, model: ModelConstraint) -> None:
        counts = self.counts
        cards = counts.weight * hundredths * count
        counts.total += counts.weight
        counts.unseen += counts.weight
        counts.cpu += counts.weight * cpu
        counts.by_cpu[min(-(-cpu // (count * STEP)), STEPS - 1)] += cards
        counts.demand[model] = counts.demand.get(model, 0.0) + cards
        if len(counts.demand) > MAX_CONSTRAINTS:
            del counts.demand[min(counts.demand, key=counts.demand.__getitem__)]
        if hundredths < CARD:
            counts.by_share[hundredths] += counts.weight
        if count > 1:
            kind, large = LargeKind(cards=count, cpu=cpu, model=model), counts.large
            if kind not in large and len(large) >= MAX_COUNTED:
                del large[min(large, key=large.__getitem__)]
            large[kind] = large.get(kind, 0.0) + cards

    def _draw_up(self) -> None:
        counts = self.counts
        if counts.weight > _RESCALE:
            # Scaled down to keep the numbers small; constraints and kinds with negligible weight are dropped.
            counts.total /= counts.weight
            counts.cpu /= counts.weight
            counts.by_cpu /= counts.weight
            counts.by_share /= counts.weight
            counts.demand = _faded(counts.demand, counts.weight)
            counts.large = _faded(counts.large, counts.weight)
            counts.weight = 1.0
        cards, shares = sum(counts.demand.values()), counts.by_share.sum()
        large = sorted(counts.large, key=counts.large.__getitem__, reverse=True)[:MAX_LARGE]
        large_cards = np.array([counts.large[kind] for kind in large])
        counts.unseen = 0.0
        self.typical = Typical(
            cpu_per_card=CARD * counts.cpu / cards,
            common=tuple(np.flatnonzero(counts.by_share >= COMMON * shares).tolist()) if shares else (),
            constraints=tuple(counts.demand),
            demand=np.array(tuple(counts.demand.values())) / cards,
            enough=np.cumsum(counts.by_cpu) / counts.by_cpu.sum(),
            large=tuple(large),
            large_demand=large_cards / large_cards.sum() if large else large_cards,
            large_share=float(large_cards.sum() / cards),
        )


def _faded(weights: Mapping[T, float], scale: float) -> dict[T, float]:
    """Return the weights divided by `scale`, without negligible ones."""
    faded = {key: weight / scale for key, weight in weights.items()}
    return {key: weight for key, weight in faded.items() if weight >= _NEGLIGIBLE}


def _cards(parts: Iterable[Part]) -> tuple[int, int]:
    """Return (hundredths of each GPU, number of GPUs), by the larger of core and memory; (0, 0) for bytes only."""
    for part in parts:
        amounts = dict(part.amounts)
        hundredths = max(amounts.get(GPU_CORE, 0), amounts.get(GPU_MEMORY_RATIO, 0))
        if part.type == GPU and hundredths:
            return hundredths, part.count
    return 0, 0
