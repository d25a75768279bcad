"""What a pod asks of devices, whatever protocol it speaks, in one form.

The pod's total of each device resource is checked against the combinations that mean something, and split into equal
parts of one or more cards (`amounts`, or `genius` for pods that ask by labels); annotations say which cards will do
(`hints`, `topology`). docs/protocol.md shows all of it with examples.
"""

from collections.abc import Mapping
from dataclasses import replace

from berth_api import interning
from berth_api.names import GPU
from berth_api.request import genius, hints, topology
from berth_api.request.amounts import (
    AMD_GPU,
    DCU_GPU,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    NVIDIA_GPU,
    NVIDIA_SHARED,
    VENDORS,
    is_counted_on_node,
    is_device,
    of_resources,
)
from berth_api.request.genius import LABELS
from berth_api.request.hints import Hint
from berth_api.request.kinds import BUILT_IN, Kind, KindError, Kinds
from berth_api.request.values import (
    AMOUNTS,
    CARD,
    INSTANCE,
    NOTHING,
    PLUGIN_UNIT,
    REPLICA,
    DeviceRequest,
    GpuTopology,
    Joint,
    Part,
    PartitionSpec,
    RequestError,
    Unit,
)

__all__ = [
    "AMD_GPU",
    "AMOUNTS",
    "BUILT_IN",
    "CARD",
    "DCU_GPU",
    "INSTANCE",
    "LABELS",
    "NOTHING",
    "NPU_CORE",
    "NPU_CPU",
    "NPU_DVPP",
    "NVIDIA_GPU",
    "NVIDIA_SHARED",
    "PLUGIN_UNIT",
    "REPLICA",
    "VENDORS",
    "DeviceRequest",
    "GpuTopology",
    "Hint",
    "Joint",
    "Kind",
    "KindError",
    "Kinds",
    "Part",
    "PartitionSpec",
    "RequestError",
    "Unit",
    "is_counted_on_node",
    "is_device",
    "of_pod",
    "of_resources",
]


def of_pod(
    total: Mapping[str, int], annotations: Mapping[str, str], labels: Mapping[str, str], kinds: Kinds = BUILT_IN
) -> DeviceRequest:
    """Normalise what a pod asks for, by its total of resource requests, its annotations and its labels.

    Annotations are read, and refused, whatever is asked for; those about devices that are not asked for do nothing.

    Raises:
        RequestError: something of it has no meaning.
    """
    by_type = hints.of_types(annotations, kinds.names)
    requested = (name for name in total if is_device(name, kinds))
    devices = genius.of_labels(labels, requested) or of_resources(total, by_type, kinds)
    joint = hints.joint(annotations, (part.type for part in devices.parts), by_type, kinds.names)
    partition, gpu_topology = hints.partition(annotations), topology.of_gpus(annotations)
    memory = topology.min_memory(annotations)
    gpus = [part for part in devices.parts if part.type == GPU]
    request = replace(
        devices,
        parts=tuple(_refined(part, by_type.get(part.type, hints.NO_HINT), memory) for part in devices.parts),
        joint=joint,
        # Partitions are of whole cards.
        partition=partition if any(part.whole for part in gpus) else None,
        # A card by itself has none that it must reach.
        topology=gpu_topology if sum(part.count for part in gpus) > 1 else None,
    )
    return interning.intern(request)


def _refined(part: Part, hint: hints.Hint, memory: int) -> Part:
    part = part if hint == hints.NO_HINT else hint.applied(part)
    return interning.intern(replace(part, min_memory=memory) if memory and part.type == GPU else part)
