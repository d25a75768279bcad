"""Genius' labels, with which a pod requests GPUs without a resource.

Genius itself uses the labels only to choose a node, and allocates no cards. In Berth they are a request like any other:
cards are charged, so that two pods cannot get the same memory.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from berth_api import names
from berth_api.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from berth_api.request.values import CARD, NOTHING, DeviceRequest, Part, RequestError

LABELS: Final = (names.GENIUS_NUMBER, names.GENIUS_MEMORY_EACH, names.GENIUS_MEMORY_TOTAL)
MAX: Final = 2**31
MIB: Final = 2**20


def of_labels(labels: Mapping[str, str], requested: Iterable[str]) -> DeviceRequest:
    """Return what the labels request; `NOTHING` without such labels.

    They request `gpu-number` cards, by default one card. With a memory label, the cards are shared. Each card is
    charged this memory, or an equal part of the total. Without a memory label, the cards are whole.

    Raises:
        RequestError: a label is not a number above 0, or device resources are `requested`, too.
    """
    if not any(name in labels for name in LABELS):
        return NOTHING
    count = _number(labels, names.GENIUS_NUMBER) or 1
    memory_each, memory_total = _number(labels, names.GENIUS_MEMORY_EACH), _number(labels, names.GENIUS_MEMORY_TOTAL)
    if resources := sorted(requested):
        label = next(name for name in LABELS if name in labels)
        first = resources[0]
        raise RequestError(f"label {label} and resource {first}; request devices by one of the two", first)
    memory = MIB * max(memory_each, -(-memory_total // count))
    amounts = ((GPU_MEMORY, memory),) if memory else ((GPU_CORE, CARD), (GPU_MEMORY_RATIO, CARD))
    return DeviceRequest(parts=(Part(type=GPU, count=count, amounts=amounts),), labelled=True)


def _number(labels: Mapping[str, str], name: str) -> int:
    """Return the number in a label; 0 if it is absent."""
    text = labels.get(name)
    if text is None:
        return 0
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(MAX)) else 0
    if not 0 < number <= MAX:
        raise RequestError(f'label {name}: "{text}"; allowed are whole numbers from 1 to {MAX}')
    return number
