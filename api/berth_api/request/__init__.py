"""A pod's request for devices, in one form for all protocols.

The pod's total of each device resource must be a valid combination. It is split into equal parts of one or more cards
(`amounts`, or `genius` for pods that request by labels). Annotations restrict the cards (`hints`, `topology`). An
amount that the user cannot have meant is refused while the pod waits (`mistakes`). docs/protocol.md has examples.
"""

from collections.abc import Mapping
from dataclasses import replace

from berth_api.names import GPU
from berth_api.request import genius, hints, mistakes, topology
from berth_api.request.amounts import (
    AMD_GPU,
    AMD_PARTITIONS,
    DCU_GPU,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    NVIDIA_GPU,
    NVIDIA_SHARED,
    VENDORS,
    check_size,
    is_counted_on_node,
    is_device,
    of_resources,
    vendor_of,
)
from berth_api.request.genius import LABELS
from berth_api.request.hints import Hint
from berth_api.request.kinds import BUILT_IN, GpuVendor, Kind, KindError, Kinds
from berth_api.request.values import (
    AMOUNTS,
    CARD,
    EQUAL,
    INSTANCE,
    LAST,
    NEVER,
    NOTHING,
    ONLY,
    PLUGIN_UNIT,
    REPLICA,
    WHOLE_CARD,
    DeviceRequest,
    GpuTopology,
    Joint,
    Part,
    PartitionSpec,
    RequestError,
    SubdeviceRule,
    Unit,
)
from berth_api.request.written import NOTHING_WRITTEN, Written
from berth_api.values import interning

__all__ = [
    "AMD_GPU",
    "AMD_PARTITIONS",
    "AMOUNTS",
    "BUILT_IN",
    "CARD",
    "DCU_GPU",
    "EQUAL",
    "INSTANCE",
    "LABELS",
    "LAST",
    "NEVER",
    "NOTHING",
    "NPU_CORE",
    "NPU_CPU",
    "NPU_DVPP",
    "NVIDIA_GPU",
    "NVIDIA_SHARED",
    "ONLY",
    "PLUGIN_UNIT",
    "REPLICA",
    "VENDORS",
    "WHOLE_CARD",
    "DeviceRequest",
    "GpuTopology",
    "GpuVendor",
    "Hint",
    "Joint",
    "Kind",
    "KindError",
    "Kinds",
    "Part",
    "PartitionSpec",
    "RequestError",
    "SubdeviceRule",
    "Unit",
    "Written",
    "is_counted_on_node",
    "is_device",
    "mistakes",
    "of_pod",
    "of_resources",
    "vendor_of",
]


def of_pod(
    total: Mapping[str, int],
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    kinds: Kinds = BUILT_IN,
    written: Written = NOTHING_WRITTEN,
) -> DeviceRequest:
    """Return what a pod requests by its total of resource requests, its annotations and its labels.

    All annotations are checked, even annotations about devices that the pod does not request. These have no effect.

    Raises:
        RequestError: a resource, annotation or label is invalid; amounts are quoted as `written`.
    """
    try:
        check_size(total, kinds, written)
        by_type = hints.of_types(annotations, kinds.names)
        requested = (name for name in total if is_device(name, kinds))
        devices = genius.of_labels(labels, requested) or of_resources(total, by_type, kinds, written)
        by_others = not kinds.nics.keys().isdisjoint(total)
        types = (part.type for part in devices.parts)
        joint = hints.joint(annotations, types, by_type, kinds.names, by_others=by_others)
        partition, gpu_topology = hints.partition(annotations), topology.of_gpus(annotations)
        memory, mixed = topology.min_memory(annotations), topology.mixed(annotations)
        gpus = [part for part in devices.parts if part.type == GPU]
        cards_only = partition is not None or (gpu_topology is not None and gpu_topology.required)
        rule = topology.subdevices(annotations, cards_only=cards_only or by_type.get(GPU, hints.NO_HINT).is_scoped)
        request = replace(
            devices,
            parts=tuple(_refined(part, by_type.get(part.type, hints.NO_HINT), memory, rule) for part in devices.parts),
            joint=joint,
            # Partitions consist of whole cards.
            partition=partition if any(part.whole for part in gpus) else None,
            # A single card has no other card to be connected to.
            topology=gpu_topology if sum(part.count for part in gpus) > 1 else None,
            mixed=mixed and bool(gpus),
            hint=devices.hint or topology.hint(devices.vendor, gpu_topology),
        )
        return interning.intern(request)
    except RequestError as error:
        raise RequestError(f"{error}{written.origin(error.resources)}") from error


def _refined(part: Part, hint: hints.Hint, memory: int, rule: SubdeviceRule) -> Part:
    part = part if hint == hints.NO_HINT else hint.applied(part)
    if (rule and part.unit == PLUGIN_UNIT) or (rule == ONLY and part.unit == INSTANCE):
        part = replace(part, subdevices=rule)
    return interning.intern(replace(part, min_memory=memory) if memory and part.type == GPU else part)
