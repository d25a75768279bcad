"""What the pods of namespaces with a limit hold of GPUs, counted as pods are charged, nominated and released.

Counted are `gpu`, hundredths of cards, and `gpu-memory`, bytes. Each grant counts as it is charged: the larger of its
cores and its part of the memory of the card that it is of, so that a share by bytes counts by that card's size. A MIG
instance counts as a Kueue quota does (`mig_cards`), and the memory in the name of its profile. A grant whose part of
the card is not known counts as a whole card.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from berth_api.allocation import Grant, mig
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
NOTHING_HELD: Final[Mapping[str, Counter[str]]] = MappingProxyType({})
_GIBIBYTE: Final = 2**30


class HeldGpus(NamedTuple):
    """What is held of GPUs."""

    hundredths: int
    """Of cards."""
    memory: int
    """Bytes."""


def of_instance(name: str) -> HeldGpus:
    """Return what an instance counts, by its resource; a whole card if its profile is not known."""
    return HeldGpus(mig_cards.hundredths(name), mig.gibibytes(mig.profile(name)) * _GIBIBYTE)


def of_grant(grant: Grant) -> HeldGpus:
    """Return what a grant of a GPU counts."""
    amounts = dict(grant.amounts)
    if GPU_MEMORY_RATIO in amounts:
        return HeldGpus(max(amounts[GPU_MEMORY_RATIO], amounts.get(GPU_CORE, 0)), amounts.get(GPU_MEMORY, 0))
    instance = next(filter(mig.is_resource, amounts), None)
    return HeldGpus(CARD, amounts.get(GPU_MEMORY, 0)) if instance is None else of_instance(instance)


class Namespaces:
    """The limits, and what the pods of each namespace that has one hold."""

    def __init__(self, limits: NamespaceLimits = NO_LIMITS, held: Mapping[str, Counter[str]] = NOTHING_HELD) -> None:
        self.limits = limits
        self._held = {namespace: counts.copy() for namespace, counts in held.items()}

    def set_limits(self, limits: NamespaceLimits, charges: Iterable[Charge]) -> None:
        """Set the limits, and count what is charged to pods and kept for them."""
        self.limits = limits
        self._held = {namespace: Counter() for namespace in limits}
        for charge in charges:
            self.count(charge, 1)

    def count(self, charge: Charge, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) what a pod holds."""
        if not self.limits or (held := self._held.get(charge.pod.partition("/")[0])) is None:
            return
        for grant in charge.grants:
            if grant.type == GPU:
                hundredths, memory = of_grant(grant)
                held[GPU] += sign * hundredths
                held[GPU_MEMORY] += sign * memory
        held[UNKNOWN] += sign * (GPU in charge.unknown)

    def held(self, namespace: str) -> Mapping[str, int]:
        """Return what the pods of a namespace with a limit hold, by resource, and how many of them are UNKNOWN."""
        return self._held[namespace]

    def copy(self) -> Self:
        """Return an independent copy."""
        return type(self)(self.limits, self._held)
