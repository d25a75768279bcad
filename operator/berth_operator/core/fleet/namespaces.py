"""The GPUs that pods of namespaces with a limit hold, updated as pods are charged, nominated and released.

The counts are `gpu`, in hundredths of cards, and `gpu-memory`, in bytes. A share counts the larger of its cores and its
part of the card's memory, rounded up. The ratio in a grant is rounded down, so it would let many small shares through.
A MIG instance counts as in a Kueue quota (`mig_cards`), with the memory in its profile's name. A grant counts as a
whole card if its part of the card is unknown.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from berth_api.allocation import mig
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request import CARD, mig_cards
from berth_operator.core.values.charge import Charge

NamespaceLimits = Mapping[str, Mapping[str, int]]
"""Namespace -> resource (LIMITED) -> what its pods may hold together at most."""
LIMITED: Final = (GPU, GPU_MEMORY)
"""The resources that can be limited."""
UNKNOWN: Final = "unknown"
"""Counts the pods that may hold any GPU of their node, because their allocation is not known."""
NO_LIMITS: Final[NamespaceLimits] = MappingProxyType({})
CardMemory = Callable[[str, int], int]
"""Node, minor -> bytes of memory of this GPU, 0 if unknown: until a new inventory replaces it, always the same."""
Amount = int | npt.NDArray[np.int64]
"""The amount of one card, or of a column of cards."""
NOTHING_HELD: Final[Mapping[str, Counter[str]]] = MappingProxyType({})
_GIBIBYTE: Final = 2**30


class HeldGpus(NamedTuple):
    """What is held of GPUs."""

    hundredths: int
    """Hundredths of cards."""
    memory: int
    """Bytes."""


def of_instance(name: str) -> HeldGpus:
    """Return what an instance counts, by its resource; a whole card if its profile is unknown."""
    return HeldGpus(mig_cards.hundredths(name), mig.gibibytes(mig.profile(name)) * _GIBIBYTE)


def of_share(amounts: Mapping[str, Amount], card_memory: Amount) -> npt.NDArray[np.int64]:
    """Return the hundredths that a share counts of a card with so much memory (bytes; 0 if unknown), rounded up."""
    memory, ratio = amounts.get(GPU_MEMORY, 0), amounts.get(GPU_MEMORY_RATIO)
    part = -(-memory * CARD // np.maximum(card_memory, 1))
    if ratio is None:
        hundredths = np.where(np.greater(card_memory, 0) & np.greater(memory, 0), part, CARD)
    else:
        # Next to bytes, the ratio may be rounded down.
        unknown = np.minimum(ratio + 1, CARD) if GPU_MEMORY in amounts else ratio
        hundredths = np.where(np.greater(card_memory, 0), np.maximum(part, ratio), unknown)
    return np.maximum(hundredths, amounts.get(GPU_CORE, 0))


@lru_cache(maxsize=1024)
def of_grant(grant_amounts: tuple[tuple[str, int], ...], card_memory: int) -> HeldGpus:
    """Return what a grant of these amounts counts, for a GPU with this much memory (bytes; 0 if unknown)."""
    amounts = dict(grant_amounts)
    if instance := next(filter(mig.is_resource, amounts), None):
        return of_instance(instance)
    return HeldGpus(int(of_share(amounts, card_memory)), amounts.get(GPU_MEMORY, 0))


class Namespaces:
    """The limits, and what the pods of each namespace with a limit hold."""

    def __init__(self, limits: NamespaceLimits = NO_LIMITS, held: Mapping[str, Counter[str]] = NOTHING_HELD) -> None:
        self.limits = limits
        self._held = {namespace: counts.copy() for namespace, counts in held.items()}

    def set_limits(self, limits: NamespaceLimits, charges: Iterable[Charge], card_memory: CardMemory) -> None:
        """Set the limits, and count the amounts charged to pods and kept for them."""
        self.limits = limits
        self._held = {namespace: Counter() for namespace in limits}
        for charge in charges:
            self.count(charge, 1, card_memory)

    def count(self, charge: Charge, sign: int, card_memory: CardMemory) -> None:
        """Add (sign 1) or remove (sign -1) what a pod holds."""
        if not self.limits or (held := self._held.get(charge.pod.partition("/")[0])) is None:
            return
        for grant in charge.grants:
            if grant.type == GPU:
                hundredths, memory = of_grant(grant.amounts, card_memory(charge.node, grant.minor))
                held[GPU] += sign * hundredths
                held[GPU_MEMORY] += sign * memory
        held[UNKNOWN] += sign * (GPU in charge.unknown)

    def held(self, namespace: str) -> Mapping[str, int]:
        """Return what the pods of a limited namespace hold, by resource, and how many of them are UNKNOWN."""
        return self._held[namespace]

    def copy(self) -> Self:
        """Return an independent copy."""
        return type(self)(self.limits, self._held)
