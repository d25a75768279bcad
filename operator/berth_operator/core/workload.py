"""The typical mix of pods: how much processor time goes with a card, which shares and which models are asked for.

Each pod is seen once, when it is first heard of, and counts for less with every pod that comes after it. So the mix
follows what users ask for now, and seeing a pod costs the same however many came before.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from berth_api.model import ModelConstraint
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY_RATIO
from berth_api.request import CARD, Part
from berth_api.resources import CPU
from berth_operator.core.request import PodRequest

HALF_LIFE: Final = 10_000
"""Pods with cards after which one counts half."""
COMMON: Final = 0.03
"""A size is common if at least so many of all shares of cards have it."""
STEP: Final = 250
"""Thousandths of a processor: how finely pods are told apart by what they need for a card."""
STEPS: Final = 1024
_GROWTH: Final = 2.0 ** (1 / HALF_LIFE)
_RESCALE: Final = 2.0**40
_NEGLIGIBLE: Final = 2.0**-10


class Workload:
    """What pods with cards ask for, the latest counting most."""

    def __init__(self) -> None:
        self._weight = 1.0
        self._cpu = 0.0
        self._by_cpu = np.zeros(STEPS)
        """Weight of the cards that go with so many steps of cpu each."""
        self._by_share = np.zeros(CARD)
        """Weight of the pods that take so many hundredths of a card."""
        self._demand: dict[ModelConstraint, float] = {}

    def see(self, request: PodRequest) -> None:
        """Take notice of a pod; one without GPUs changes nothing."""
        each, count = _cards(request.devices.parts)
        if not each:
            return
        # Later pods weigh more; that is the same as fading all earlier ones, and leaves them alone.
        self._weight *= _GROWTH
        cpu = dict(request.resources).get(CPU, 0)
        self._cpu += self._weight * cpu
        self._by_cpu[min(-(-cpu // (count * STEP)), STEPS - 1)] += self._weight * each * count
        self._demand[request.model] = self._demand.get(request.model, 0.0) + self._weight * each * count
        if each < CARD:
            self._by_share[each] += self._weight
        if self._weight > _RESCALE:
            self._rescale()

    @property
    def cpu_per_card(self) -> float:
        """Give the processor time, in thousandths, that goes with a whole card; 0 while no pod was seen."""
        total = sum(self._demand.values())
        return CARD * self._cpu / total if total else 0.0

    def starved(self, cpu: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Give the part of the demand for cards that needs more processor time than this for a single card."""
        enough = np.cumsum(self._by_cpu)
        steps = np.clip(cpu // STEP, -1, STEPS - 1)
        part: npt.NDArray[np.float64] = 1.0 - np.where(steps < 0, 0.0, enough[steps]) / max(enough[-1], 1.0)
        return part

    @property
    def common(self) -> tuple[int, ...]:
        """Give the common shares of a card, in hundredths."""
        total = self._by_share.sum()
        return tuple(np.flatnonzero(self._by_share >= COMMON * total).tolist()) if total else ()

    @property
    def constrained(self) -> bool:
        """Tell whether any pod minds which model it gets."""
        return any(self._demand)

    @property
    def demand(self) -> Mapping[ModelConstraint, float]:
        """Give for each constraint the part of all cards asked for that is asked for with it."""
        total = sum(self._demand.values())
        return {model: amount / total for model, amount in self._demand.items()}

    def _rescale(self) -> None:
        """Keep the numbers small, and forget constraints that nobody uses any more."""
        self._cpu /= self._weight
        self._by_cpu /= self._weight
        self._by_share /= self._weight
        self._demand = {
            model: amount / self._weight
            for model, amount in self._demand.items()
            if amount / self._weight >= _NEGLIGIBLE
        }
        self._weight = 1.0


def _cards(parts: Iterable[Part]) -> tuple[int, int]:
    """Give the hundredths of each GPU, of core or of memory, whichever is more, and how many; (0, 0) of bytes only."""
    for part in parts:
        wanted = dict(part.amounts)
        each = max(wanted.get(GPU_CORE, 0), wanted.get(GPU_MEMORY_RATIO, 0))
        if part.type == GPU and each:
            return each, part.count
    return 0, 0
