"""Berth's own annotations: how a pod's GPUs must reach each other, and how large each must be."""

from typing import Final, cast, get_args

from berth_api import names, quantity
from berth_api.request.annotated import Annotations
from berth_api.request.values import GpuTopology, Level, RequestError

LEVELS: Final = get_args(Level)
REQUIRED: Final = "required"
POLICIES: Final = (REQUIRED, "preferred")


def of_gpus(annotations: Annotations) -> GpuTopology | None:
    """Read how the GPUs must reach each other; None where the pod does not mind.

    It is required unless the pod says otherwise: a preference that was not met nobody notices, and a pod that waits
    tells why.

    Raises:
        RequestError: a word is none that is allowed.
    """
    level = _word(annotations, names.GPU_TOPOLOGY, LEVELS)
    policy = _word(annotations, names.GPU_TOPOLOGY_POLICY, POLICIES)
    if policy and not level:
        raise RequestError(f"annotation {names.GPU_TOPOLOGY_POLICY}: {policy}, without {names.GPU_TOPOLOGY} beside it")
    return GpuTopology(level=cast(Level, level), required=(policy or REQUIRED) == REQUIRED) if level else None


def min_memory(annotations: Annotations) -> int:
    """Read how many bytes each GPU must have in all; 0 where the pod does not mind.

    Raises:
        RequestError: it is no amount.
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


def _word(annotations: Annotations, name: str, allowed: tuple[str, ...]) -> str:
    value = annotations.get(name)
    if value is not None and value not in allowed:
        raise RequestError(f'annotation {name}: "{value}"; allowed are {", ".join(allowed)}')
    return value or ""
