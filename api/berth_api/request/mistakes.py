"""Requests that the user cannot have meant: amounts in the wrong unit, and misspelt names.

They are refused while a pod waits. A bound pod is charged for what it holds in any case, so `of_resources` does not
include these checks.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from berth_api import allocation, metadata, names
from berth_api.names import FPGA, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, RDMA
from berth_api.request.values import CARD, RequestError
from berth_api.resources import quantity
from berth_api.values import spelling

Strings = Mapping[str, str]

LEAST_MEMORY: Final = 2**20
"""The least bytes of GPU memory on each card: in a smaller amount the unit is missing."""
_MILLI: Final = 1000
_HUNDREDTHS: Final = (GPU, GPU_CORE, GPU_MEMORY_RATIO, RDMA, FPGA)
VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The variables by which CUDA and ROCm choose among the cards of a container."""
_NUMBER: Final = re.compile("[0-9]{1,9}")
_NO_CARDS: Final = ("-1", "none", "NoDevFiles")
_GPUS: Final = (GPU, GPU_SHARED, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO)
_DEVICES: Final = (*_GPUS, RDMA, FPGA)


# --- amounts ------------------------------------------------------------------------------------------------


def check_amounts(spec: Mapping[str, Any]) -> None:
    """Check the amounts that each container of a pod requests. All of them must be valid quantities.

    Raises:
        RequestError: an amount is certainly a mistake, or a resource of `kubernetes.io/gpu…` does not exist.
    """
    for kind, what in (("initContainers", "init container"), ("containers", "container")):
        for container in spec.get(kind) or ():
            try:
                _check_container((container.get("resources") or {}).get("requests") or {})
            except RequestError as error:
                raise RequestError(f"{error} ({what} {container.get('name', '')})") from error


def _check_container(requests: Mapping[str, Any]) -> None:
    for name, value in requests.items():
        short = allocation.short(name)
        if short != name:
            _check_amount(name, short, str(value))
    _check_spread(requests)


def _check_amount(name: str, short: str, value: str) -> None:
    milli = quantity.parse_milli(value)
    # `parse_milli` truncates large amounts.
    is_fraction = milli < quantity.MAX and milli % _MILLI != 0
    if short == GPU_MEMORY:
        _check_memory(name, value, f"{milli / _MILLI}" if is_fraction else "")
    elif short in _HUNDREDTHS:
        if is_fraction:
            raise RequestError(f"{name}: {milli / _MILLI}; allowed are whole hundredths of a card{_meant(milli)}")
        if short == GPU and milli == _MILLI:
            raise RequestError(
                f"{name}: 1; allowed are hundredths of a card, from 2; did you mean 100 (one whole GPU)?"
            )
    elif short == GPU_SHARED and is_fraction:
        raise RequestError(f"{name}: {milli / _MILLI}; allowed are whole numbers of cards")
    elif name.startswith(f"{names.PREFIX}{GPU}") and short not in _GPUS:
        raise RequestError(f"{name}: {spelling.question(short, _GPUS, names.PREFIX)}")


def _meant(milli: int) -> str:
    """Return the question whether a fraction of one is a fraction of a card: 0.5 is 50 hundredths."""
    hundredths, rest = divmod(milli * CARD, _MILLI)
    return f"; did you mean {hundredths}?" if 1 < hundredths < CARD and not rest else ""


def _check_memory(name: str, value: str, fraction: str) -> None:
    size = quantity.parse(value)
    if not size or (not fraction and size >= LEAST_MEMORY):
        return
    if value.endswith("i"):
        raise RequestError(f"{name}: {value}; allowed are bytes, from 1Mi")
    written = fraction or str(size)
    question = f"; did you mean {meant}?" if (meant := with_unit(written, size)) else ""
    raise RequestError(f"{name}: {written}; allowed are whole bytes, from 1Mi{question}")


def with_unit(written: str, size: int) -> str:
    """Return an amount of memory with the unit that it seems to lack, such as 20Gi; empty if it lacks none.

    `size` is the amount in bytes, rounded down.
    """
    unit = "Gi" if size < 2**10 else "Mi" if size < LEAST_MEMORY else ""
    return f"{written}{unit}" if unit else ""


def _check_spread(requests: Mapping[str, Any]) -> None:
    for prefix in (names.PREFIX, names.OTHER_PREFIX):
        memory, shared = requests.get(prefix + GPU_MEMORY), requests.get(prefix + GPU_SHARED)
        if memory and shared and 0 < quantity.parse(memory) < LEAST_MEMORY * quantity.parse(shared):
            raise RequestError(
                f"{prefix}{GPU_MEMORY}: {memory}, {prefix}{GPU_SHARED}: {shared}; allowed is at least 1Mi on each card"
            )


def excess(spec: Mapping[str, Any]) -> str:
    """Return the question about limits above the requests of devices; empty if there are none.

    The API server allows such limits for `kubernetes.io/` alone. `manifests/base/warnings.yaml` asks the same in CEL.
    """
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return "; ".join(question for container in containers for question in _excess(container))


def _excess(container: Mapping[str, Any]) -> Iterator[str]:
    amounts = container.get("resources") or {}
    requests, limits = amounts.get("requests") or {}, amounts.get("limits") or {}
    for name in (f"{names.PREFIX}{device}" for device in _DEVICES):
        if name not in requests or name not in limits:
            continue
        requested, limit = requests[name], limits[name]
        if quantity.parse_milli(limit) > quantity.parse_milli(requested):
            yield (
                f"container {container.get('name', '')}: {name}: {requested} in requests and {limit} in limits; "
                f"Berth allocates what is requested; did you mean {limit} in both?"
            )


def visible_devices(spec: Mapping[str, Any], cards: int) -> Iterator[str]:
    """Yield a question for each variable of a container that chooses cards which a pod with so many does not have.

    Containers with devices of ResourceClaims are left out, because `cards` does not count these.
    """
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        if (container.get("resources") or {}).get("claims"):
            continue
        for variable in container.get("env") or ():
            if variable.get("name") not in VISIBLE:
                continue
            value = variable.get("value") or ""
            chosen = [number.strip() for number in value.split(",")]
            is_given = all(_NUMBER.fullmatch(number) and int(number) < cards for number in chosen)
            if value and value not in _NO_CARDS and not is_given:
                yield (
                    f"container {container.get('name', '')} has {variable['name']}={value}, which requests no card and "
                    "numbers the container's own cards from 0; did you mean to leave it out?"
                )


# --- names --------------------------------------------------------------------------------------------------


def check_names(annotations: Strings, labels: Strings) -> None:
    """Check the annotations and labels of a pod that begin with `berth.dev/`.

    Raises:
        RequestError: Berth reads and writes none of this name, or not with this value; it would have no effect.
    """
    by_place: dict[metadata.Place, Strings] = {metadata.ANNOTATION: annotations, metadata.LABEL: labels}
    for place, written in by_place.items():
        for name, meant in metadata.unknown(metadata.POD, place, written):
            raise RequestError(f"{place} {name}: {meant}")
        for key in metadata.wrong(metadata.POD, place, written):
            raise RequestError(f'{place} {key.name}: "{written[key.name]}"; {key.allowed}')
