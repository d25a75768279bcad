"""Berth's own annotations: the connection between a pod's GPUs, and the least memory of each."""

from typing import Final, cast, get_args

from berth_api import names, quantity
from berth_api.request.annotations import Annotations
from berth_api.request.values import GpuTopology, Level, RequestError

LEVELS: Final = get_args(Level)
REQUIRED: Final = "required"
POLICIES: Final = (REQUIRED, "preferred")


def of_gpus(annotations: Annotations) -> GpuTopology | None:
    """Return how the GPUs must be connected; None without the annotation.

    It is required unless the pod says otherwise: users see why a pod waits, but would not notice an unmet preference.

    Raises:
        RequestError: a value is not allowed.
    """
    level = _choice(annotations, names.GPU_TOPOLOGY, LEVELS)
    policy = _choice(annotations, names.GPU_TOPOLOGY_POLICY, POLICIES)
    if policy and not level:
        raise RequestError(f"annotation {names.GPU_TOPOLOGY_POLICY}: {policy}; it needs {names.GPU_TOPOLOGY}, too")
    return GpuTopology(level=cast(Level, level), required=(policy or REQUIRED) == REQUIRED) if level else None


def min_memory(annotations: Annotations) -> int:
    """Return how many bytes of memory each GPU must have in total; 0 without the annotation.

    Raises:
        RequestError: it is not a quantity above 0.
    """
    name = names.MIN_GPU_MEMORY
    if name not in annotations:
        return 0
    try:
        memory = quantity.parse(annotations[name].strip())
    except quantity.QuantityError as error:
        raise RequestError(f"annotation {name}: {error}") from error
    if memory <= 0:
        raise RequestError(f"annotation {name}: {annotations[name]}; allowed are amounts above 0 such as 20Gi")
    return memory


def _choice(annotations: Annotations, name: str, allowed: tuple[str, ...]) -> str:
    value = annotations.get(name)
    if value is not None and value not in allowed:
        raise RequestError(f'annotation {name}: "{value}"; allowed are {", ".join(allowed)}')
    return value or ""
