"""Which cards of its pod each container sees.

Containers get the pod's cards in the order in which they start. Containers with whole cards get their own cards, and
fractions share a card. Init containers have ended when the other containers start, so these begin at the same card.
Sidecars keep their cards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from berth_api import allocation, names, request, resources

_MEASURES: Final = (
    request.NVIDIA_GPU,
    request.NVIDIA_SHARED,
    request.AMD_GPU,
    *request.AMD_PARTITIONS,
    request.DCU_GPU,
    names.GPU,
    names.GPU_MEMORY_RATIO,
    names.GPU_MEMORY,
    request.NPU_CORE,
)
"""Resources that measure a GPU request: the first of these that the pod names."""
_OTHERS: Final = {names.GPU_CORE, names.GPU_SHARED, request.NPU_CPU, request.NPU_DVPP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The cards of a container: from `first` up to, but not including, `end` of the pod's GPUs as allocated."""

    container: str
    first: int
    end: int


def of_pod(
    containers: Sequence[resources.Container],
    devices: request.DeviceRequest,
    kinds: request.Kinds = request.BUILT_IN,
) -> tuple[Share, ...]:
    """Return the cards of each container that sees GPUs; a container that requests several kinds has several shares."""
    parts = [part for part in devices.parts if part.type == names.GPU]
    if devices.labelled:
        cards = sum(part.count for part in parts)
        return tuple(Share(container=container.name, first=0, end=cards) for container in containers)
    measured = [(container, _without_prefix(container.requests)) for container in containers]
    total = _without_prefix(resources.combined(containers))
    shares: list[Share] = []
    first = 0
    for part in parts:
        # Without a measure only the pod's overhead requests devices.
        measures = [name for name, _ in part.amounts] if part.unit == request.INSTANCE else (*_MEASURES, *kinds.gpus)
        if measure := next((name for name in measures if name in total), ""):
            position = 0
            for container, amounts in measured:
                amount = amounts.get(measure, 0)
                if amount:
                    begin = position * part.count // total[measure]
                    end = min(-(-(position + amount) * part.count // total[measure]), part.count)
                    shares.append(Share(container=container.name, first=first + begin, end=first + end))
                elif amounts.keys() & _OTHERS:
                    # It requests cores of the cards that hold the other containers' memory.
                    shares.append(Share(container=container.name, first=first, end=first + part.count))
                if container.sidecar or not container.init:
                    position += amount
        first += part.count
    return tuple(shares)


def _without_prefix(amounts: Mapping[str, int]) -> dict[str, int]:
    return {allocation.short(name): amount for name, amount in amounts.items()}
