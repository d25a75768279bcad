"""Why a row cannot give a part of a request, as far as it is a matter of how many cards there are."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from berth_api.allocation import text
from berth_api.names import GPU, GPU_MEMORY
from berth_api.request import Part
from berth_operator.core.allocators import candidates
from berth_operator.core.fleet.cards import Mask
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.core.values.request import PodRequest

WITHHELD: Final = "GPU devices not offered to kubelet now"
"""Their node's agent gives them back once it has seen those pods go."""


def of_cards(fleet: Fleet, request: PodRequest, part: Part, rejected: Mask) -> Iterator[tuple[str, Mask]]:
    """Give what may be missing, and the rows where it is; enough cards may still be no cards that will do together."""
    kind, label = part.type, part.type.upper()
    healthy = fleet.cards[kind].healthy
    yield f"fewer than {part.count} healthy {label} devices", few(healthy, part)
    of_model = few(healthy & candidates.of_model(fleet, request, part), part)
    yield f"{label} model is not {request.model}", of_model
    right = healthy & candidates.accepted(fleet, request, part)
    yield f"{label} devices have other labels than the pod's selector asks for", few(right, part)
    small = few(candidates.suitable(fleet, request, part), part)
    yield _too_small(fleet, part, right, small & rejected), small
    yield f"{label} devices held by pods whose allocation is unknown", fleet.cards[kind].unknown > 0
    yield f"insufficient free {label} devices ({_wanted(part)})", few(candidates.free(fleet, request, part), part)
    if candidates.by_kubelet(part):
        left = candidates.free(fleet, request, part) & ~fleet.cards[kind].withheld
        yield WITHHELD, few(left, part)
    if part.exclusive:
        kept = f"{label} devices kept by other pods with an exclusivePolicy ({part.exclusive} is asked for)"
        yield kept, few(candidates.fitting(fleet, request, part), part)


def few(mask: Mask, part: Part) -> Mask:
    """Give the rows with fewer such cards than the part wants."""
    found: Mask = mask.sum(axis=1) < part.count
    return found


def _too_small(fleet: Fleet, part: Part, right: Mask, rows: Mask) -> str:
    """Name the memory that these rows could give on each of as many cards as the pod wants."""
    wanted = max(dict(part.amounts).get(GPU_MEMORY, 0), part.min_memory)
    if part.type != GPU or not wanted:
        return f"{part.type.upper()} devices offer less"
    cards = fleet.cards[part.type]
    memory = np.where(right, cards.total[cards.index[GPU_MEMORY]], 0)
    # Of several cards the smallest limits the pod. Rows with fewer cards than it wants have another reason.
    last = min(part.count, memory.shape[1])
    largest = int(np.sort(memory, axis=1)[rows, -last].max(initial=0))
    if largest >= wanted:
        return "GPU devices offer less"
    return f"GPU memory too small (largest {text(GPU_MEMORY, largest)} < {text(GPU_MEMORY, wanted)})"


def _wanted(part: Part) -> str:
    each = ", ".join(f"{name} {text(name, amount)}" for name, amount in part.amounts)
    return f"{part.count} with {each}"
