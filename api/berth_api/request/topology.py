"""Berth's own annotations: how a pod's GPUs are connected, how alike they are, and the minimum memory of each."""

from typing import Final, cast

from berth_api import links, metadata, names
from berth_api.request.annotations import Annotations
from berth_api.request.values import NEVER, ONLY, GpuTopology, RequestError, SubdeviceRule
from berth_api.resources import quantity

_LINKS_OF: Final = {"nvidia": "nvlink", "amd": "xgmi"}
"""Vendor -> its direct links."""
REQUIRED: Final = "required"
TRUE: Final = "true"


def of_gpus(annotations: Annotations) -> GpuTopology | None:
    """Return how the GPUs must be connected; None without the annotation.

    The connection is required unless the pod declares it a preference. Users see why a pod waits, but would not notice
    an unmet preference.

    Raises:
        RequestError: a value is not allowed.
    """
    level = _choice(annotations, names.GPU_TOPOLOGY)
    policy = _choice(annotations, names.GPU_TOPOLOGY_POLICY)
    if policy and not level:
        raise RequestError(f"annotation {names.GPU_TOPOLOGY_POLICY}: {policy}; it needs {names.GPU_TOPOLOGY}, too")
    return GpuTopology(level=level, required=(policy or REQUIRED) == REQUIRED) if level else None


def hint(vendor: str, topology: GpuTopology | None) -> str:
    """Return the question about direct links that a vendor's GPUs do not have; empty for all others."""
    level = topology.level if topology else ""
    own = _LINKS_OF.get(vendor, level)
    if level == own or level not in links.LEVELS:
        return ""
    return f"annotation {names.GPU_TOPOLOGY}: {level}; did you mean {own}, the links of the requested GPUs?"


def min_memory(annotations: Annotations) -> int:
    """Return the minimum bytes of memory that the pod must get of each GPU; 0 without the annotation.

    Raises:
        RequestError: the value is not a quantity above 0.
    """
    name = names.MIN_GPU_MEMORY
    if name not in annotations:
        return 0
    try:
        memory = quantity.parse(annotations[name].strip())
    except quantity.QuantityError as error:
        raise RequestError(f"annotation {name}: {error}") from error
    if not 0 < memory < quantity.MAX:
        raise RequestError(f"annotation {name}: {annotations[name]}; allowed are amounts above 0 such as 20Gi")
    return memory


def subdevices(annotations: Annotations, *, cards_only: bool) -> SubdeviceRule:
    """Return whether `nvidia.com/gpu` may be a replica or MIG instance; empty if the profile decides.

    It is never one if the pod requires a topology or partition of its cards (`cards_only`).

    Raises:
        RequestError: the value is not allowed, or contradicts the pod's other annotations.
    """
    rule = _choice(annotations, names.GPU_SUBDEVICES)
    if cards_only and rule == ONLY:
        raise RequestError(
            f"annotation {names.GPU_SUBDEVICES}: {ONLY}; the pod's topology, scope or partition is for whole cards, "
            f"allowed is {NEVER}"
        )
    return NEVER if cards_only else cast(SubdeviceRule, rule)


def mixed(annotations: Annotations) -> bool:
    """Return whether the pod accepts GPUs of several models and kinds.

    Raises:
        RequestError: the value is not allowed.
    """
    return _choice(annotations, names.MIXED_GPUS) == TRUE


def _choice(annotations: Annotations, name: str) -> str:
    value = annotations.get(name)
    if value is not None and value not in (key := metadata.of(metadata.POD, metadata.ANNOTATION)[name]).values:
        raise RequestError(f'annotation {name}: "{value}"; {key.allowed}')
    return value or ""
