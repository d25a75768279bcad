"""The allocation annotation: which cards a pod holds, and how much of each.

The format is Koordinator's, because users and tools already know it:
`{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"50",…},"id":"GPU-…"}]}`. Amounts are integers here, and
memory is in bytes. Two prefixes of resource names mean the same, and both are removed.

Each MIG instance and each replica has its own entry, with the minor of its card and its own id. So one card may have
several entries. Virtual functions and the exclusive policy of the pod are in the `extension` of the card's entry.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from berth_api import names
from berth_api.allocation import device_ids, mig
from berth_api.resources import quantity
from berth_api.values.caching import sized_cache

TYPES: Final = ("gpu", "rdma", "fpga")
"""The built-in types of devices."""
TYPE: Final = r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?"
"""The form of the name of a type; plug-ins add types."""
MAX_MINOR: Final = 65535
MAX_CARDS: Final = 256
"""Cards of one type, as on a Device."""
MAX_ENTRIES: Final = 8 * MAX_CARDS
"""Entries of one type: a card may have several."""
REPLICAS: Final = "nvidia.com/gpu.shared"
"""A time-sliced card has as many of this resource as replicas. A grant of a replica has one."""
_SUBDEVICES: Final = (REPLICAS, mig.PREFIX)
REPLICA_MARK: Final = "::"
"""Separates the id of a card from the number of a replica: `GPU-…::3`."""
FUNCTIONS: Final = "virtual functions"
"""The name that counts the virtual functions of a card. It is no valid resource name."""
DEVICE_LEVEL: Final = "DeviceLevel"
PCIE_LEVEL: Final = "PCIeLevel"
EXCLUSIVES: Final = (DEVICE_LEVEL, PCIE_LEVEL)
"""Exclusive policies, and the names that count pods with these policies on a card. They are no valid resource names."""
MAX_FUNCTIONS: Final = 256
UNNUMBERED: Final = -1
"""The minor of a virtual function without a minor."""


class AllocationError(ValueError):
    """An annotation is not a valid allocation; the message names the field and the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A virtual function of a card."""

    minor: int
    bus_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One device that a pod holds, or its share of it."""

    type: str
    minor: int
    amounts: tuple[tuple[str, int], ...]
    """(resource without prefix, amount); memory is in bytes."""
    id: str = ""
    """UUID of the card, or the id of the instance or replica."""
    functions: tuple[Function, ...] = ()
    exclusive: str = ""
    """One of EXCLUSIVES, or empty: no other pod with this policy may share the card."""
    parent: str = ""
    """UUID of the card of an instance or replica; empty for whole cards, and in older allocations."""

    @property
    def is_subdevice(self) -> bool:
        """Return whether this is an instance or a replica. A card has several of them."""
        # A loop is faster than any(); this runs at every charge.
        for name, _ in self.amounts:  # noqa: SIM110
            if name.startswith(_SUBDEVICES):
                return True
        return False

    @property
    def visible(self) -> str:
        """Return the id that a container sees: a replica is seen as its card."""
        return visible(self.id)

    @property
    def counted(self) -> tuple[tuple[str, int], ...]:
        """Return all that is counted on the card: the amounts, the number of virtual functions, an exclusive pod."""
        if not self.functions and not self.exclusive:
            return self.amounts
        functions = ((FUNCTIONS, len(self.functions)),) if self.functions else ()
        return (*self.amounts, *functions, *(((self.exclusive, 1),) if self.exclusive else ()))

    @property
    def handles(self) -> tuple[str, ...]:
        """Return the names of what no other pod may hold: the instance or replica, and the virtual functions."""
        if not self.functions and not self.is_subdevice:
            return ()
        functions = (handle(self.type, self.minor, function) for function in self.functions)
        return (self.id, *functions) if self.is_subdevice else tuple(functions)


def visible(name: str) -> str:
    """Return the id of a device that a container sees: a replica is seen as its card."""
    return name.partition(REPLICA_MARK)[0]


def handle(kind: str, minor: int, function: Function) -> str:
    """Return a name of a virtual function of a card that is unique on its node."""
    return function.bus_id or f"{kind} {minor} function {function.minor}"


@sized_cache(2**20)
def short(name: str) -> str:
    """Return a resource name without either of the two equivalent prefixes."""
    for prefix in (names.PREFIX, names.OTHER_PREFIX):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def long(name: str, prefix: str) -> str:
    """Return a short resource name with a prefix. Names such as `huawei.com/npu-core` have their own prefix."""
    return name if "/" in name else prefix + name


def render(grants: Iterable[Grant], prefix: str = names.PREFIX) -> str:
    """Return the text of the annotation."""
    body: dict[str, list[dict[str, Any]]] = {}
    for grant in grants:
        resources = {long(name, prefix): text(name, amount) for name, amount in grant.amounts}
        entry: dict[str, Any] = {"minor": grant.minor, "resources": resources}
        if grant.id:
            entry["id"] = grant.id
        extension: dict[str, Any] = {}
        if grant.functions:
            # Koordinator leaves out a minor of 0, which then looks like none.
            extension["vfs"] = [
                {"minor": function.minor, **({"busID": function.bus_id} if function.bus_id else {})}
                for function in grant.functions
            ]
        if grant.exclusive:
            extension["exclusivePolicy"] = grant.exclusive
        if grant.parent:
            extension["parent"] = grant.parent
        if extension:
            entry["extension"] = extension
        body.setdefault(grant.type, []).append(entry)
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS).decode()


def text(name: str, amount: int) -> str:
    """Return an amount as text: memory in binary units, all others as numbers."""
    return quantity.format_bytes(amount) if name == names.GPU_MEMORY else str(amount)


def message_text(name: str, amount: int) -> str:
    """Return an amount as text for messages: memory in the shortest unit, all others as numbers."""
    return quantity.shortest_bytes(amount) if name == names.GPU_MEMORY else str(amount)


def parse(annotation: str) -> tuple[Grant, ...]:
    """Parse an annotation.

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
    if len(grants) > 1:
        by_card: dict[tuple[str, int], list[Grant]] = {}
        for grant in grants:
            by_card.setdefault((grant.type, grant.minor), []).append(grant)
        for kind, count in Counter(kind for kind, _ in by_card).items():
            if count > MAX_CARDS:
                raise AllocationError(f"{kind}: {count} cards; allowed are {MAX_CARDS}")
        for (kind, minor), held in by_card.items():
            if len(held) > 1:
                if not all(grant.is_subdevice for grant in held):
                    raise AllocationError(
                        f"{kind}: minor {minor} has more than one entry; allowed is one for each whole card"
                    )
                ids = [grant.id for grant in held]
                if not all(ids) or len(set(ids)) < len(ids):
                    raise AllocationError(f"{kind}: minor {minor} has the ids {ids}; each entry needs an id of its own")
        for (kind, name), count in Counter((grant.type, grant.id) for grant in grants if grant.id).items():
            if count > 1:
                raise AllocationError(f"{kind}: id {name} has {count} entries; allowed is one entry for each device")
    return grants


def _listed(kind: str, entries: object) -> Iterable[tuple[int, object]]:
    if not re.fullmatch(TYPE, kind):
        allowed = f"{', '.join(TYPES)} and the types of plug-ins"
        raise AllocationError(f'"{kind}" is not a device type; allowed are {allowed}')
    if not isinstance(entries, list):
        raise AllocationError(f"{kind}: not a list")
    if len(entries) > MAX_ENTRIES:
        raise AllocationError(f"{kind}: {len(entries)} entries; allowed are {MAX_ENTRIES}")
    return enumerate(entries)


def _grant(kind: str, entry: object, where: str) -> Grant:
    if not isinstance(entry, dict):
        raise AllocationError(f"{where}: not an object")
    minor, uuid, resources = entry.get("minor", 0), entry.get("id", ""), entry.get("resources") or {}
    if not _is_number(minor, 0):
        raise AllocationError(f"{where}.minor: {minor!r} is not a whole number from 0 to {MAX_MINOR}")
    if not isinstance(uuid, str) or not isinstance(resources, dict):
        raise AllocationError(f"{where}: id must be text and resources an object")
    if uuid and not device_ids.is_valid_unit(kind, uuid, REPLICA_MARK):
        raise AllocationError(f"{where}.id: {device_ids.problem(kind, uuid) or 'no number of a replica'}")
    extension = entry.get("extension")
    # Other programs may have exclusive policies of their own.
    policy = extension.get("exclusivePolicy") if isinstance(extension, dict) else None
    amounts: dict[str, int] = {}
    for name, value in resources.items():
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise AllocationError(f"{where}.resources.{name}: {value!r} is not a quantity")
        try:
            amount = quantity.parse(value)
        except quantity.QuantityError as error:
            raise AllocationError(f"{where}.resources.{name}: {error}") from error
        if amount < 0:
            raise AllocationError(f"{where}.resources.{name}: {value} is negative")
        amounts[short(name)] = amount
    if not any(amounts.values()):
        # Without an amount the card would count as free.
        raise AllocationError(f"{where}.resources: names no amount")
    # Other programs may have their own fields in the extension.
    listed, parent = (extension.get(name) if isinstance(extension, dict) else None for name in ("vfs", "parent"))
    if listed is not None and (not isinstance(listed, list) or len(listed) > MAX_FUNCTIONS):
        raise AllocationError(f"{where}.extension.vfs: not a list of up to {MAX_FUNCTIONS}")
    functions = tuple(_function(raw, f"{where}.extension.vfs[{i}]") for i, raw in enumerate(listed or ()))
    grant = Grant(
        type=kind,
        minor=minor,
        amounts=tuple(sorted(amounts.items())),
        id=uuid,
        functions=functions,
        exclusive=policy if isinstance(policy, str) and policy in EXCLUSIVES else "",
        parent=parent if isinstance(parent, str) and device_ids.is_valid(names.GPU, parent) else "",
    )
    if grant.is_subdevice and sum(amount for name, amount in grant.amounts if name.startswith(_SUBDEVICES)) != 1:
        raise AllocationError(f"{where}.resources: an entry of an instance or replica must name exactly one")
    return grant


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_MINOR


def _function(raw: object, where: str) -> Function:
    if not isinstance(raw, dict):
        raise AllocationError(f"{where}: not an object")
    minor, bus_id = raw.get("minor", 0), raw.get("busID") or ""
    if not _is_number(minor, UNNUMBERED) or not isinstance(bus_id, str):
        raise AllocationError(f"{where}: minor must be a whole number from {UNNUMBERED} to {MAX_MINOR}, and busID text")
    return Function(minor=minor, bus_id=bus_id)
