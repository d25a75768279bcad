"""Partitions of a node's NVSwitch: sets of GPUs that can be allocated together without sharing links with other sets.

A table lists the sets for each number of GPUs, in Koordinator's form:
`{"2": [{"minors": [0, 1], "gpuLinkType": "NVLink", "ringBusBandwidth": "400Gi", "allocationScore": 1}, …], …}`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from berth_api import names
from berth_api.allocation import MAX_MINOR
from berth_api.resources import quantity
from berth_api.values import interning
from berth_api.values.caching import sized_cache

MAX_PARTITIONS: Final = 256
"""The maximum number of partitions of one size in one table."""
MAX_SIZE: Final = 256
_SIZES: Final = {str(size): size for size in range(1, MAX_SIZE + 1)}


class PartitionError(ValueError):
    """A table cannot be parsed; the message names the field and the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A set of GPUs that can be allocated together."""

    minors: tuple[int, ...]
    link: str = ""
    """The connection between them: `NVLink`."""
    bandwidth: int | None = None
    """Bandwidth of the ring over all GPUs; None if unknown."""
    score: int = 0
    """Sets with a higher score are preferred."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the hash once: tables are looked up in every decision."""
        object.__setattr__(self, "_hash", interning.hash_of(self))

    def __hash__(self) -> int:
        """Return the hash of all compared fields."""
        return self._hash


Table = tuple[tuple[int, tuple[Partition, ...]], ...]
"""(number of GPUs, sets of that size in the order of the annotation), sorted by number."""


def partitions_only(labels: Mapping[str, str]) -> bool:
    """Return whether the labels of a Node or Device allow whole cards to be allocated only by partition."""
    return labels.get(names.PARTITION_POLICY_LABEL) == "Honor"


@sized_cache(2**22)
def parse(text: str) -> Table:
    """Parse a table.

    Raises:
        PartitionError: it is not JSON, or not of the form above.
    """
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise PartitionError(f"not JSON: {error}") from error
    if not isinstance(body, dict):
        raise PartitionError('not a JSON object of the form {"2": [{"minors": [0, 1]}]}')
    table = []
    for key, sets in body.items():
        if key not in _SIZES:
            raise PartitionError(f'"{key}" is not a number of GPUs from 1 to {MAX_SIZE}')
        if not isinstance(sets, list) or len(sets) > MAX_PARTITIONS:
            raise PartitionError(f"{key}: not a list of up to {MAX_PARTITIONS}")
        size = _SIZES[key]
        table.append((size, tuple(_partition(raw, size, f"{key}[{i}]") for i, raw in enumerate(sets))))
    return tuple(sorted(table))


def _partition(raw: object, size: int, where: str) -> Partition:
    if not isinstance(raw, dict):
        raise PartitionError(f"{where}: not an object")
    link, score = raw.get("gpuLinkType") or "", raw.get("allocationScore") or 0
    if not isinstance(link, str) or not _is_whole(score):
        raise PartitionError(f"{where}: gpuLinkType must be text and allocationScore a whole number")
    written = raw.get("minors")
    minors = written if isinstance(written, list) else []
    if not all(_is_whole(minor) and 0 <= minor <= MAX_MINOR for minor in minors) or len(set(minors)) != size:
        raise PartitionError(f"{where}.minors: {written!r} are not {size} different minors")
    bandwidth = _bandwidth(raw.get("ringBusBandwidth"), where)
    return Partition(minors=tuple(sorted(minors)), link=link, bandwidth=bandwidth, score=score)


def _bandwidth(raw: Any, where: str) -> int | None:
    if raw is None:
        return None
    try:
        bandwidth = quantity.parse(raw) if isinstance(raw, str) or _is_whole(raw) else -1
    except quantity.QuantityError as error:
        raise PartitionError(f"{where}.ringBusBandwidth: {error}") from error
    if bandwidth < 0:
        raise PartitionError(f"{where}.ringBusBandwidth: {raw!r} is not a quantity such as 400Gi")
    return bandwidth


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# --- built in -----------------------------------------------------------------------------------------------

_BOARD: Final = 8
"""GPUs of a board with NVSwitch. Boards with four GPUs have none."""
_ON_NVSWITCH: Final = re.compile(
    r"(NVIDIA )?(H100|H200|H800|H20|B100|B200|B300)( 3e)?( SXM[0-9])?( [0-9]+GB)?( HBM[0-9]\w*)?( AC)?"
)
"""Matches names of the driver, `NVIDIA H100 80GB HBM3`, and of labels, `H100-80GB-HBM3`. Cards in PCIe slots have other
names: `NVIDIA H100 PCIe`, `NVIDIA H100 NVL`."""


def _even(size: int) -> tuple[Partition, ...]:
    firsts = range(0, _BOARD, size)
    return tuple(Partition(minors=tuple(range(first, first + size)), link="NVLink", score=1) for first in firsts)


NVSWITCH: Final[Table] = tuple((size, _even(size)) for size in (1, 2, 4, 8))
"""Boards of Hopper and Blackwell: the whole board, halves, quarters and single cards."""


def built_in(models: Collection[str], minors: Collection[int]) -> Table:
    """Return the table of a board of eight GPUs, of which up to three may have failed; empty for other boards."""
    if not _BOARD // 2 < len(minors) <= _BOARD or max(minors) >= _BOARD:
        return ()
    return NVSWITCH if all(map(is_on_nvswitch, models)) else ()


@sized_cache(2**18)
def is_on_nvswitch(model: str) -> bool:
    """Return whether GPUs of this model are on boards of eight with NVSwitch."""
    return _ON_NVSWITCH.fullmatch(model.replace("-", " ")) is not None
