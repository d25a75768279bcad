"""The allocation annotation: which cards a pod holds, and how much of each.

The form is Koordinator's, since its users and tools already speak it:
`{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"50",…},"id":"GPU-…"}]}`.
Amounts are integers here (memory in bytes); resource names lose either of the two prefixes that mean the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from berth_api import names, quantity

TYPES: Final = ("gpu", "rdma", "fpga")
MAX_MINOR: Final = 65535
MAX_CARDS: Final = 256
"""Of one type, as on a Device."""


class AllocationError(ValueError):
    """An annotation is not an allocation; the text names the place in it and what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A pod's part of one card."""

    type: str
    minor: int
    amounts: tuple[tuple[str, int], ...]
    """(resource without prefix, amount)."""
    id: str = ""


@lru_cache(maxsize=1024)
def short(name: str) -> str:
    """Give a resource name without the prefixes that mean the same."""
    for prefix in (names.PREFIX, names.OTHER_PREFIX):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def long(name: str, prefix: str) -> str:
    """Give a short resource name its prefix; foreign names such as `huawei.com/npu-core` stay."""
    return name if "/" in name else prefix + name


def render(grants: Iterable[Grant], prefix: str = names.PREFIX) -> str:
    """Give the annotation's text."""
    body: dict[str, list[dict[str, Any]]] = {}
    for grant in grants:
        resources = {long(name, prefix): text(name, amount) for name, amount in grant.amounts}
        entry: dict[str, Any] = {"minor": grant.minor, "resources": resources}
        body.setdefault(grant.type, []).append({**entry, "id": grant.id} if grant.id else entry)
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode()


def text(name: str, amount: int) -> str:
    """Give an amount as text: memory in binary units, the rest as it is."""
    return quantity.format_bytes(amount) if name == names.GPU_MEMORY else str(amount)


def parse(annotation: str) -> tuple[Grant, ...]:
    """Read an annotation.

    Raises:
        AllocationError: it is not JSON, or not of the form above.
    """
    try:
        body = orjson.loads(annotation)
    except orjson.JSONDecodeError as error:
        raise AllocationError(f"not JSON: {error}") from error
    if not isinstance(body, dict):
        raise AllocationError('not a JSON object of the form {"gpu": [{"minor": 0, "resources": {…}}]}')
    grants = tuple(
        _grant(kind, entry, f"{kind}[{i}]") for kind, entries in body.items() for i, entry in _listed(kind, entries)
    )
    _refuse_repeated(grants)
    return grants


def _refuse_repeated(grants: Iterable[Grant]) -> None:
    seen: set[tuple[str, int]] = set()
    for grant in grants:
        if (grant.type, grant.minor) in seen:
            raise AllocationError(f"{grant.type}: minor {grant.minor} stands more than once")
        seen.add((grant.type, grant.minor))


def _listed(kind: str, entries: object) -> Iterable[tuple[int, object]]:
    if kind not in TYPES:
        raise AllocationError(f'"{kind}" is not a device type; allowed are {", ".join(TYPES)}')
    if not isinstance(entries, list):
        raise AllocationError(f"{kind}: not a list")
    if len(entries) > MAX_CARDS:
        raise AllocationError(f"{kind}: {len(entries)} entries; allowed are {MAX_CARDS}")
    return enumerate(entries)


def _grant(kind: str, entry: object, where: str) -> Grant:
    if not isinstance(entry, dict):
        raise AllocationError(f"{where}: not an object")
    minor, uuid, resources = entry.get("minor", 0), entry.get("id", ""), entry.get("resources") or {}
    if not isinstance(minor, int) or isinstance(minor, bool) or not 0 <= minor <= MAX_MINOR:
        raise AllocationError(f"{where}.minor: {minor!r} is not a whole number from 0 to {MAX_MINOR}")
    if not isinstance(uuid, str) or not isinstance(resources, dict):
        raise AllocationError(f"{where}: id must be text and resources an object")
    return Grant(type=kind, minor=minor, amounts=_amounts(resources, where), id=uuid)


def _amounts(resources: Mapping[str, Any], where: str) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for name, value in resources.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise AllocationError(f"{where}.resources.{name}: {value!r} is not a quantity")
        try:
            amount = quantity.parse(value)
        except quantity.QuantityError as error:
            raise AllocationError(f"{where}.resources.{name}: {error}") from error
        if amount < 0:
            raise AllocationError(f"{where}.resources.{name}: {value} is negative")
        found[short(name)] = amount
    if not any(found.values()):
        # Counted as it stands it would leave the card free.
        raise AllocationError(f"{where}.resources: names no amount")
    return tuple(sorted(found.items()))
