"""How much of a card is held: the one rule for all verbs, the page, the status of Devices and the metrics.

The held part is the largest fraction that is held of any resource: cores, memory, replicas, or slices of MIG instances.
The free part is the largest share that has the same fraction of each resource. So parts never add up to more than the
card. For example, one pod with all cores and another pod with half the memory hold one card. Bytes of memory do not
count, because their ratio does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from berth_api.allocation import EXCLUSIVES, FUNCTIONS, REPLICAS, mig
from berth_api.names import GPU_CORE, GPU_MEMORY

Amounts = Mapping[str, int]

CARD: Final = 100
"""A whole card, in hundredths."""
SLICES: Final = 7
"""Compute slices of a GPU whose instances are unknown."""
_UNCOUNTED: Final = frozenset({GPU_MEMORY, FUNCTIONS, *EXCLUSIVES})
_WHOLE: Final[Amounts] = {GPU_CORE: CARD}


def hundredths(parts: Iterable[Amounts], total: Amounts) -> float:
    """Return the sum of one card's parts, in hundredths from 0 to 100.

    A part with unknown amounts counts as the whole card. `total` is the card's total. For a GPU, only its MIG instances
    or replicas are needed.
    """
    held = Counter[str]()
    for part in parts:
        held.update(part if any(amount and name not in _UNCOUNTED for name, amount in part.items()) else _WHOLE)
    share: float = min(1.0, max(shares(held, total)))
    return CARD * share


def shares(held: Mapping[str, Any], total: Mapping[str, Any]) -> Iterator[Any]:
    """Yield how much of each resource of a card is held, as a share; of numbers, or of columns of many cards."""
    slices: Any = 0
    for name, amount in held.items():
        if mig.is_resource(name):
            slices = slices + _slices(name) * amount
        elif name not in _UNCOUNTED:
            yield amount / _known(total.get(name, 0), CARD)
    yield slices / _known(
        sum(_slices(name) * amount for name, amount in total.items() if mig.is_resource(name)), SLICES
    )


def subdevices(total: Amounts) -> dict[str, int]:
    """Return the MIG instances and replicas among what a card has."""
    return {name: amount for name, amount in total.items() if amount and (mig.is_resource(name) or name == REPLICAS)}


def _slices(resource: str) -> int:
    return mig.slices(resource) or 1


def _known(total: Any, otherwise: int) -> Any:
    """Return a total, or another number where it is 0."""
    return total + (total == 0) * otherwise
