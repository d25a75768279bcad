"""Devices from the API, read once at the edge, and checked against themselves."""

import itertools
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import TypeAdapter, ValidationError

from berth_api import allocation, names, quantity
from berth_api.device import Condition, DeviceInfo, DeviceSpec, DeviceStatus
from berth_operator.core.cards import CardInfo
from berth_operator.core.fleet import DEFAULT_VENDOR, DeviceInventory

Object = Mapping[str, Any]
Resources = tuple[tuple[str, str | int], ...]

ALIKE: Final = 1024
"""Kinds of cards of which what was read is remembered: a fleet has few."""
_CONDITIONS: Final = TypeAdapter(tuple[Condition, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A Device as the operator read it."""

    name: str
    uid: str
    generation: int
    inventory: DeviceInventory
    problems: tuple[str, ...]
    """What contradicts itself, each naming the field; those cards are not handed out."""
    told: bytes
    """The status as JSON: nobody decides by it, and as objects those of a large fleet take a hundred megabytes."""
    conditions: tuple[Condition, ...]
    """Those of the status."""
    driver_version: str = ""

    @property
    def status(self) -> DeviceStatus:
        """Read the status; one that we cannot read counts as empty, and is written anew."""
        try:
            return DeviceStatus.model_validate_json(self.told)
        except ValidationError:
            return DeviceStatus()


def record(device: Object, known: DeviceRecord | None = None) -> DeviceRecord:
    """Read a Device; of one whose spec is still the one that is known only the status is read."""
    metadata, status = device["metadata"], device.get("status") or {}
    told, conditions = orjson.dumps(status), _conditions(status)
    vendor = (metadata.get("labels") or {}).get(names.VENDOR_LABEL) or DEFAULT_VENDOR
    if known is not None and (known.uid, known.generation) == (metadata["uid"], metadata.get("generation")):
        inventory = replace(known.inventory, vendor=vendor)
        return replace(known, inventory=inventory, told=told, conditions=conditions)
    spec, unread = _spec(device)
    problems = _problems(spec)
    usable = zip(spec.devices, problems, strict=True)
    return DeviceRecord(
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation") or 0,
        inventory=DeviceInventory(cards=tuple(_card(each, usable=not wrong) for each, wrong in usable), vendor=vendor),
        problems=(*unread, *itertools.chain.from_iterable(problems)),
        told=told,
        conditions=conditions,
        driver_version=spec.driver_version,
    )


def _spec(device: Object) -> tuple[DeviceSpec, tuple[str, ...]]:
    """Read the spec; one that the CRD of another version let through, but that we cannot read, counts as empty."""
    try:
        return DeviceSpec.model_validate(device.get("spec") or {}), ()
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in first["loc"])
        return DeviceSpec(), (f"spec{place}: {first['msg']}",)


def _conditions(status: Object) -> tuple[Condition, ...]:
    """Read the conditions; where one cannot be read, there are none."""
    try:
        return _CONDITIONS.validate_python(status.get("conditions") or ())
    except ValidationError:
        return ()


def _card(device: DeviceInfo, *, usable: bool) -> CardInfo:
    sliced = device.mig is not None and device.mig.enabled
    return CardInfo(
        type=device.type,
        minor=device.minor,
        id=device.id,
        model=sys.intern(device.model),
        healthy=device.health and usable and not sliced,
        amounts=_amounts(device.type, tuple(device.resources.items())) if usable else (),
    )


@lru_cache(maxsize=ALIKE)
def _amounts(kind: str, resources: Resources) -> tuple[tuple[str, int], ...]:
    """Give what a card offers; one that does not say so is 100 hundredths of itself."""
    whole = {names.GPU: (names.GPU_CORE, names.GPU_MEMORY_RATIO)}.get(kind, (kind,))
    found = {allocation.short(name): quantity.parse(value) for name, value in resources}
    return tuple(sorted({**dict.fromkeys(whole, 100), **found}.items()))


def _problems(spec: DeviceSpec) -> list[tuple[str, ...]]:
    """Give what is wrong with each device."""
    ids: Counter[tuple[str, str]] = Counter((each.type, each.id) for each in spec.devices)
    minors: set[tuple[str, int]] = {(each.type, each.minor) for each in spec.devices}
    return [
        tuple(f"spec.devices[{position}].{problem}" for problem in _problems_of(each, ids, minors))
        for position, each in enumerate(spec.devices)
    ]


def _problems_of(
    device: DeviceInfo, ids: Mapping[tuple[str, str], int], minors: Collection[tuple[str, int]]
) -> Iterator[str]:
    kind = device.type
    if ids[kind, device.id] > 1:
        yield f"id: {device.id} stands more than once among the {kind} devices"
    for link in device.links:
        if (kind, link.minor) not in minors or link.minor == device.minor:
            yield f"links: minor {link.minor} is not another {kind} device of this node"
    yield from _resource_problems(kind, tuple(device.resources.items()), healthy=device.health)


@lru_cache(maxsize=ALIKE)
def _resource_problems(kind: str, resources: Resources, *, healthy: bool) -> tuple[str, ...]:
    """Give what is wrong with what a card offers: most cards offer the same."""
    return tuple(_contradictions(kind, resources, healthy=healthy))


def _contradictions(kind: str, resources: Resources, *, healthy: bool) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name, value in resources:
        try:
            amount = quantity.parse(value)
        except quantity.QuantityError as error:
            yield f"resources.{name}: {error}"
            return
        if amount < 0:
            yield f"resources.{name}: {value} is negative"
        if seen.setdefault(allocation.short(name), amount) != amount:
            yield f"resources.{name}: {value}; under its other prefix it is another amount"
        if allocation.short(name) in (names.GPU_CORE, names.GPU_MEMORY_RATIO) and amount != 100:  # noqa: PLR2004
            yield f"resources.{name}: {value}; a card has 100"
    if kind == names.GPU and healthy and not seen.get(names.GPU_MEMORY):
        yield f"resources: a healthy GPU has no {names.PREFIX}{names.GPU_MEMORY}"
