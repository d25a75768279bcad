"""The typical mix of pods: how much processor time goes with a card, which shares and which models are asked for.

Each pod is seen once, when it is first heard of, and counts for less with every pod that comes after it. So the mix
follows what users ask for now, and seeing a pod costs the same however many came before.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.model import ModelConstraint
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_api.resources import CPU
from berth_operator.core.fleet.columns import sealed
from berth_operator.core.values.request import PodRequest

HALF_LIFE: Final = 10_000
"""Pods with cards after which one counts half."""
COMMON: Final = 0.03
"""A size is common if at least so many of all shares of cards have it."""
STEP: Final = 250
"""Thousandths of a processor: how finely pods are told apart by what they need for a card."""
STEPS: Final = 1024
FRESH: Final = 64
"""One part in so many of the mix may be missing from what decisions see, so that what is kept for a mix stands."""
_GROWTH: Final = 2.0 ** (1 / HALF_LIFE)
_RESCALE: Final = 2.0**40
_NEGLIGIBLE: Final = 2.0**-10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Typical:
    """What decisions see of the mix. Each is equal to itself alone, so that columns can be kept for it."""

    cpu_per_card: float = 0.0
    """Processor time, in thousandths, that goes with a whole card; 0 while no pod was seen."""
    common: tuple[int, ...] = ()
    """The common shares of a card, in hundredths."""
    constraints: tuple[ModelConstraint, ...] = ()
    demand: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The part of all cards asked for that is asked for with each of the constraints."""
    enough: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(STEPS))
    """Steps of processor time -> the part of all cards asked for that need no more each."""
    _starved: npt.NDArray[np.float64] = field(init=False)
    """The other part, one step later: the first place is of all numbers below 0."""

    def __post_init__(self) -> None:
        """Invert it once: every decision reads it."""
        object.__setattr__(self, "_starved", sealed(np.append(1.0, 1.0 - self.enough)))
        sealed(self.demand)
        sealed(self.enough)

    @property
    def constrained(self) -> bool:
        """Return whether any pod minds which model it gets."""
        return any(self.constraints)

    def starved(self, cpu: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the part of all cards asked for that need more processor time than this for a single one."""
        return self._starved.take(cpu // STEP + 1, mode="clip")


class Workload:
    """What pods with cards ask for, the latest counting most."""

    def __init__(self) -> None:
        self.typical = Typical()
        self._weight = 1.0
        self._total = 0.0
        self._unseen = 0.0
        """Weight of the pods that came after `typical` was drawn up."""
        self._cpu = 0.0
        self._by_cpu = np.zeros(STEPS)
        """Weight of the cards that go with so many steps of processor time each."""
        self._by_share = np.zeros(CARD)
        """Weight of the pods that take so many hundredths of a card."""
        self._demand: dict[ModelConstraint, float] = {}

    def see(self, request: PodRequest) -> None:
        """Take notice of a pod; one without GPUs, or that names only bytes of them, changes nothing."""
        hundredths, count = _cards(request.devices.parts)
        if not hundredths:
            return
        # Increasing the weight of later pods is the same as decreasing that of all earlier ones, without touching them.
        self._weight *= _GROWTH
        self._count(hundredths, count, dict(request.resources).get(CPU, 0), request.model)
        if self._unseen * FRESH >= self._total:
            self._draw_up()

    def _count(self, hundredths: int, count: int, cpu: int, model: ModelConstraint) -> None:
        cards = self._weight * hundredths * count
        self._total += self._weight
        self._unseen += self._weight
        self._cpu += self._weight * cpu
        self._by_cpu[min(-(-cpu // (count * STEP)), STEPS - 1)] += cards
        self._demand[model] = self._demand.get(model, 0.0) + cards
        if hundredths < CARD:
            self._by_share[hundredths] += self._weight

    def _draw_up(self) -> None:
        if self._weight > _RESCALE:
            self._rescale()
        cards, shares = sum(self._demand.values()), self._by_share.sum()
        self._unseen = 0.0
        self.typical = Typical(
            cpu_per_card=CARD * self._cpu / cards,
            common=tuple(np.flatnonzero(self._by_share >= COMMON * shares).tolist()) if shares else (),
            constraints=tuple(self._demand),
            demand=np.array(tuple(self._demand.values())) / cards,
            enough=np.cumsum(self._by_cpu) / self._by_cpu.sum(),
        )

    def _rescale(self) -> None:
        """Keep the numbers small, and forget constraints that nobody uses any more."""
        self._total /= self._weight
        self._cpu /= self._weight
        self._by_cpu /= self._weight
        self._by_share /= self._weight
        faded = {model: amount / self._weight for model, amount in self._demand.items()}
        self._demand = {model: amount for model, amount in faded.items() if amount >= _NEGLIGIBLE}
        self._weight = 1.0


def _cards(parts: Iterable[Part]) -> tuple[int, int]:
    """Return the hundredths of each GPU (the greater of core and memory) and the count; (0, 0) for bytes only."""
    for part in parts:
        amounts = dict(part.amounts)
        hundredths = max(amounts.get(GPU_CORE, 0), amounts.get(GPU_MEMORY_RATIO, 0))
        if part.type == GPU and hundredths:
            return hundredths, part.count
    return 0, 0
