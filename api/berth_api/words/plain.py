"""A pod's request in plain amounts: `2 cards of 3000 MiB each`."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from berth_api.names import FPGA, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from berth_api.request import CARD, INSTANCE, NVIDIA_GPU, PLUGIN_UNIT, REPLICA, DeviceRequest, Part
from berth_api.words.table import MIB

_NAMES: Final = {GPU: "card", RDMA: "RDMA NIC", FPGA: "FPGA"}
_OF_VENDOR: Final = {"huawei": "Huawei NPU", "amd": "AMD GPU", "hygon": "Hygon DCU"}


def text(devices: DeviceRequest) -> str:
    """Return the request in plain amounts; empty if it has none."""
    return " and ".join(_part(part, _type(part, devices.vendor)) for part in devices.parts)


def reading(words: Iterable[str], said: Mapping[str, str], notes: Iterable[str], devices: DeviceRequest) -> str:
    """Return the meaning of each word, and which words have no effect; empty if there are none.

    `said` has the meanings of words that are no amounts.
    """
    titles = tuple(words)
    amounts = [title for title in titles if title not in said]
    means = text(devices) or "Berth's own"
    read = [f"{', '.join(amounts)} {'is' if len(amounts) == 1 else 'are'} read as {means}"] if amounts else []
    read += [f"{title} is read as {said[title]}" for title in titles if said.get(title)]
    return "; ".join((*read, *notes))


def _type(part: Part, vendor: str) -> str:
    """Return what a device of a part is called."""
    return _OF_VENDOR[vendor] if part.type == GPU and vendor in _OF_VENDOR else _NAMES.get(part.type, part.type)


def _part(part: Part, device: str) -> str:
    if part.unit == PLUGIN_UNIT:
        return f"{part.count} x {NVIDIA_GPU}"
    if part.unit == REPLICA:
        return f"{_many(part.count, 'slice')} of time-sliced cards"
    if part.unit == INSTANCE:
        return " and ".join(f"{part.count} x {name}" for name, _ in part.amounts)
    name = f"every {device}" if part.every else _many(part.count, f"whole {device}" if part.whole else device)
    cores = dict(part.amounts).get(GPU_CORE, CARD)
    if part.whole:
        return f"{name} with {cores} % of the cores{' each' if part.count > 1 else ''}" if cores < CARD else name
    return f"{name} of {' and '.join(_amounts(part))}{' each' if part.count > 1 else ''}"


def _many(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _amounts(part: Part) -> Iterator[str]:
    amounts = dict(part.amounts)
    if GPU_MEMORY in amounts:
        size = amounts[GPU_MEMORY]
        yield f"{size // MIB} MiB" if size % MIB == 0 else f"{size} bytes"
    if GPU_MEMORY_RATIO in amounts:
        yield f"{amounts[GPU_MEMORY_RATIO]} % of the memory"
    if amounts.get(GPU_CORE):
        yield f"{amounts[GPU_CORE]} % of the cores"
    for name in amounts.keys() - {GPU_MEMORY, GPU_MEMORY_RATIO, GPU_CORE}:
        yield f"{amounts[name]} % of it" if name == part.type else f"{name} {amounts[name]}"
